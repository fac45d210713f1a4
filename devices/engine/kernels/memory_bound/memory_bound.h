/* Shared by the memory-bound kernels (pool, eltwise, concat, softmax, normalization, resize, reorder, strided).
 *
 * They see a tensor as rows of floats with 1 lane per pixel (plain layout) or 4, 8 or 16 (blocked layout), so that one
 * source serves both. Vectors that need not be a pixel hold 16 floats on every machine: every number
 * of lanes divides 16, and the compiler splits them.
 */
#ifndef NNS_MEMORY_BOUND_H
#define NNS_MEMORY_BOUND_H

#include <float.h>

#include "epilogue.h"

/* Output per unit of the kernels that walk flat memory: half of a first-level cache. */
#define CHUNK_BYTES 16384
#define CHUNK ((int64_t)(CHUNK_BYTES / sizeof(float)))

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

/* For .inc files, which are included once per count of lanes of a pixel: the functions and the vectors for LANES
 * floats. */
#define LANED(name) NNS_JOIN(name##_, LANES)
#define VECTOR NNS_JOIN(f32x, LANES)
#define IVECTOR NNS_JOIN(i32x, LANES)
typedef float f32x1;
#define LOAD(from)                              \
    ({                                          \
        VECTOR value_;                          \
        memcpy(&value_, from, sizeof value_);   \
        value_;                                 \
    })

/* `yes` in the lanes where the comparison `mask` holds, else `no`; for vectors of any width. */
#define CHOOSE(mask, yes, no)                                                                       \
    ({                                                                                              \
        const __typeof__(mask) mask_ = (mask);                                                      \
        (__typeof__(yes))((mask_ & (__typeof__(mask_))(yes)) | (~mask_ & (__typeof__(mask_))(no))); \
    })

NNS_INLINE f32x16 load16(const float *from) {
    f32x16 value;
    memcpy(&value, from, sizeof value);
    return value;
}

NNS_INLINE void store16(float *to, f32x16 value) { memcpy(to, &value, sizeof value); }

NNS_INLINE f32x16 splat16(float x) { return (f32x16){0} + x; }

/* ceil(a / b) for b > 0 and a of any sign. */
NNS_INLINE int64_t ceil_divide(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : -(-a / b); }

/* First element of part `index` of `parts` parts of `count` elements that differ by at most one. */
NNS_INLINE int64_t part_begin(int64_t count, int64_t parts, int64_t index) {
    return count / parts * index + nns_min_int(index, count % parts);
}

/* The 16 floats that repeat `lanes` floats. */
NNS_INLINE f32x16 repeat16(const float *values, int64_t lanes) {
    if (lanes == 1) return splat16(values[0]);
    if (lanes == 16) return load16(values);
    float pattern[16];
    for (int64_t i = 0; i < 16; i++) pattern[i] = values[i & (lanes - 1)];
    return load16(pattern);
}

/* ---- epilogues: `clamp` each value while it is in a register, then `finish` the row while it is in cache --------- */

/* Comparisons are written such that NaN stays. */
NNS_INLINE f32x16 clamp16(f32x16 x, const epilogue *activation) {
    const f32x16 low = splat16(activation->low), high = splat16(activation->high);
    x = CHOOSE(x < low, low, x);
    return CHOOSE(x > high, high, x);
}

NNS_INLINE float clamp1(float x, const epilogue *activation) {
    x = x < activation->low ? activation->low : x;
    return x > activation->high ? activation->high : x;
}

/* Applies activations that are no clamp to `n` floats in place. */
NNS_INLINE void finish(float *x, int64_t n, const epilogue *activation) {
    if (activation->second_pass) epilogue_second_pass(activation, x, n);
}

/* The whole activation in place, for kernels that rarely have one. */
NNS_INLINE void clamp_and_finish(float *x, int64_t n, const epilogue *activation) {
    if (activation->bounded_below || activation->bounded_above)
        for (int64_t i = 0; i < n; i++) x[i] = clamp1(x[i], activation);
    finish(x, n, activation);
}

#endif
