/* What the parts of the Winograd convolution are told: transforms (winograd_transform.inc), products (winograd_product.inc). */
#ifndef NNS_WINOGRAD_H
#define NNS_WINOGRAD_H

#include "compute.h"

/* Where one tile lies: the patch of (m + 2)² pixels that it reads and the up to m² pixels that it writes. */
typedef struct {
    int64_t x, y;                  /* floats from the tensors' begins to the first pixel of block 0; x may lie outside */
    int32_t row_begin, row_end;    /* rows of the patch that lie inside the input */
    int32_t column_begin, column_end;
    int32_t rows, columns;         /* of the output */
} winograd_tile;

/* One tile of one block of input channels, to be encoded. */
typedef struct {
    const winograd_tile *tile;
    const float *x;                /* the patch's first pixel */
    int64_t x_row;                 /* floats from one row to the next */
    float *v;                      /* position 0 of the encoded tile */
    int64_t v_position;            /* floats from one position to the next */
} winograd_patch;

/* One tile of one output vector, to be decoded. */
typedef struct {
    const winograd_tile *tile;
    const float *m;                /* position 0 of the tile's sums */
    int64_t m_position;
    nns_vec bias;
    const float *residual;         /* the tile's first pixel, or NULL */
    float *y;                      /* the same pixel of the output */
    int64_t y_row;
    const epilogue *finish;
} winograd_result;

/* The sums over all input channels of a few tiles at one position: m[tile][vector] = Σ v[tile][channel] u[channel][vector]. */
typedef struct {
    const float *v;                /* [input block][tile][lane], from the first of these tiles in the block of `lane_begin` */
    int64_t v_block;               /* floats from one input block to the next */
    const float *u;                /* [input channel][vector][lane] */
    int64_t lane_begin, lane_end;  /* input channels, counted from the begin of the first block */
    float *m;                      /* [tile][vector][lane] */
} winograd_product;

/* Bytes between the weights that a product multiplies by and those that it has fetched: what memory delivers meanwhile. */
#ifndef WINOGRAD_AHEAD
#define WINOGRAD_AHEAD 4096
#endif

/* Where a vector is as long as a block of 16, the halves of a panel may be computed one by one: groups that end in the middle
 * of a block then do not multiply by the zeros of the group beside them. */
#define WINOGRAD_HALVES (NNS_BLOCK == 16)

#if WINOGRAD_HALVES
typedef float winograd_half __attribute__((vector_size(NNS_BLOCK * 2)));

NNS_INLINE winograd_half winograd_half_broadcast(float x) { return (winograd_half){x, x, x, x, x, x, x, x}; }
#endif

typedef void (*winograd_encode)(const winograd_patch *patch);
typedef void (*winograd_multiply)(int64_t count, const winograd_product *product);
typedef void (*winograd_decode)(const winograd_result *result);

#endif
