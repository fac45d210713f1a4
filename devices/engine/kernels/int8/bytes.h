/* Shared by the int8 kernels that memory bounds: vectors of 16 integers, and rounding of float32 to them.
 *
 * An int8 q stands for scale * (q - zero). Kernels get scales as float32, ratios of scales where two meet, and the
 * bounds of the result, into which an activation that clips has gone. */
#ifndef NNS_BYTES_H
#define NNS_BYTES_H

#include "memory_bound/memory_bound.h"

typedef int8_t i8x4 __attribute__((vector_size(4)));
typedef int8_t i8x8 __attribute__((vector_size(8)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef int8_t i8x64 __attribute__((vector_size(64)));

NNS_INLINE i8x16 bytes_load(const int8_t *from) {
    i8x16 value;
    memcpy(&value, from, sizeof value);
    return value;
}

NNS_INLINE void bytes_store(int8_t *to, i8x16 value) { memcpy(to, &value, sizeof value); }

/* The first `n` of 16 integers (0 <= n <= 16); the others are 0. */
NNS_INLINE i8x16 bytes_load_some(const int8_t *from, int64_t n) {
    i8x16 value = {0};
    memcpy(&value, from, (size_t)n);
    return value;
}

NNS_INLINE void bytes_store_some(int8_t *to, i8x16 value, int64_t n) { memcpy(to, &value, (size_t)n); }

/* The 16 integers that repeat `lanes` integers. */
NNS_INLINE i8x16 bytes_repeat(const int8_t *values, int64_t lanes) {
    int8_t pattern[16];
    for (int64_t i = 0; i < 16; i++) pattern[i] = values[i & (lanes - 1)];
    return bytes_load(pattern);
}

NNS_INLINE f32x16 floats_of(i8x16 value) {
    return __builtin_convertvector(__builtin_convertvector(value, i32x16), f32x16);
}

/* How results become int8: the bounds less the zero point, and the zero point. */
typedef struct {
    float low, high;
    int32_t zero;
} rounding;

NNS_INLINE rounding rounding_of(int64_t zero, int64_t low, int64_t high) {
    return (rounding){(float)(low - zero), (float)(high - zero), (int32_t)zero};
}

/* Added to a float32 within ±2^22, it leaves the nearest integer, the even one of two, in the lowest bits of the sum. */
#define ROUNDER 12582912.0f

/* Steps as int8: rounded to the nearest integer, the even one of two, plus the zero point, within the bounds. What is not
 * a number becomes the lower bound. */
NNS_INLINE i8x16 round16(f32x16 steps, const rounding *r) {
    const f32x16 low = splat16(r->low), high = splat16(r->high);
    steps = CHOOSE(steps > low, steps, low);
    steps = CHOOSE(steps < high, steps, high);
    return __builtin_convertvector((i32x16)(steps + ROUNDER) + r->zero, i8x16);
}

#endif
