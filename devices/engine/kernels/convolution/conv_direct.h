/* What the register tiles of the direct convolution (conv_direct.inc) are told. */
#ifndef NNS_CONV_DIRECT_H
#define NNS_CONV_DIRECT_H

#include "compute.h"

enum { CONV_MOST_VECTORS = 4 };

/* What is the same for all tiles of one pass over a panel: some output vectors and a range of input channels. Its outputs
 * lie at `at[v]` floats from `y`, and so do the residual's. */
typedef struct {
    const float *x;         /* first block of this image */
    const float *w;         /* weights of the panel from the first input block of this pass */
    const float *bias;      /* of the panel, or NULL */
    const float *residual;  /* first block of the panel, or NULL */
    float *y;               /* first block of the panel */
    int64_t at[CONV_MOST_VECTORS];
    bool pads;              /* the last vector is half a block, of which the other half is padding */
    int64_t x_plane;                       /* floats between blocks of the input */
    int64_t block_begin, block_end;        /* input blocks of this pass */
    int64_t lane_begin, lane_end;          /* input channels of the panel, in all passes */
    int64_t kh, kw, tap_row, tap_column;   /* taps, and floats from one to the next */
    bool first, last;                      /* pass: starts from the bias; ends with the epilogue */
    int64_t ahead_columns;                 /* taps of a row that no earlier tile fetched for the next one */
    int64_t ahead;                         /* floats from a tile's pixels to the next one's */
    const float *fetch, *fetch_end;        /* weights of the next panel that are still to be fetched */
    int64_t fetch_step;                    /* floats of them per tap and input block */
    epilogue finish;
} conv_pass;

/* Pixels of one tile. `rows[i]` and `columns[j]` hold a bit per pixel: whether tap (i, j) lies inside the input. */
typedef struct {
    int64_t *offsets;  /* of each pixel's first tap from the plane's begin, in floats; negative before it */
    uint32_t *rows, *columns;
    bool edge;         /* whether any tap of any pixel is outside */
} conv_pixels;

/* Computes `count` output pixels from `pixel` on, which are consecutive in the flattened output plane. `pixels` describes
 * as many as `rounded(count)` says: a tile has code for some counts only and repeats the last pixel in between. */
typedef void (*conv_tile)(int64_t count, conv_pass *pass, const conv_pixels *pixels, int64_t pixel);

/* One shape of tile. */
typedef struct {
    int64_t pixels;
    int64_t (*rounded)(int64_t count);
    conv_tile any;
    conv_tile flat; /* `pixels` of them, where input and output planes have the same pixels in the same order */
} conv_shape;

#endif
