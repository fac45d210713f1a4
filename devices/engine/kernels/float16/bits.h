/* Numbers of float16 as bits, made by arithmetic that every machine has: rounded to nearest, ties to even. It makes no denormal
 * float32, because runs may flush these. */
#ifndef NNS_FLOAT16_BITS_H
#define NNS_FLOAT16_BITS_H

#include "family.h"

NNS_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exponents are biased by 15 in float16, and by 127 in float32. Denormal float16 are multiples of 2 to the power of -24. */
#define EXPONENT(exponent) ((uint32_t)(exponent) << 23)
#define LEAST_NORMAL_HALF 0x0400u
#define INFINITE_HALF 0x7c00u

NNS_INLINE float from_half(uint16_t half) {
    const uint32_t size = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t finite = (size << 13) + EXPONENT(127 - 15), infinite = (size << 13) + EXPONENT(255 - 31);
    const uint32_t denormal = bits_of((float)(int32_t)size * 0x1p-24f);
    return nns_float_of_bits(sign | (size < LEAST_NORMAL_HALF ? denormal : size < INFINITE_HALF ? finite : infinite));
}

NNS_INLINE uint16_t to_half(float value) {
    const uint32_t bits = bits_of(value), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    /* The sum with 1/2 has steps of 2 to the power of -24. Of larger numbers it is not used. */
    const uint32_t denormal = bits_of(nns_float_of_bits(size) + 0.5f) - bits_of(0.5f);
    const uint32_t normal = (size - EXPONENT(127 - 15) + 0xfffu + (size >> 13 & 1)) >> 13;
    const uint32_t finite = size < EXPONENT(127 - 14) ? denormal : normal;
    const uint32_t large = size > EXPONENT(255) ? 0x7e00u : INFINITE_HALF; /* not a number, or too large */
    return (uint16_t)(sign | (size < EXPONENT(127 + 16) ? finite : large));
}

#endif
