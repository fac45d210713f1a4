/* Tiles of products of float16 over rounded rows: some pixels, or rows of dense layers, of one or two output vectors.
 *
 * Rounded rows have a column of F16_LANES channels, a part, per pixel. Weights of an output vector are float[lane], the factors by
 * which its sums are multiplied, then float16[step][input channel][lane]. */
#ifndef NNS_FLOAT16_TILES_H
#define NNS_FLOAT16_TILES_H

#include "float16/product.h"

enum {
    F16_PIXELS = F16_NATIVE ? 9 : 2, /* of a tile of two vectors: what registers hold; of one vector twice as many */
    F16_MOST = 2 * F16_PIXELS,       /* vectors of a tile's sums */
    F16_WIDE_BYTES = F16_MOST * F16_LANES * (int)sizeof(float), /* of sums of float32 */
    F16_FACTORS = F16_LANES * (int)(sizeof(float) / sizeof(float16)), /* numbers of float16 that a vector's factors take */
};
/* Maximum bytes of rounded rows. */
#define F16_BYTES (INT64_C(1) << 26)

/* A part of one tap: bytes from a pixel's first input, and numbers from a vector's first weight. */
typedef struct {
    int64_t x, w;
} product_step;

/* One or two output vectors of a unit, which read the same parts. */
typedef struct {
    const float16 *w;
    int64_t w_vector;      /* numbers from a vector's weights to the next one's */
    const product_step *steps;
    int64_t count;         /* of them */
    int64_t at_once;       /* steps whose products have sums of float16 */
    nns_vec factor;        /* of sums, beside those of their lanes */
    int64_t blocks;        /* of the output that the vectors have */
    int64_t lanes;         /* that the last block has in y; 0: all */
    int64_t y_block, step; /* floats from a block of y, and of the residual, to the next, and from a pixel to the next */
    const float *bias, *residual; /* or NULL; the residual from the first pixel on, as y */
    float *y;
    float *wide;           /* sums of float32, [pixel][vector][lane]: in scratch, since there are no registers left */
    epilogue finish;
} output_vectors;

/* Computes pixels whose inputs lie at `pixels`, as many as the shape has, and stores the first `valid` of them from `pixel` on. */
typedef void (*tile_function)(int64_t valid, const output_vectors *of, const float16 *const *pixels, int64_t pixel);

typedef struct {
    int64_t pixels;
    tile_function compute;
} tile_shape;

#define f16_shape_for NNS_JOIN(f16_shape_for, NNS_VARIANT)

/* The smallest tile of one or two vectors for `left` pixels, or the largest. */
tile_shape f16_shape_for(int64_t vectors, int64_t left);

/* Steps whose products have sums of float16 with at most `terms` terms. */
NNS_INLINE int64_t f16_steps(int64_t terms) { return nns_max_int(1, terms / F16_LANES); }

#endif
