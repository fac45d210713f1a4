/* Shared by all kernels: vectors, activations, and size arithmetic for `check`. */
#ifndef NNS_KERNEL_H
#define NNS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "functions.h"
#include "nns_engine.h"

#define NNS_ARRAY_LENGTH(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))
#define NNS_JOIN_(a, b) a##b
#define NNS_JOIN(a, b) NNS_JOIN_(a, b)

/* ---- sizes ----------------------------------------------------------------------------------------------- */

NNS_INLINE int64_t nns_min_int(int64_t a, int64_t b) { return a < b ? a : b; }
NNS_INLINE int64_t nns_max_int(int64_t a, int64_t b) { return a > b ? a : b; }
/* ceil(a / b) for a >= 0, b > 0, without overflow. */
NNS_INLINE int64_t nns_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Product of `n` sizes, or -1 if one is negative or the product overflows. */
NNS_INLINE int64_t nns_product(const int64_t *sizes, int64_t n) {
    int64_t product = 1;
    for (int64_t i = 0; i < n; i++)
        if (sizes[i] < 0 || __builtin_mul_overflow(product, sizes[i], &product)) return -1;
    return product;
}

#define NNS_SIZES(...) (const int64_t[]){__VA_ARGS__}, NNS_ARRAY_LENGTH(((const int64_t[]){__VA_ARGS__}))
/* Product of sizes; -1 if one is negative or the product overflows. NNS_PRODUCT(n, c, h, w) */
#define NNS_PRODUCT(...) nns_product(NNS_SIZES(__VA_ARGS__))
/* Bytes of a float32 tensor with these dimensions; -1 as above. */
#define NNS_FLOAT_BYTES(...) nns_product(NNS_SIZES(__VA_ARGS__, (int64_t)sizeof(float)))

/* Whether an operand of `has` bytes holds the `needs` bytes that NNS_FLOAT_BYTES gave. */
NNS_INLINE bool nns_holds(int64_t has, int64_t needs) { return needs >= 0 && has >= needs; }

/* The taps of a kernel that start at `first` (may be negative) and lie within [0, extent): a half-open range. */
typedef struct {
    int64_t begin, end;
} tap_range;

NNS_INLINE tap_range taps_inside(int64_t first, int64_t taps, int64_t dilation, int64_t extent) {
    const int64_t begin = first >= 0 ? 0 : nns_ceil_div(-first, dilation);
    const int64_t end = first >= extent ? 0 : nns_min_int(taps, (extent - 1 - first) / dilation + 1);
    return (tap_range){begin, nns_max_int(begin, end)};
}

#endif
