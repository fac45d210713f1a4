/* Register tiles of products whose rows are packed at a constant distance: c = a b, or c · kept + a b.
 *
 * A tile is some rows of a × some vectors of b and stays in registers over all k. One multiply-add takes ROWS_TOGETHER numbers of
 * a row of a, and a row of b holds as many of each column: single floats or, with ROWS_OF_BFLOAT16, pairs of bfloat16 in as
 * many bits. c is of floats. */
#ifndef NNS_ROWS_PRODUCT_H
#define NNS_ROWS_PRODUCT_H

#include "compute.h"

#if defined(ROWS_OF_BFLOAT16)
#include "bfloat16/product.h"

enum { ROWS_TOGETHER = 2 };
typedef bf16_pairs rows_vec;

NNS_INLINE rows_vec rows_load(const float *from) { return compute_load_bits(from); }
NNS_INLINE rows_vec rows_broadcast(const float *from) { return bf16_broadcast((const void *)from); }
NNS_INLINE nns_vec rows_multiply_add(nns_vec sum, rows_vec left, rows_vec right) {
    return bf16_multiply_add(sum, left, right);
}

/* Writes `x` as the numbers from the i-th on of a row of a. */
NNS_INLINE void rows_put(float *row, int64_t i, nns_vec x) { bf16_store((bfloat16 *)row + i, x); }

/* Makes the numbers of a row of a from `n` floats in the same place, and zeros up to a whole pair. */
NNS_INLINE void rows_convert(float *row, int64_t n) {
    int64_t i = 0;
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) rows_put(row, i, nns_load(row + i));
    if (i < n) rows_put(row, i, nns_load_some(row + i, n - i, 0.0f));
}

/* Writes a vector of a row of b from the columns of two rows. */
NNS_INLINE void rows_store(float *to, const nns_vec *columns) {
    bfloat16 halves[2][NNS_BLOCK];
    bf16_store(halves[0], columns[0]);
    bf16_store(halves[1], columns[1]);
    bfloat16 pairs[NNS_BLOCK][2];
    COMPUTE_FOR(i, NNS_BLOCK) pairs[i][0] = halves[0][i], pairs[i][1] = halves[1][i];
    memcpy(to, pairs, sizeof pairs);
}
#else
enum { ROWS_TOGETHER = 1 };
typedef nns_vec rows_vec;

NNS_INLINE rows_vec rows_load(const float *from) { return nns_load(from); }
NNS_INLINE rows_vec rows_broadcast(const float *from) { return nns_broadcast(*from); }
NNS_INLINE nns_vec rows_multiply_add(nns_vec sum, rows_vec left, rows_vec right) { return sum + left * right; }
NNS_INLINE void rows_put(float *row, int64_t i, nns_vec x) { nns_store(row + i, x); }
NNS_INLINE void rows_convert(float *row, int64_t n) { (void)row, (void)n; }
NNS_INLINE void rows_store(float *to, const nns_vec *columns) { nns_store(to, *columns); }
#endif

enum {
    ROWS_MOST = 512,                    /* floats of a packed row */
    ROWS_STEP = ROWS_MOST + NNS_BLOCK,  /* floats between rows of a: a constant for addresses, and no power of two */
    ROWS_COUNT = COMPUTE_MOST_EACH,     /* rows of a tile, at most */
    ROWS_VECTORS = 2
};

typedef struct {
    const float *a, *b;
    float *c;
    const float *kept;  /* a factor per row, or NULL */
    int64_t of_b, of_c; /* floats between rows */
    int64_t k;          /* rows of b */
} rows_product;

/* Factors that keep all of c. */
static const float rows_ones[ROWS_COUNT] __attribute__((unused)) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Computes `count` rows × `vectors` vectors, or one vector if there are fewer. */
typedef void (*rows_tile)(int64_t count, int64_t vectors, const rows_product *product);

NNS_INLINE void rows_product_tile(const int count, const int vectors, const rows_product *product) {
    nns_vec acc[ROWS_COUNT][ROWS_VECTORS];
    if (product->kept) {
        COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors)
            acc[r][v] = nns_load(product->c + r * product->of_c + v * NNS_BLOCK) * product->kept[r];
    } else {
        COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors) acc[r][v] = nns_zero();
    }
    const float *a = product->a, *b = product->b;
    const int64_t of_b = product->of_b;
    for (int64_t k = 0; k < product->k; k++, b += of_b) {
        rows_vec right[ROWS_VECTORS];
        COMPUTE_FOR(v, vectors) right[v] = rows_load(b + v * NNS_BLOCK);
        COMPUTE_FOR(r, count) {
            const rows_vec left = rows_broadcast(a + r * ROWS_STEP + k);
            COMPUTE_FOR(v, vectors) acc[r][v] = rows_multiply_add(acc[r][v], left, right[v]);
        }
    }
    COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors) nns_store(product->c + r * product->of_c + v * NNS_BLOCK, acc[r][v]);
}

/* Defines `stem_tile`, a rows_tile of up to `rows` rows and exactly `vectors` vectors or one. */
#if defined(ROWS_OF_BFLOAT16) && !BF16_NATIVE
/* No plan is made for it; this compiles fast. */
NNS_INLINE void rows_product_by_one(int64_t count, int64_t vectors, const rows_product *product) {
    for (int64_t r = 0; r < count; r++) {
        for (int64_t v = 0; v < vectors; v++) {
            rows_product one = *product;
            one.a += r * ROWS_STEP, one.b += v * NNS_BLOCK, one.c += r * one.of_c + v * NNS_BLOCK;
            if (one.kept) one.kept += r;
            rows_product_tile(1, 1, &one);
        }
    }
}

#define ROWS_DEFINE_TILE(stem, rows, vectors)                                           \
    static void stem##_tile(int64_t count, int64_t some, const rows_product *product) { \
        rows_product_by_one(count, some, product);                                      \
    }
#else
#define ROWS_DEFINE_TILE(stem, rows, vectors)                                                            \
    static void stem##_one(int64_t count, const rows_product *product) {                                 \
        COMPUTE_BY_COUNT(count, rows, rows_product_tile, 1, product)                                     \
    }                                                                                                    \
    static void stem##_tile(int64_t count, int64_t some, const rows_product *product) {                  \
        if (some < (vectors))                                                                            \
            stem##_one(count, product);                                                                  \
        else                                                                                             \
            COMPUTE_BY_COUNT(count, rows, rows_product_tile, vectors, product)                           \
    }
#endif

#endif
