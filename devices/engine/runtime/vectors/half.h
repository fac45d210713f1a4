/* Floats that are stored as float16 (IEEE 754 binary16). */
#ifndef NNS_HALF_H
#define NNS_HALF_H

#include "vector.h"

#if defined(__x86_64__) && NNS_BLOCK > 4
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* NNS_BLOCK numbers that are 0 or finite and not subnormal, at any address of an uint16_t. */
NNS_INLINE nns_vec nns_load_half(const uint16_t *from) {
#if defined(__x86_64__) && NNS_BLOCK == 16
    return (nns_vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined(__x86_64__) && NNS_BLOCK == 8
    return (nns_vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#elif defined(__aarch64__)
    return (nns_vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    typedef uint16_t halves __attribute__((vector_size(NNS_BLOCK * 2)));
    halves read;
    memcpy(&read, from, sizeof read);
    const nns_uvec bits = __builtin_convertvector(read, nns_uvec);
    /* The exponent's bias is 15 in place of 127. */
    const nns_vec size = (nns_vec)((bits & 0x7fff) << 13) * 0x1p112f;
    return (nns_vec)((nns_uvec)size | (bits & 0x8000) << 16);
#endif
}

#endif
