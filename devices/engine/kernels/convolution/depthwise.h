/* Depthwise rows, for other families. */
#ifndef NNS_DEPTHWISE_H
#define NNS_DEPTHWISE_H

#include "compute.h"

/* Output rows [begin, end) of one block of one image. */
typedef struct {
    const float *x;        /* the block's input plane */
    const float *w, *bias; /* of the block; no bias: NULL */
    const float *residual; /* from output row `begin` on, or NULL */
    float *y;              /* from output row `begin` on; may be `residual` */
    int64_t begin, end;
    int64_t ring, until; /* a ring of this many input rows, or 0: row `until` and later rows lie `ring` rows before */
    epilogue finish;
} depthwise_rows;

/* The variant of these kernels that a file calls: its own, unless they have none for its CPU features. */
#ifndef NNS_DEPTHWISE_VARIANT
#define NNS_DEPTHWISE_VARIANT NNS_VARIANT
#endif
#define nns_depthwise_rows NNS_JOIN(nns_depthwise_rows, NNS_DEPTHWISE_VARIANT)

/* Computes depthwise rows (groups of one channel) of a convolution with geometry `s`. */
void nns_depthwise_rows(const kernel_geometry *s, const depthwise_rows *rows);

#endif
