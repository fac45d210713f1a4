/* Arguments of the register tiles of the direct convolution (conv_direct.inc). */
#ifndef NNS_CONV_DIRECT_H
#define NNS_CONV_DIRECT_H

#include "compute.h"

enum { CONV_MOST_VECTORS = 4 };

/* One pass over a panel: some output vectors and a range of input channels. Output vector v lies `at[v]` floats from `y`,
 * and its residual `at[v]` floats from `residual`. */
typedef struct {
    const float *x;         /* first block of this image */
    const float *w;         /* weights of the panel from the first input block of this pass */
    const float *bias;      /* of the panel, or NULL */
    const float *residual;  /* first block of the panel, or NULL */
    float *y;               /* first block of the panel */
    int64_t at[CONV_MOST_VECTORS];
    bool pads;              /* the last vector is the first half of a block whose other half is padding */
    int64_t x_plane;                       /* floats between blocks of the input */
    int64_t block_begin, block_end;        /* input blocks of this pass */
    int64_t lane_begin, lane_end;          /* input channels of the panel, in all passes */
    int64_t kh, kw, tap_row, tap_column;   /* taps, and floats from one to the next */
    bool first, last;                      /* pass: starts from the bias; ends with the epilogue */
    int64_t ahead_columns;                 /* taps of a row that earlier tiles did not prefetch for the next tile */
    int64_t ahead;                         /* floats from a tile's pixels to the next one's */
    const float *fetch, *fetch_end;        /* weights of the next panel that are not prefetched yet */
    int64_t fetch_step;                    /* floats prefetched per tap and input block */
    epilogue finish;
} conv_pass;

/* Pixels of one tile. `rows[i]` and `columns[j]` hold a bit per pixel: whether tap (i, j) lies inside the input. */
typedef struct {
    int64_t *offsets;  /* of each pixel's first tap from the start of the plane, in floats; may be negative */
    uint32_t *rows, *columns;
    bool edge;         /* whether any tap of any pixel is outside the input */
} conv_pixels;

/* Computes `count` output pixels from `pixel` on, which are consecutive in the flattened output plane. `pixels` describes
 * `rounded(count)` pixels: a tile has code for some counts only and repeats the last pixel for the others. */
typedef void (*conv_tile)(int64_t count, conv_pass *pass, const conv_pixels *pixels, int64_t pixel);

/* One shape of tile. */
typedef struct {
    int64_t pixels;
    int64_t (*rounded)(int64_t count);
    conv_tile any;
    conv_tile flat; /* `pixels` pixels, if output pixel i reads input pixel i only */
} conv_shape;

#endif
