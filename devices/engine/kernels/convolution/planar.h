/* Rows of a convolution that reads a plain NCHW tensor, for other families. */
#ifndef NNS_PLANAR_H
#define NNS_PLANAR_H

#include "compute.h"

/* Output rows of one image. */
typedef struct {
    const kernel_geometry *s;
    const float *x;        /* the image */
    const float *w, *bias; /* as the family conv_planar reads them; no bias: NULL */
    float *y;              /* the first of the rows, in the first block */
    int64_t y_plane;       /* floats between blocks */
    void *scratch;
    epilogue finish;
} planar_job;

#define nns_planar_scratch NNS_JOIN(nns_planar_scratch, NNS_VARIANT)
#define nns_planar_rows NNS_JOIN(nns_planar_rows, NNS_VARIANT)

/* Bytes of scratch for up to `rows` output rows at a time, or -1: too many, or no tile has as many vectors. */
int64_t nns_planar_scratch(const kernel_geometry *s, int64_t vectors, int64_t rows);

/* Computes the output rows [begin, end), `rows` at most, with tiles of `vectors` output vectors. */
void nns_planar_rows(const planar_job *job, int64_t vectors, int64_t rows, int64_t begin, int64_t end);

#endif
