/* Shared by all kernels: vectors of NNS_BLOCK floats, activations, and size arithmetic for `check`. */
#ifndef NNS_KERNEL_H
#define NNS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nns_engine.h"

#ifndef NNS_BLOCK
#error "NNS_BLOCK must be the number of floats per vector: 16, 8 or 4"
#endif

#define NNS_INLINE static inline __attribute__((always_inline, unused))
#define NNS_ARRAY_LENGTH(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* ---- vectors --------------------------------------------------------------------------------------------- */

typedef float nns_vec __attribute__((vector_size(NNS_BLOCK * 4)));
typedef int32_t nns_ivec __attribute__((vector_size(NNS_BLOCK * 4)));
typedef uint32_t nns_uvec __attribute__((vector_size(NNS_BLOCK * 4)));

/* Loads and stores take any address that a float may have. */
NNS_INLINE nns_vec nns_load(const float *from) {
    nns_vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE void nns_store(float *to, nns_vec v) { memcpy(to, &v, sizeof v); }

/* The first `n` floats (0 <= n <= NNS_BLOCK); the other lanes are `fill`. */
NNS_INLINE nns_vec nns_load_some(const float *from, int64_t n, float fill) {
    float lanes[NNS_BLOCK];
    for (int64_t i = 0; i < NNS_BLOCK; i++) lanes[i] = i < n ? from[i] : fill;
    return nns_load(lanes);
}

/* Stores the first `n` lanes (0 <= n <= NNS_BLOCK). */
NNS_INLINE void nns_store_some(float *to, nns_vec v, int64_t n) {
    for (int64_t i = 0; i < NNS_BLOCK; i++)
        if (i < n) to[i] = v[i];
}

/* One float in all lanes, written so that no addition to zero is left in the code. */
NNS_INLINE nns_vec nns_broadcast(float x) {
#if NNS_BLOCK == 16
    return (nns_vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif NNS_BLOCK == 8
    return (nns_vec){x, x, x, x, x, x, x, x};
#else
    return (nns_vec){x, x, x, x};
#endif
}
NNS_INLINE nns_vec nns_zero(void) { return (nns_vec){0}; }

/* `mask` has all bits set in the lanes that take `yes`; comparisons of vectors give such masks. */
NNS_INLINE nns_vec nns_select(nns_ivec mask, nns_vec yes, nns_vec no) {
    return (nns_vec)((mask & (nns_ivec)yes) | (~mask & (nns_ivec)no));
}

/* Largest and smallest per lane. Where a lane of either is NaN, the answer is the second's: write the bound first and
 * the value second to keep NaN. */
NNS_INLINE nns_vec nns_max(nns_vec a, nns_vec b) { return nns_select(a > b, a, b); }
NNS_INLINE nns_vec nns_min(nns_vec a, nns_vec b) { return nns_select(a < b, a, b); }

NNS_INLINE float nns_sum_lanes(nns_vec v) {
    float sum = 0;
    for (int i = 0; i < NNS_BLOCK; i++) sum += v[i];
    return sum;
}

NNS_INLINE float nns_max_lanes(nns_vec v) {
    float best = v[0];
    for (int i = 1; i < NNS_BLOCK; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* e^x with a relative error below 2e-7 where the result is a normal float. Smaller results become the smallest normal
 * float and larger ones about the largest, so that the answer is finite and positive for every x but NaN, which stays.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r² q(r), where q was fitted to the relative error of the whole.
 * 2^n is multiplied in two halves because n may be 128, one more than a float's largest exponent. */
NNS_INLINE nns_vec nns_exp(nns_vec x) {
    x = nns_max(nns_broadcast(-87.33654f), nns_min(nns_broadcast(88.72283f), x));
    const nns_vec shift = nns_broadcast(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer in the low bits */
    const nns_vec shifted = x * 1.44269504f + shift;
    const nns_ivec n = (nns_ivec)shifted - (nns_ivec)shift;
    const nns_vec whole = shifted - shift;
    const nns_vec r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f; /* ln 2 in two parts, the first exact */
    nns_vec q = nns_broadcast(1.38146e-3f);
    q = q * r + 8.36872e-3f;
    q = q * r + 4.166839e-2f;
    q = q * r + 1.6666521e-1f;
    q = q * r + 4.9999993e-1f;
    const nns_vec mantissa = (q * r) * r + r + 1.0f;
    const nns_ivec half = n >> 1;
    const nns_vec low = (nns_vec)((half + 127) << 23), high = (nns_vec)((n - half + 127) << 23);
    return mantissa * low * high;
}

/* 1 + e^-x with a relative error below 3e-7; cheaper than nns_exp, because the sum loses digits. x is clamped to [-87, 87], so that
 * 2^n is a normal float. NaN stays.
 *
 * -x = (n + r) ln 2 with |r| <= 1/2; 2^r is a polynomial that was fitted to the relative error. */
NNS_INLINE nns_vec nns_one_plus_exp(nns_vec x) {
    x = nns_max(nns_broadcast(-87.0f), nns_min(nns_broadcast(87.0f), x));
    const nns_vec shift = nns_broadcast(12582912.0f + 127); /* adding it leaves n + 127 in the low bits */
    const nns_vec shifted = shift - x * 1.44269504f;
    const nns_vec scale = (nns_vec)((nns_uvec)shifted << 23);
    const nns_vec r = (shift - shifted) - x * 1.44269504f;
    nns_vec power = nns_broadcast(1.3276471e-3f);
    power = power * r + 9.675541e-3f;
    power = power * r + 5.550713e-2f;
    power = power * r + 2.4022120e-1f;
    power = power * r + 6.9314694e-1f;
    power = power * r + 1.0000001f;
    return power * scale + 1.0f;
}

NNS_INLINE nns_vec nns_sigmoid(nns_vec x) { return 1.0f / nns_one_plus_exp(x); }

/* Odd polynomial near 0, where the quotient would cancel. */
NNS_INLINE nns_vec nns_tanh(nns_vec x) {
    const nns_vec z = x * x;
    nns_vec p = nns_broadcast(-5.70496e-3f);
    p = p * z + 2.063906e-2f;
    p = p * z - 5.373971e-2f;
    p = p * z + 1.3331442e-1f;
    p = p * z - 3.3333282e-1f;
    const nns_vec near = x + x * z * p;
    const nns_vec far = 1.0f - 2.0f / (1.0f + nns_exp(x + x));
    return nns_select(z < 0.390625f, near, far);
}

/* ---- activations ----------------------------------------------------------------------------------------- */

/* The numbering of nnstretch/graph/activation.py. */
enum {
    NNS_ACT_NONE = 0,
    NNS_ACT_RELU = 1,
    NNS_ACT_CLIP = 2,
    NNS_ACT_SIGMOID = 3,
    NNS_ACT_SILU = 4,
    NNS_ACT_HARD_SIGMOID = 5,
    NNS_ACT_HARD_SWISH = 6,
    NNS_ACT_LEAKY_RELU = 7,
    NNS_ACT_TANH = 8,
    NNS_ACT_EXP = 9,
};

NNS_INLINE float nns_float_of_bits(int64_t bits) {
    const uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

typedef struct {
    int32_t kind;
    float a, b;
} nns_activation;

/* Reads the three parameters of an activation: kind, bits of a, bits of b. */
NNS_INLINE nns_activation nns_activation_read(const int64_t *p) {
    return (nns_activation){(int32_t)p[0], nns_float_of_bits(p[1]), nns_float_of_bits(p[2])};
}

/* Applies an activation. `kind` should be constant or the same throughout a loop. */
NNS_INLINE nns_vec nns_activate(nns_vec x, int32_t kind, float a, float b) {
    const nns_vec zero = nns_zero(), one = nns_broadcast(1.0f);
    switch (kind) {
    case NNS_ACT_RELU: return nns_max(zero, x);
    case NNS_ACT_CLIP: return nns_min(nns_broadcast(b), nns_max(nns_broadcast(a), x));
    case NNS_ACT_SIGMOID: return nns_sigmoid(x);
    case NNS_ACT_SILU: return x / nns_one_plus_exp(x);
    case NNS_ACT_HARD_SIGMOID: return nns_min(one, nns_max(zero, x * a + b));
    case NNS_ACT_HARD_SWISH: return x * nns_min(one, nns_max(zero, x * (1.0f / 6.0f) + 0.5f));
    case NNS_ACT_LEAKY_RELU: return nns_select(x < 0.0f, x * a, x);
    case NNS_ACT_TANH: return nns_tanh(x);
    case NNS_ACT_EXP: return nns_exp(x);
    default: return x;
    }
}

/* Applies an activation in place to `n` floats at `x`. */
NNS_INLINE void nns_activate_all(float *x, int64_t n, nns_activation activation) {
    int64_t i = 0;
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK)
        nns_store(x + i, nns_activate(nns_load(x + i), activation.kind, activation.a, activation.b));
    if (i < n) {
        const nns_vec tail = nns_load_some(x + i, n - i, 0.0f);
        nns_store_some(x + i, nns_activate(tail, activation.kind, activation.a, activation.b), n - i);
    }
}

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

/* Whether every one of `n` values is within [low, high]. */
NNS_INLINE bool nns_all_within(const int64_t *values, int64_t n, int64_t low, int64_t high) {
    for (int64_t i = 0; i < n; i++)
        if (values[i] < low || values[i] > high) return false;
    return true;
}

#endif
