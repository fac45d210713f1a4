/* Arguments of the stages of the Winograd convolution: transforms (winograd_transform.h) and products
 * (winograd_product.inc). */
#ifndef NNS_WINOGRAD_H
#define NNS_WINOGRAD_H

#include "by_element.h"

enum {
    WINOGRAD_MAX_STRIDE = 2,
    WINOGRAD_MAX_ALPHA = NNS_MOST(winograd, 1),
    WINOGRAD_MAX_OUTPUTS = NNS_MOST(winograd, 3),
    WINOGRAD_MAX_TILES = NNS_MOST(winograd, 4),
    WINOGRAD_MAX_VECTORS = NNS_MOST(winograd, 5),
};
_Static_assert((int)WINOGRAD_MAX_TILES <= (int)COMPUTE_MOST_COUNT,
               "COMPUTE_BY_COUNT has no case for a product of this many tiles");

/* Position of a tile: the first input pixel of its first output, and its number of outputs. */
typedef struct {
    int64_t x, y; /* floats from the start of each tensor to the first pixel of channel 0; x may lie outside */
    int64_t h, w;                  /* position of that pixel in the input plane */
    int32_t rows, columns;         /* of the output */
} winograd_tile;

/* Pixels to encode, of one block of input channels (to pack: of one channel). A patch of one dimension is one row. */
typedef struct {
    const float *x;                /* the first pixel */
    int64_t x_row, x_column;       /* floats from one row to the next, and from one pixel to the next */
    tap_range rows, columns;       /* the part inside the input */
    float *v;                      /* position 0 of the encoded patch */
    int64_t v_position;            /* floats from one position to the next */
} winograd_patch;

/* A tile of one output vector to decode. */
typedef struct {
    const winograd_tile *tile;
    const float *m;                /* position 0 of the tile's sums */
    int64_t m_position;
    nns_vec bias;
    const float *residual;         /* the tile's first pixel, or NULL */
    float *y;                      /* the same pixel of the output */
    int64_t y_row;                 /* floats from one row to the next; of one dimension, from one pixel to the next */
    const epilogue *finish;
} winograd_result;

/* The sums over input channels and parts of a few tiles at one position: m[tile][vector] = Σ v[tile][channel]
 * u[channel][vector]. */
typedef struct {
    const float *v; /* [input block][part][tile][lane], from the first tile in the block of `lane_begin` */
    int64_t v_part;                /* floats from one part to the next */
    int64_t parts, v_skipped;      /* parts to sum, and the floats of a block's other parts */
    const void *u;                 /* [input block][part][input channel][vector][lane], of the parts to sum */
    int64_t lane_begin, lane_end;  /* input channels, counted from the start of the first block */
    float *m;                      /* [tile][vector][lane] */
} winograd_product;

/* Input channels whose int16 weights of an output have one scale; devices/algorithms/winograd.py has it too. Scales of
 * smaller groups are more bytes to read; with one scale for all channels, F(4, 3) has errors above 1e-4. */
enum { WINOGRAD_GROUP = 16 };
_Static_assert(WINOGRAD_GROUP % NNS_BLOCK == 0, "blocks of channels have no common scale");

/* Prefetch distance of a product's weights, in bytes. */
#ifndef WINOGRAD_AHEAD
#define WINOGRAD_AHEAD 4096
#endif

/* A vector of weights that are int16, in steps. */
NNS_INLINE nns_vec winograd_read_steps(const int16_t *from) {
    typedef int16_t shorts __attribute__((vector_size(NNS_BLOCK * sizeof(int16_t))));
    shorts read;
    memcpy(&read, from, sizeof read);
    return __builtin_convertvector(__builtin_convertvector(read, nns_ivec), nns_vec);
}

typedef void (*winograd_encode)(const winograd_patch *patch);
typedef void (*winograd_pack)(const winograd_patch *patch, float *pixels);
typedef void (*winograd_multiply)(int64_t count, const winograd_product *product);
typedef void (*winograd_decode)(const winograd_result *result);

/* A row of the kernel table. */
typedef struct {
    int64_t alpha, taps;
    winograd_encode encode, encode_line;
    winograd_pack pack;
    winograd_decode decode, decode_line;
    int64_t tiles, vectors; /* of the product */
    bool steps;             /* weights are int16, in steps */
    winograd_multiply multiply, multiply_half; /* multiply_half: for half panels, or NULL */
} winograd_variant;

#endif
