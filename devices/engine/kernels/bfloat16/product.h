/* Products of bfloat16 in float32: rounding, and pairs of numbers that one instruction multiplies and adds. */
#ifndef NNS_BFLOAT16_PRODUCT_H
#define NNS_BFLOAT16_PRODUCT_H

#include "compute.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* The upper half of a float32's bits. */
typedef uint16_t bfloat16;

/* Two numbers per lane; the first is in the low half. */
typedef nns_uvec bf16_pairs;

/* The pair at `from` in all lanes. */
NNS_INLINE bf16_pairs bf16_broadcast(const bfloat16 *from) {
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return compute_broadcast_bits(pair);
}

/* BF16_NATIVE: whether the CPU has instructions for such products, and 32 vector registers. No plan is made for others.
 * BF16_QUADS: whether it has instructions for products of small matrices, too. */
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define BF16_QUADS 1
#else
#define BF16_QUADS 0
#endif

#if defined(__AVX512BF16__) && NNS_BLOCK == 16
#define BF16_NATIVE 1

NNS_INLINE nns_vec bf16_multiply_add(nns_vec sum, bf16_pairs x, bf16_pairs w) {
    return (nns_vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}

NNS_INLINE void bf16_store(bfloat16 *to, nns_vec x) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &rounded, sizeof rounded);
}

/* The same for two vectors, one after the other in memory. */
#define BF16_BLOCKS_AT_ONCE 2
NNS_INLINE void bf16_store_two(bfloat16 *to, nns_vec first, nns_vec second) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    memcpy(to, &rounded, sizeof rounded);
}

#else

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define BF16_NATIVE 1
NNS_INLINE nns_vec bf16_multiply_add(nns_vec sum, bf16_pairs x, bf16_pairs w) {
    return (nns_vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)w);
}
#else
#define BF16_NATIVE 0
NNS_INLINE nns_vec bf16_multiply_add(nns_vec sum, bf16_pairs x, bf16_pairs w) {
    sum += (nns_vec)(x << 16) * (nns_vec)(w << 16);
    return sum + (nns_vec)(x & 0xffff0000u) * (nns_vec)(w & 0xffff0000u);
}
#endif

/* Stores the nearest bfloat16 of each number, of two the even one. */
NNS_INLINE void bf16_store(bfloat16 *to, nns_vec x) {
    typedef bfloat16 block __attribute__((vector_size(NNS_BLOCK * sizeof(bfloat16))));
    const nns_uvec bits = (nns_uvec)x, rounded = bits + 0x7fffu + (bits >> 16 & 1);
    const nns_uvec numbers = (nns_uvec)(x == x); /* adding to what is not a number may make it one */
    const block result = __builtin_convertvector(((rounded & numbers) | ((bits | 0x00400000u) & ~numbers)) >> 16, block);
    memcpy(to, &result, sizeof result);
}
#define BF16_BLOCKS_AT_ONCE 1

#endif

#endif
