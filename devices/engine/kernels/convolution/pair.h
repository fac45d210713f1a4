/* Arguments of the register tiles of fused pairs (pair.inc): a pointwise convolution of contiguous pixels. */
#ifndef NNS_PAIR_H
#define NNS_PAIR_H

#include "compute.h"

/* One panel of VECTORS output vectors; `x`, `y` and `residual` point to the first pixel. */
typedef struct {
    const float *x;
    const float *w;        /* float[input channel][VECTORS][block] */
    const float *next;     /* weights to prefetch for the next panel, or NULL */
    const float *bias;     /* of the panel, or NULL */
    const float *residual; /* of the panel, or NULL */
    float *y;              /* of the panel */
    int64_t x_plane;       /* floats between blocks of the input */
    int64_t y_plane;       /* floats between blocks of the output, and of the residual */
    int64_t channels;      /* of the input */
    epilogue finish;
} pointwise;

/* Computes `pixels` pixels. */
typedef void (*pointwise_tiles)(const pointwise *job, int64_t pixels);

#endif
