/* Arguments of the register tiles of Strassen's product (conv_strassen.inc). */
#ifndef NNS_CONV_STRASSEN_H
#define NNS_CONV_STRASSEN_H

#include "compute.h"

/* A matrix of pixels × channels: the first pixel in the first block, and floats between blocks. */
typedef struct {
    const float *at;
    int64_t plane;
} strassen_operand;

/* Two ranges of `count` pixels, whose channels are two halves and a rest. The ranges may overlap. */
typedef struct {
    strassen_operand upper[2], lower[2]; /* first and second half of the channels, of the first and second pixel range */
    strassen_operand sums[4];            /* S1 … S4 */
    strassen_operand rest[2];            /* the remaining channels of both pixel ranges */
    int64_t count, repeated;             /* pixels of a range; pixels in both ranges */
    int64_t half_blocks, rest_lanes;
} strassen_pixels;

/* Destinations: `to[i][j]` belongs to pixel range i and half j of the output channels. */
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
