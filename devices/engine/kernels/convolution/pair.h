/* What the register tiles of fused pairs (pair.inc) are told: a pointwise convolution of pixels that lie side by side. */
#ifndef NNS_PAIR_H
#define NNS_PAIR_H

#include "compute.h"

/* One panel of VECTORS output vectors; pixels are counted from those that `x`, `y` and `residual` point to. */
typedef struct {
    const float *x;
    const float *w;        /* float[input channel][VECTORS][block] */
    const float *next;     /* weights that will be wanted then, fetched meanwhile; or NULL */
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
