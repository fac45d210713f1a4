/* What the register tiles of Strassen's product (conv_strassen.inc) are told. */
#ifndef NNS_CONV_STRASSEN_H
#define NNS_CONV_STRASSEN_H

#include "compute.h"

/* A matrix of pixels × channels: where its first pixel is in the first block, and floats between blocks. */
typedef struct {
    const float *at;
    int64_t plane;
} strassen_operand;

/* Two ranges of `count` pixels, and the channels in two halves and a rest. The second range may begin inside the first. */
typedef struct {
    strassen_operand upper[2], lower[2]; /* of the first and second pixels: first and second half of the channels */
    strassen_operand sums[4];            /* S1 … S4 */
    strassen_operand rest[2];            /* of the first and second pixels: the channels that are in no half */
    int64_t count, repeated;             /* pixels of a range; of the second those that the first has too */
    int64_t half_blocks, rest_lanes;
} strassen_pixels;

/* Where results go: `to[i][j]` belongs to pixel range i and half j of the output channels. */
typedef struct {
    float *to[2][2];
    const float *residual[2][2], *bias[2]; /* or NULL */
    int64_t y_plane;
    epilogue finish;
    float *saved; /* 4 tiles */
} strassen_results;

typedef struct {
    /* All four products of a pair of panels, whose weights are at `w`. */
    void (*pair)(const strassen_pixels *pixels, const strassen_results *results, const float *w);
    /* The plain product with one output vector, whose weights are at `w`: to[.][0]. */
    void (*single)(const strassen_pixels *pixels, const strassen_results *results, const float *w);
    /* Fills `sums` for the pixels. */
    void (*encode)(const strassen_pixels *pixels, float *sums);
} strassen_tile;

#endif
