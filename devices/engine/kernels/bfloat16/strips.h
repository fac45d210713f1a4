/* Sums of products of bfloat16 over rounded rows, for the convolutions in this folder.
 *
 * A column of rounded rows holds BF16_COLUMN channels of a pixel. Further channels follow in further parts, each of which has
 * all rows and columns. An output vector multiplies pairs of channels that lie beside each other; its weights are
 * bfloat16[part][kh][kw][pair][lane][2] of the parts in which its pairs lie. Vectors are computed two at a time where they
 * read the same pairs, by strips of neighbouring columns (quads.h on ARM) or, with AMX, by tiles of 16 columns. */
#ifndef NNS_BFLOAT16_STRIPS_H
#define NNS_BFLOAT16_STRIPS_H

#include "bfloat16/product.h"
#include "tile_shapes.h"

/* AMX: a tile is 16 columns of a part, the weights of a part, or the sums of 16 columns. */
#if defined(__AMX_BF16__) && NNS_BLOCK == 16
#define BF16_TILES 1
#else
#define BF16_TILES 0
#endif

enum {
    BF16_COLUMN = 32,                      /* channels of a column of a part: those of a cache line */
    BF16_PAIRS = BF16_COLUMN / 2,          /* pairs of them */
    BF16_BLOCKS = BF16_COLUMN / NNS_BLOCK, /* blocks of them */
    /* Maximum sums of a strip, of columns and vectors: registers, or quickly compiled. */
    BF16_MOST = BF16_QUADS ? 24 : BF16_NATIVE ? 28 : 4,
    BF16_BEHIND = 32,                      /* columns behind the last one, times the stride, that may be read */
    BF16_TAP = BF16_COLUMN * NNS_BLOCK,    /* weights of a tap of a part */
};
/* Maximum bytes of rounded rows. */
#define BF16_BYTES (INT64_C(1) << 26)

/* Parts of rounded rows with `channels` channels. */
NNS_INLINE int64_t bf16_parts(int64_t channels) { return nns_ceil_div(channels, BF16_COLUMN); }

/* Rounds `count` columns, every `across`th of the pixels at `from`, of `blocks` neighbouring blocks, which lie `plane` floats
 * apart; `blocks` is a constant. */
NNS_INLINE void bf16_round_blocks(const int blocks, const float *from, int64_t plane, int64_t across, int64_t count,
                                  bfloat16 *to) {
    for (int64_t column = 0; column < count; column++, from += across * NNS_BLOCK, to += BF16_COLUMN) {
#if BF16_BLOCKS_AT_ONCE == 2
        if (blocks == 2) {
            bf16_store_two(to, nns_load(from), nns_load(from + plane));
            continue;
        }
#endif
        COMPUTE_FOR(block, blocks) bf16_store(to + block * NNS_BLOCK, nns_load(from + block * plane));
    }
}

/* The same for a part of any number of blocks; channels that it lacks become zeros. */
static __attribute__((unused)) void bf16_round(int64_t blocks, const float *from, int64_t plane, int64_t across,
                                               int64_t count, bfloat16 *to) {
    if (blocks == BF16_BLOCKS) {
        bf16_round_blocks(BF16_BLOCKS, from, plane, across, count, to);
        return;
    }
    memset(to, 0, (size_t)(count * BF16_COLUMN) * sizeof *to);
    for (int64_t block = 0; block < blocks; block++)
        bf16_round_blocks(1, from + block * plane, plane, across, count, to + block * NNS_BLOCK);
}

/* One output vector. */
typedef struct {
    const bfloat16 *x; /* the first rounded row, of the first part that it reads */
    const bfloat16 *w;
    int64_t begin, end;           /* the pairs that it reads, counted from that part on */
    const float *bias, *residual; /* or NULL; the residual from the first output row on, as y */
    float *y;
    int64_t lanes;                /* that are in y; 0: all */
} output_vector;

/* What the vectors share. */
typedef struct {
    kernel_geometry geometry; /* of the convolution of the rounded rows; pixels of pointwise ones are one row */
    int64_t columns;          /* of rounded rows */
    int64_t row, part;        /* numbers from a rounded row to the next, and from a part to the next */
    int64_t inside, outside;  /* of kernels of several rows: the first rounded row in the image, and the first below it */
    int64_t w_block;          /* weights of an output vector */
    int64_t step;             /* floats from a pixel of y, and of the residual, to the next */
    epilogue finish;
} strips;

#if BF16_TILES
enum { BF16_TILE = 16, BF16_TILE_BYTES = 64 /* of a row */ };

/* Prepares for bf16_compute, and gives the tiles back after it. Tiles 0 to 3 are sums, 4 and 5 columns, 6 and 7 weights. */
NNS_INLINE void bf16_begin(void) {
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = BF16_TILE_BYTES;
        shapes.rows[i] = BF16_TILE;
    }
    _tile_loadconfig(&shapes);
}

NNS_INLINE void bf16_end(void) { _tile_release(); }
#else
NNS_INLINE void bf16_begin(void) {}
NNS_INLINE void bf16_end(void) {}
#endif

#define bf16_compute NNS_JOIN(bf16_compute, NNS_VARIANT)

/* Computes `outputs` output rows of `count` vectors: one, or two that read the same pairs. */
void bf16_compute(const strips *of, const output_vector *v, int64_t count, int64_t outputs);

#endif
