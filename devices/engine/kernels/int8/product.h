/* Sums of products of int8 in int32, and results rounded to int8.
 *
 * Four input channels of a pixel, a quad, meet four weights of every lane's output: the 4 * NNS_BLOCK weights of a quad
 * are int8[lane][4]. INT8_PARTS instructions or more add a quad to a vector of sums, one for each part of it. All
 * arithmetic is exact modulo 2^32. */
#ifndef NNS_INT8_PRODUCT_H
#define NNS_INT8_PRODUCT_H

#include "compute.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

enum { INT8_QUAD = 4, INT8_QUADS = NNS_BLOCK / INT8_QUAD };

typedef int8_t int8_block __attribute__((vector_size(NNS_BLOCK)));

/* Input channels of a quad, the same in all lanes, and its weights; either may be one part of the quad. */
typedef nns_uvec int8_input;
typedef nns_uvec int8_weight;

NNS_INLINE uint32_t int8_load_quad(const int8_t *from) {
    uint32_t quad;
    memcpy(&quad, from, sizeof quad);
    return quad;
}

/* INT8_IN_ORDER: whether int8_multiply_add_next and …_at exist. INT8_UNSIGNED: the instruction takes inputs as uint8, so that int8_part_of_input adds 128 to each. */
#if defined(INT8_NARROW)
/* Weights are within ±64. Of inputs with 128 added, at most 255, the sum of two products is within ±2 · 255 · 64 = ±32640, which
 * int16 holds: vpmaddubsw never saturates. Nor do the next two products fit beside them, so that pairs become int32 at once. */
#define INT8_PARTS 1
#define INT8_UNSIGNED 1

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
    const nns_uvec ones = compute_broadcast_bits(0x00010001); /* of int16 */
#if NNS_BLOCK == 16
    return sum + (nns_uvec)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)x, (__m512i)w), (__m512i)ones);
#else
    return sum + (nns_uvec)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)x, (__m256i)w), (__m256i)ones);
#endif
}

#elif defined(__AVX512VNNI__) && NNS_BLOCK == 16
#define INT8_PARTS 1
#define INT8_UNSIGNED 1

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
    return (nns_uvec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
}

/* The same in the order of the program, and with weights at an address, which take no register. */
#define INT8_IN_ORDER 1
NNS_INLINE nns_uvec int8_multiply_add_next(nns_uvec sum, int8_input x, int8_weight w) {
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}
NNS_INLINE nns_uvec int8_multiply_add_at(nns_uvec sum, int8_input x, const int8_t *w) {
    typedef int8_t bytes __attribute__((vector_size(64), aligned(1), may_alias));
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "m"(*(const bytes *)w));
    return sum;
}

#elif defined(__AVXVNNI__) && NNS_BLOCK == 8
#define INT8_PARTS 1
#define INT8_UNSIGNED 1

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
    return (nns_uvec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
}

#elif defined(__ARM_FEATURE_DOTPROD)
#define INT8_PARTS 1
#define INT8_UNSIGNED 0

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
    return (nns_uvec)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)w);
}

#elif defined(__ARM_NEON)
/* Products are exact in int16, and the sums of two or four of them in int32. */
#define INT8_PARTS 1
#define INT8_UNSIGNED 0
#define INT8_LONG 1

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
    const int8x16_t a = (int8x16_t)x, b = (int8x16_t)w;
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)));
#if defined(__aarch64__)
    return sum + (nns_uvec)vpaddq_s32(low, high);
#else
    return sum + (nns_uvec)vcombine_s32(vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                                        vpadd_s32(vget_low_s32(high), vget_high_s32(high)));
#endif
}

#elif defined(__SSE2__)
/* A part is two channels as a pair of int16: products of bytes are exact there, and their sum is in int32. */
#define INT8_PARTS 2
#define INT8_UNSIGNED 0

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) {
#if NNS_BLOCK == 16
    return sum + (nns_uvec)_mm512_madd_epi16((__m512i)x, (__m512i)w);
#elif NNS_BLOCK == 8
    return sum + (nns_uvec)_mm256_madd_epi16((__m256i)x, (__m256i)w);
#else
    return sum + (nns_uvec)_mm_madd_epi16((__m128i)x, (__m128i)w);
#endif
}

#else
/* A part is one channel in int32. */
#define INT8_PARTS 4
#define INT8_UNSIGNED 0

NNS_INLINE nns_uvec int8_multiply_add(nns_uvec sum, int8_input x, int8_weight w) { return sum + x * w; }
#endif

/* Kernels for weights within ±64 have names of their own, which those have, too, that multiply quads of any weights at once. A
 * file without such kernels defines INT8_ANY_WEIGHTS. */
#if defined(__x86_64__) && INT8_PARTS == 1 && !defined(INT8_ANY_WEIGHTS)
#undef NNS_KERNEL
#if defined(INT8_NARROW)
#define NNS_KERNEL(stem, name) {name "_narrow", stem##_check, stem##_run},
#else
#define NNS_KERNEL(stem, name) {name, stem##_check, stem##_run}, {name "_narrow", stem##_check, stem##_run},
#endif
#endif

#ifndef INT8_IN_ORDER
#define INT8_IN_ORDER 0
#endif
/* Whether products of quads are sums of long products (NEON without dot products). */
#ifndef INT8_LONG
#define INT8_LONG 0
#endif

/* Whether the instruction multiplies pairs of int16, so that converted inputs are best kept as int16. */
#if INT8_PARTS == 2
#define INT8_WIDE 1
#else
#define INT8_WIDE 0
#endif

#if INT8_PARTS == 2
typedef int16_t int8_pairs __attribute__((vector_size(NNS_BLOCK * 4)));
#endif

/* Part `part`, a constant, of the quads of all lanes. */
NNS_INLINE nns_uvec int8_part_of_quads(nns_uvec quads, const int part) {
#if INT8_PARTS == 1
    (void)part;
    return quads;
#elif INT8_PARTS == 2
    return (nns_uvec)((part ? (int8_pairs)quads : (int8_pairs)quads << 8) >> 8);
#else
    return (nns_uvec)((nns_ivec)(quads << (24 - 8 * part)) >> 24);
#endif
}

/* Part `part`, a constant, of the weights at `from`. */
NNS_INLINE int8_weight int8_part_of_weights(const int8_t *from, const int part) {
    return int8_part_of_quads(compute_load_bits(from), part);
}

/* What inputs are exclusive-ored with. The compiler does not know it, so that one instruction loads, broadcasts and
 * flips a quad. */
NNS_INLINE nns_uvec int8_flips(void) {
    nns_uvec flips = compute_broadcast_bits(INT8_UNSIGNED ? 0x80808080 : 0);
#if INT8_UNSIGNED
    __asm__("" : "+v"(flips));
#endif
    return flips;
}

/* Part `part`, a constant, of the input channels at `from`; `flips` is int8_flips(). */
NNS_INLINE int8_input int8_part_of_input(const int8_t *from, const int part, nns_uvec flips) {
    (void)flips;
#if INT8_PARTS == 1
    (void)part;
    const nns_uvec quad = compute_broadcast_bits(int8_load_quad(from));
    return INT8_UNSIGNED ? quad ^ flips : quad;
#elif INT8_PARTS == 2
    const int8_pairs quad = (int8_pairs)compute_broadcast_bits(int8_load_quad(from));
    return (nns_uvec)((part ? quad : quad << 8) >> 8);
#else
    return compute_broadcast_bits((uint32_t)(int32_t)from[part]);
#endif
}

/* sums[p * row + v] += Σ x[p][channel] · w[channel][v] over the four channels of a quad, for `count` pixels and
 * `vectors` output vectors, both constants. Pixel p's quad lies `at` bytes behind each[p], or with `each` NULL, a
 * constant, behind first + p * NNS_BLOCK. `flips` is int8_flips(). */
NNS_INLINE void int8_add_quad(const int count, const int vectors, nns_uvec *sums, const int row, nns_uvec flips,
                              const int8_t *const *each, const int8_t *first, int64_t at, const int8_t *w) {
#if INT8_IN_ORDER
    /* The sums of one to three vectors leave no registers for all weights of two and three, and none for what the
     * compiler would compute ahead. */
    if (vectors < 4) {
        __asm__ volatile("" ::: "memory");
        const int kept = vectors == 1 ? 1 : vectors - 1; /* weights in registers */
        int8_weight weights[2];
        COMPUTE_FOR(v, kept) weights[v] = compute_load_bits(w + v * NNS_BLOCK * INT8_QUAD);
        COMPUTE_FOR(p, count) {
            nns_uvec *sum = sums + p * row;
            const int8_input x = int8_part_of_input((each ? each[p] : first + p * NNS_BLOCK) + at, 0, flips);
            COMPUTE_FOR(v, kept) sum[v] = int8_multiply_add_next(sum[v], x, weights[v]);
            if (kept < vectors) sum[kept] = int8_multiply_add_at(sum[kept], x, w + kept * NNS_BLOCK * INT8_QUAD);
        }
        return;
    }
#endif
    COMPUTE_FOR(part, INT8_PARTS) {
        int8_weight weights[4];
        COMPUTE_FOR(v, vectors) weights[v] = int8_part_of_weights(w + v * NNS_BLOCK * INT8_QUAD, part);
        COMPUTE_FOR(p, count) {
            const int8_input x = int8_part_of_input((each ? each[p] : first + p * NNS_BLOCK) + at, part, flips);
            COMPUTE_FOR(v, vectors) sums[p * row + v] = int8_multiply_add(sums[p * row + v], x, weights[v]);
        }
    }
}

/* The row of an operand BIAS that sums begin with: int32[2][lanes], first the bias for inputs as they are, then the
 * bias for inputs with 128 added. */
NNS_INLINE const int32_t *int8_bias(const void *operand, int64_t lanes) {
    return (const int32_t *)operand + (INT8_UNSIGNED ? lanes : 0);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* How values, in steps of the result's scale, become int8, or in numbers stay float32. */
typedef struct {
    int32_t low;          /* the lower bound as bits of a value with INT8_ROUNDER added */
    int32_t shift;        /* from these bits to the result */
    int8_t high;          /* the upper bound of the result */
    float residual_scale; /* of a residual's step, in steps of the result */
    int32_t residual_zero;
    float sum_scale;           /* the same of an int8 that sums become before a residual is added; 0: they do not */
    int32_t sum_low, sum_high; /* its bounds, less its zero point, as bits of values with INT8_ROUNDER added */
    float *floats;             /* the output, if results stay float32; else NULL */
    const int8_t *first;       /* the output's address as callers take it: a byte for each result */
    float least, most;         /* bounds of float32 results */
} int8_rounding;

/* 1.5 · 2^23 and its bits: adding it to a float32 rounds to the nearest integer, the even one of two, which is in the
 * low bits. The bits of larger sums are larger, and those of sums below zero negative, so that integers compare as the
 * values do. */
#define INT8_ROUNDER 12582912.0f
#define INT8_ROUNDER_BITS 0x4b400000

NNS_INLINE int8_rounding int8_rounding_of(const rounding_parameters *p, const float_result *result, void *y) {
    const uint32_t least = (uint32_t)result->least, most = (uint32_t)result->most;
    const uint32_t residual = (uint32_t)p->residual_scale, sum = (uint32_t)p->sum_scale;
    const int32_t shift = (int32_t)p->zero - INT8_ROUNDER_BITS, zero_bits = INT8_ROUNDER_BITS - (int32_t)p->sum_zero;
    int8_rounding r = {
        .low = (int32_t)p->low - shift,
        .shift = shift,
        .high = (int8_t)p->high,
        .residual_zero = (int32_t)p->residual_zero,
        .sum_low = INT8_MIN + zero_bits,
        .sum_high = INT8_MAX + zero_bits,
        .floats = result->is_float ? y : NULL,
        .first = y,
    };
    memcpy(&r.least, &least, sizeof least);
    memcpy(&r.most, &most, sizeof most);
    memcpy(&r.residual_scale, &residual, sizeof residual);
    memcpy(&r.sum_scale, &sum, sizeof sum);
    return r;
}

/* Bytes of `count` results; -1 if they are too many. */
NNS_INLINE int64_t int8_result_bytes(int64_t count, const float_result *result) {
    return result->is_float ? NNS_FLOAT_BYTES(count) : count;
}

NNS_INLINE nns_vec int8_to_float(int8_block x, int32_t zero) {
    return __builtin_convertvector(__builtin_convertvector(x, nns_ivec) - zero, nns_vec);
}

NNS_INLINE nns_ivec int8_select(nns_ivec mask, nns_ivec yes, nns_ivec no) { return (mask & yes) | (~mask & no); }

/* Bits of a value with INT8_ROUNDER added, as the result before its upper bound: the int8 next to the value, of two that
 * are as near the even one, or any larger integer. */
NNS_INLINE nns_ivec int8_steps(const int8_rounding *r, nns_vec rounded) {
    const nns_ivec bits = (nns_ivec)rounded, low = (nns_ivec)compute_broadcast_bits((uint32_t)r->low);
    return int8_select(bits > low, bits, low) + r->shift;
}

/* What sums with INT8_ROUNDER added stand for once they are int8, less its zero point. */
NNS_INLINE nns_vec int8_rounded_sums(const int8_rounding *r, nns_vec rounded) {
    const nns_ivec low = (nns_ivec)compute_broadcast_bits((uint32_t)r->sum_low);
    const nns_ivec high = (nns_ivec)compute_broadcast_bits((uint32_t)r->sum_high);
    nns_ivec bits = (nns_ivec)rounded;
    bits = int8_select(bits > low, bits, low);
    return (nns_vec)int8_select(bits < high, bits, high) - INT8_ROUNDER;
}

/* What sums of a block and its residual stand for; `residual` is not NULL. */
NNS_INLINE nns_vec int8_with_residual(const int8_rounding *r, nns_vec sums, nns_vec multipliers, const int8_t *residual) {
    int8_block x;
    memcpy(&x, residual, sizeof x);
    const nns_vec addend = int8_to_float(x, r->residual_zero) * r->residual_scale;
    if (r->sum_scale == 0.0f) return sums * multipliers + addend;
    return int8_rounded_sums(r, sums * multipliers + INT8_ROUNDER) * r->sum_scale + addend;
}

/* A block of results in steps: sums times multipliers, plus the residual at `residual` unless that is NULL. */
NNS_INLINE nns_ivec int8_result(const int8_rounding *r, nns_uvec sum, nns_vec multipliers, const int8_t *residual) {
    const nns_vec value = __builtin_convertvector((nns_ivec)sum, nns_vec);
    if (!residual) return int8_steps(r, value * multipliers + INT8_ROUNDER);
    return int8_steps(r, int8_with_residual(r, value, multipliers, residual) + INT8_ROUNDER);
}

/* The same as float32 numbers within their bounds. */
NNS_INLINE nns_vec int8_float_result(const int8_rounding *r, nns_uvec sum, nns_vec multipliers, const int8_t *residual) {
    const nns_vec value = __builtin_convertvector((nns_ivec)sum, nns_vec);
    const nns_vec all = residual ? int8_with_residual(r, value, multipliers, residual) : value * multipliers;
    return nns_min(nns_broadcast(r->most), nns_max(nns_broadcast(r->least), all));
}

/* A block of results within its upper bound. */
NNS_INLINE int8_block int8_narrow(const int8_rounding *r, nns_ivec steps) {
    const nns_ivec high = (nns_ivec)compute_broadcast_bits((uint32_t)(int32_t)r->high);
    typedef uint8_t bytes __attribute__((vector_size(NNS_BLOCK)));
    return (int8_block)__builtin_convertvector((nns_uvec)int8_select(steps < high, steps, high), bytes);
}

#if NNS_BLOCK == 16 && defined(__AVX512BW__)
/* Four blocks of results are narrowed and stored at once. */
#define INT8_STORED 4

NNS_INLINE void int8_put(const int8_rounding *r, const nns_ivec *steps, int8_t *y) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_packs_epi32((__m512i)steps[0], (__m512i)steps[1]);
    const __m512i high = _mm512_packs_epi32((__m512i)steps[2], (__m512i)steps[3]);
    const __m512i bytes = _mm512_min_epi8(_mm512_packs_epi16(low, high), _mm512_set1_epi8(r->high));
    _mm512_storeu_si512(y, _mm512_permutexvar_epi32(order, bytes));
}
#else
#define INT8_STORED 1

NNS_INLINE void int8_put(const int8_rounding *r, const nns_ivec *steps, int8_t *y) {
    const int8_block made = int8_narrow(r, steps[0]);
    memcpy(y, &made, sizeof made);
}
#endif

/* The same with or without a residual, which is constant. */
NNS_INLINE void int8_store_all(const int count, const int64_t valid, const int8_rounding *r, const nns_uvec *sums,
                               const int row, nns_vec multipliers, const int8_t *residual, int8_t *y) {
    COMPUTE_UNROLL
    for (int first = 0; first < count; first += INT8_STORED) {
        nns_ivec steps[INT8_STORED];
        COMPUTE_FOR(i, INT8_STORED) {
            const int p = first + i < count ? first + i : count - 1;
            if (p < valid)
                steps[i] = int8_result(r, sums[p * row], multipliers, residual ? residual + p * NNS_BLOCK : NULL);
        }
        if (first + INT8_STORED <= count && first + INT8_STORED <= valid) {
            int8_put(r, steps, y + first * NNS_BLOCK);
            continue;
        }
        COMPUTE_FOR(i, INT8_STORED) {
            if (first + i >= count || first + i >= valid) continue;
            const int8_block made = int8_narrow(r, steps[i]);
            memcpy(y + (first + i) * NNS_BLOCK, &made, sizeof made);
        }
    }
}

/* Maximum `count` of int8_store. */
#define INT8_MOST_STORED 28

/* Stores `count` blocks of sums as float32 where int8 results would begin at `y`. Few layers have such results: one function
 * for all tiles keeps these small. */
static __attribute__((noinline, unused)) void int8_store_floats(int64_t count, const int8_rounding *r, const nns_uvec *sums,
                                                                nns_vec multipliers, const int8_t *residual,
                                                                const int8_t *y) {
    float *to = r->floats + (y - r->first);
    for (int64_t p = 0; p < count; p++, to += NNS_BLOCK)
        nns_store(to, int8_float_result(r, sums[p], multipliers, residual ? residual + p * NNS_BLOCK : NULL));
}

/* Stores the first `valid` of `count` blocks of results, neighbours at `y`, with their residual at `residual` or none if
 * that is NULL; sums are `row` vectors apart. `count` and `row` are constants. Results that stay float32 lie as far from the output's
 * begin, in elements, as `y`. */
NNS_INLINE void int8_store(const int count, const int64_t valid, const int8_rounding *rounding, const nns_uvec *sums,
                           const int row, nns_vec multipliers, const int8_t *residual, int8_t *y) {
    const int8_rounding r = *rounding; /* y may be anywhere */
    if (r.floats) {
        nns_uvec blocks[INT8_MOST_STORED]; /* a copy: sums whose address is passed on would leave their registers */
        COMPUTE_FOR(p, count) if (p < valid) blocks[p] = sums[p * row];
        int8_store_floats(nns_min_int(count, valid), &r, blocks, multipliers, residual, y);
    } else if (residual)
        int8_store_all(count, valid, &r, sums, row, multipliers, residual, y);
    else
        int8_store_all(count, valid, &r, sums, row, multipliers, NULL, y);
}

#endif
