/* What the register tiles of the direct convolution (conv_direct.inc) are told. */
#ifndef NNS_CONV_DIRECT_H
#define NNS_CONV_DIRECT_H

#include "compute.h"

/* What is the same for all tiles of one pass over a panel: VECTORS output vectors and a range of input channels. */
typedef struct {
    const float *x;         /* first block of this image */
    const float *w;         /* weights of the panel from the first input block of this pass */
    const float *bias;      /* of the panel, or NULL */
    const float *residual;  /* of the panel, or NULL */
    float *y;               /* of the panel */
    int64_t x_plane, y_plane;              /* floats between blocks of the input and of the output */
    int64_t block_begin, block_end;        /* input blocks of this pass */
    int64_t lane_begin, lane_end;          /* input channels of the panel, in all passes */
    int64_t kh, kw, tap_row, tap_column;   /* taps, and floats from one to the next */
    bool first, last;                      /* pass: starts from the bias; ends with the epilogue */
    int64_t ahead, ahead_columns;          /* floats to the next tile's pixels; taps of a row that no earlier one fetched */
    epilogue finish;
} conv_pass;

/* Pixels of one tile. `rows[i]` and `columns[j]` hold a bit per pixel: whether tap (i, j) lies inside the input. */
typedef struct {
    int64_t *offsets;  /* of each pixel's first tap from the plane's begin, in floats; negative before it */
    uint32_t *rows, *columns;
    bool edge;         /* whether any tap of any pixel is outside */
} conv_pixels;

/* Computes `count` output pixels from `pixel` on, which are consecutive in the flattened output plane. */
typedef void (*conv_tile)(int64_t count, const conv_pass *pass, const conv_pixels *pixels, int64_t pixel);

#endif
