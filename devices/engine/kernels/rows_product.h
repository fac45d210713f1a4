/* Register tiles of products whose rows are packed at a constant distance: c = a b, or c · kept + a b.
 *
 * A tile is some rows of a × some vectors of b and stays in registers over all k. */
#ifndef NNS_ROWS_PRODUCT_H
#define NNS_ROWS_PRODUCT_H

#include "compute.h"

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
    int64_t k;
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
        nns_vec right[ROWS_VECTORS];
        COMPUTE_FOR(v, vectors) right[v] = nns_load(b + v * NNS_BLOCK);
        COMPUTE_FOR(r, count) {
            const nns_vec left = nns_broadcast(a[r * ROWS_STEP + k]);
            COMPUTE_FOR(v, vectors) acc[r][v] += left * right[v];
        }
    }
    COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors) nns_store(product->c + r * product->of_c + v * NNS_BLOCK, acc[r][v]);
}

/* Defines `stem_tile`, a rows_tile of up to `rows` rows and exactly `vectors` vectors or one. */
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
