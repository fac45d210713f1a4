/* Elementary functions and activations of vectors. */
#ifndef NNS_FUNCTIONS_H
#define NNS_FUNCTIONS_H

#include "pieces.h"
#include "vector.h"

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

/* 1 + e^-x with a relative error below 3e-7; cheaper than nns_exp, because the sum loses digits. x is clamped to
 * [-87, 87], so that 2^n is a normal float. NaN stays.
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

/* 1 / x within one unit in the last place, for x between 2^-126 and 2^126. Vectors of 16 floats are divided in 16 cycles, and
 * estimated in two: one step of Newton's iteration makes 14 digits 24. */
NNS_INLINE nns_vec nns_reciprocal(nns_vec x) {
#if NNS_BLOCK == 16 && defined(__AVX512F__)
    const nns_vec guess = (nns_vec)__builtin_ia32_rcp14ps512_mask(x, nns_zero(), (unsigned short)-1);
    return guess * (1.0f - x * guess) + guess;
#else
    return 1.0f / x;
#endif
}

NNS_INLINE nns_vec nns_sigmoid(nns_vec x) { return nns_reciprocal(nns_one_plus_exp(x)); }

/* e^x - 1 for x in [-87, 87], with a relative error below 2e-7, also near 0. NaN stays.
 *
 * x = n ln 2 + r as above; e^x - 1 = 2^n (e^r - 1) + (2^n - 1), where e^r - 1 = r + r² q(r) has the digits of r. */
NNS_INLINE nns_vec nns_expm1(nns_vec x) {
    x = nns_max(nns_broadcast(-87.0f), nns_min(nns_broadcast(87.0f), x));
    const nns_vec shift = nns_broadcast(12582912.0f);
    const nns_vec shifted = x * 1.44269504f + shift;
    const nns_vec whole = shifted - shift;
    const nns_vec scale = (nns_vec)((((nns_ivec)shifted - (nns_ivec)shift) + 127) << 23);
    const nns_vec r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    nns_vec q = nns_broadcast(1.38825201e-3f);
    q = q * r + 8.366514e-3f;
    q = q * r + 4.16672006e-2f;
    q = q * r + 1.66665435e-1f;
    q = q * r + 4.9999997e-1f;
    return ((q * r) * r + r) * scale + (scale - 1.0f);
}

/* (e^2x - 1) / (e^2x + 1) with a relative error below 3e-7. */
NNS_INLINE nns_vec nns_tanh(nns_vec x) {
    const nns_vec limited = nns_max(nns_broadcast(-10.0f), nns_min(nns_broadcast(10.0f), x));
    const nns_vec e = nns_expm1(limited + limited);
    return e * nns_reciprocal(e + 2.0f);
}

NNS_INLINE nns_vec nns_absolute(nns_vec x) { return (nns_vec)((nns_ivec)x & 0x7fffffff); }

/* 2^(n + r) for |r| <= 1/2 with a relative error below 3e-7, where the low bits of `shifted` are n + 127; the polynomial was fitted
 * to the relative error. */
NNS_INLINE nns_vec nns_scaled_power(nns_vec r, nns_vec shifted) {
    const nns_vec scale = (nns_vec)((nns_uvec)shifted << 23);
    nns_vec power = nns_broadcast(1.32764666e-3f);
    power = power * r + 9.67554096e-3f;
    power = power * r + 5.55071346e-2f;
    power = power * r + 2.40221202e-1f;
    power = power * r + 6.93146944e-1f;
    power = power * r + 1.00000012f;
    return power * scale;
}

/* 2^x for x from -126 to 0. */
NNS_INLINE nns_vec nns_power_of_two(nns_vec x) {
    const nns_vec shift = nns_broadcast(12582912.0f + 127); /* adding it leaves n + 127 in the low bits */
    const nns_vec shifted = x + shift;
    return nns_scaled_power(x - (shifted - shift), shifted);
}

/* e^x for x from -87 to 0. */
NNS_INLINE nns_vec nns_exp_below(nns_vec x) {
    const nns_vec shift = nns_broadcast(12582912.0f + 127);
    const nns_vec shifted = x * 1.44269504f + shift;
    return nns_scaled_power(x * 1.44269504f - (shifted - shift), shifted);
}

/* (1 - erf(t / √2)) / 2, the probability that a normal variable exceeds t, for t in [0, 9]. The relative error is below 4e-7
 * up to t = 4 and grows to 2e-2 at t = 9, where the result is 1e-19. NaN stays.
 *
 * Its logarithm to base 2 is a polynomial in t, fitted so that the absolute error of t times the result is below 1e-8. */
NNS_INLINE nns_vec nns_normal_tail(nns_vec t) {
    nns_vec p = nns_broadcast(1.64472869e-9f);
    p = p * t - 6.84850292e-8f;
    p = p * t + 1.24232349e-6f;
    p = p * t - 1.28157089e-5f;
    p = p * t + 8.0637139e-5f;
    p = p * t - 2.8054064e-4f;
    p = p * t - 1.64167141e-5f;
    p = p * t + 6.98191579e-3f;
    p = p * t - 5.24715111e-2f;
    p = p * t - 4.5920977e-1f;
    p = p * t - 1.1511054f;
    p = p * t - 1.0f;
    return nns_power_of_two(p);
}

/* x (1 + erf(x / √2)) / 2 with an absolute error below 1e-6 times the result plus 1.2e-8; 0 is the limit towards -∞.
 *
 * Of x > 0 the share (1 - erf(t / √2)) / 2 is lost, with t = |x|. This is p^-8, where p is a polynomial in t that was fitted to
 * the absolute error of t p^-8: fewer steps, each of which waits for the one before, than an exponential takes. */
NNS_INLINE nns_vec nns_gelu(nns_vec x) {
    const nns_vec t = nns_min(nns_broadcast(9.0f), nns_absolute(x));
    nns_vec p = nns_broadcast(4.24065718e-7f);
    p = p * t - 2.96816893e-6f;
    p = p * t + 1.86134293e-5f;
    p = p * t - 1.12741545e-5f;
    p = p * t + 3.38905957e-4f;
    p = p * t + 8.33366648e-4f;
    p = p * t + 9.51472577e-3f;
    p = p * t + 4.87962589e-2f;
    p = p * t + 1.08765095e-1f;
    p = p * t + 1.09050763f;
    const nns_vec square = p * p, fourth = square * square;
    return nns_max(nns_zero(), x) - t / (fourth * fourth);
}

/* The error function with a relative error below 4e-7: an odd polynomial near 0, where 1 minus the tail would cancel. */
NNS_INLINE nns_vec nns_erf(nns_vec x) {
    const nns_vec z = x * x;
    nns_vec p = nns_broadcast(-7.34568108e-4f);
    p = p * z + 5.1764138e-3f;
    p = p * z - 2.68573668e-2f;
    p = p * z + 1.12837173e-1f;
    p = p * z - 3.76126379e-1f;
    p = p * z + 1.12837923f;
    const nns_vec t = nns_min(nns_broadcast(9.0f), nns_absolute(x) * 1.41421356f);
    const nns_vec far = 1.0f - 2.0f * nns_normal_tail(t);
    const nns_ivec sign = (nns_ivec)x & (int32_t)0x80000000;
    return nns_select(z < 0.36f, x * p, (nns_vec)((nns_ivec)far | sign));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), with a relative error below 4e-7; the logarithm is a polynomial of e^-|x|. */
NNS_INLINE nns_vec nns_softplus(nns_vec x) {
    const nns_vec z = nns_exp(-nns_absolute(x));
    nns_vec p = nns_broadcast(-3.24398093e-3f);
    p = p * z + 1.98512636e-2f;
    p = p * z - 5.69591597e-2f;
    p = p * z + 1.06036171e-1f;
    p = p * z - 1.53055698e-1f;
    p = p * z + 1.96759313e-1f;
    p = p * z - 2.49541327e-1f;
    p = p * z + 3.33299637e-1f;
    p = p * z - 4.99999017e-1f;
    p = p * z + 1.0f;
    return p * z + nns_max(nns_zero(), x);
}

/* x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). Beyond 20 the quotient is 1. */
NNS_INLINE nns_vec nns_mish(nns_vec x) {
    const nns_vec e = nns_exp(nns_min(nns_broadcast(20.0f), x));
    const nns_vec n = e * (e + 2.0f);
    return nns_max(nns_broadcast(-128.0f), x) * (n * nns_reciprocal(n + 2.0f));
}

/* ---- activations by pieces: where two registers are a table of 32 floats ---------------------------------- */

#if NNS_BLOCK == 16 && defined(__AVX512F__)
#define NNS_BY_PIECES 1

/* The polynomials of an activation: terms of pieces 0 to 15, and of the others. */
typedef struct {
    nns_vec scale, most, low[NNS_PIECE_TERMS], high[NNS_PIECE_TERMS];
} nns_piece_registers;

NNS_INLINE nns_piece_registers nns_load_pieces(const nns_pieces *pieces) {
    nns_piece_registers loaded = {.scale = nns_broadcast(pieces->scale), .most = nns_broadcast(pieces->most)};
    for (int i = 0; i < NNS_PIECE_TERMS; i++) {
        loaded.low[i] = nns_load(pieces->terms[i]);
        loaded.high[i] = nns_load(pieces->terms[i] + NNS_BLOCK);
    }
    return loaded;
}

/* Term `i` of the pieces whose numbers are the low five bits of each lane. */
NNS_INLINE nns_vec nns_piece_term(const nns_piece_registers *pieces, int i, nns_ivec piece) {
#if defined(__clang__)
    typedef float floats __attribute__((vector_size(64)));
    typedef int32_t words __attribute__((vector_size(64)));
    return (nns_vec)__builtin_ia32_vpermi2varps512((floats)pieces->low[i], (words)piece, (floats)pieces->high[i]);
#else
    return __builtin_shuffle(pieces->low[i], pieces->high[i], piece);
#endif
}

/* The activation, whose polynomials have `terms` terms, a constant. NaN stays. */
NNS_INLINE nns_vec nns_by_pieces(nns_vec x, const nns_piece_registers *pieces, int terms) {
    const nns_vec shift = nns_broadcast(12582912.0f); /* adding it leaves the number of the piece in the low bits */
    const nns_vec t = nns_min(pieces->most, nns_absolute(x));
    const nns_vec shifted = t * pieces->scale + shift, r = t * pieces->scale - (shifted - shift);
    nns_vec lost = nns_piece_term(pieces, terms - 1, (nns_ivec)shifted);
    for (int i = terms - 2; i >= 0; i--) lost = lost * r + nns_piece_term(pieces, i, (nns_ivec)shifted);
    return nns_max(nns_zero(), x) - t * lost;
}
#else
#define NNS_BY_PIECES 0

typedef struct {
    char none;
} nns_piece_registers;

NNS_INLINE nns_piece_registers nns_load_pieces(const nns_pieces *pieces) {
    (void)pieces;
    return (nns_piece_registers){0};
}

NNS_INLINE nns_vec nns_by_pieces(nns_vec x, const nns_piece_registers *pieces, int terms) {
    (void)pieces, (void)terms;
    return x;
}
#endif

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
    NNS_ACT_GELU = 10,
    NNS_ACT_GELU_TANH = 11,
    NNS_ACT_SWISH = 12,
    NNS_ACT_MISH = 13,
    NNS_ACT_SOFTPLUS = 14,
    NNS_ACT_ELU = 15,
    NNS_ACT_SELU = 16,
    NNS_ACT_ERF = 17,
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

/* The polynomials of an activation that has any; those of another one otherwise, which nobody reads. */
NNS_INLINE nns_piece_registers nns_pieces_of(int32_t kind) {
    return nns_load_pieces(kind == NNS_ACT_GELU        ? &nns_pieces_of_gelu
                           : kind == NNS_ACT_GELU_TANH ? &nns_pieces_of_gelu_tanh
                                                       : &nns_pieces_of_silu);
}

/* Applies an activation. `kind` should be constant or the same throughout a loop; `pieces` are its polynomials. */
NNS_INLINE nns_vec nns_activate(nns_vec x, int32_t kind, float a, float b, const nns_piece_registers *pieces) {
    const nns_vec zero = nns_zero(), one = nns_broadcast(1.0f);
    if (NNS_BY_PIECES && (kind == NNS_ACT_GELU || kind == NNS_ACT_GELU_TANH))
        return nns_by_pieces(x, pieces, NNS_TERMS_OF_GELU);
    if (NNS_BY_PIECES && kind == NNS_ACT_SILU) return nns_by_pieces(x, pieces, NNS_TERMS_OF_SILU);
    switch (kind) {
    case NNS_ACT_RELU: return nns_max(zero, x);
    case NNS_ACT_CLIP: return nns_min(nns_broadcast(b), nns_max(nns_broadcast(a), x));
    case NNS_ACT_SIGMOID: return nns_sigmoid(x);
    /* The numerator is bounded because -∞ over the largest denominator would be -∞. */
    case NNS_ACT_SILU: return nns_max(nns_broadcast(-128.0f), x) * nns_sigmoid(x);
    case NNS_ACT_HARD_SIGMOID: return nns_min(one, nns_max(zero, x * a + b));
    case NNS_ACT_HARD_SWISH: return x * nns_min(one, nns_max(zero, x * (1.0f / 6.0f) + 0.5f));
    case NNS_ACT_LEAKY_RELU: return nns_select(x < 0.0f, x * a, x);
    case NNS_ACT_TANH: return nns_tanh(x);
    case NNS_ACT_EXP: return nns_exp(x);
    case NNS_ACT_GELU: return nns_gelu(x);
    case NNS_ACT_GELU_TANH:
        return nns_max(nns_broadcast(-128.0f), x) * nns_sigmoid(x * (x * x * 7.1354816e-2f + 1.5957691f));
    case NNS_ACT_SWISH: return nns_max(nns_broadcast(-1e30f), x) * nns_sigmoid(x * a);
    case NNS_ACT_MISH: return nns_mish(x);
    case NNS_ACT_SOFTPLUS: return nns_softplus(x);
    case NNS_ACT_ELU: return nns_select(x < 0.0f, nns_expm1(x * b) * a, x);
    case NNS_ACT_SELU: return nns_select(x < 0.0f, nns_expm1(x) * a, x) * b;
    case NNS_ACT_ERF: return nns_erf(x);
    default: return x;
    }
}

/* Applies an activation in place to `rows` rows of `n` floats; row r begins `at[r]` floats from `x`. */
NNS_INLINE void nns_activate_rows(float *x, const int64_t *at, int rows, int64_t n, nns_activation activation) {
    const nns_piece_registers pieces = nns_pieces_of(activation.kind);
    for (int row = 0; row < rows; row++) {
        float *of_row = x + at[row];
        int64_t i = 0;
        for (; i + NNS_BLOCK <= n; i += NNS_BLOCK)
            nns_store(of_row + i,
                      nns_activate(nns_load(of_row + i), activation.kind, activation.a, activation.b, &pieces));
        if (i < n) {
            const nns_vec tail = nns_load_some(of_row + i, n - i, 0.0f);
            nns_store_some(of_row + i, nns_activate(tail, activation.kind, activation.a, activation.b, &pieces), n - i);
        }
    }
}

#endif
