/* Shared by the memory-bound kernels (pool, eltwise, concat, softmax, resize, reorder, strided).
 *
 * They see a tensor as rows of floats with 1 lane per pixel (plain layout) or 4, 8 or 16 (blocked layout), so that one
 * source serves both. Vectors that need not be a pixel hold 16 floats on every machine: every number
 * of lanes divides 16, and the compiler splits them.
 */
#ifndef NNS_MEMORY_BOUND_H
#define NNS_MEMORY_BOUND_H

#include <float.h>

#include "family.h"

/* Output per unit of the kernels that walk flat memory: half of a first-level cache. */
#define CHUNK_BYTES 16384
#define CHUNK ((int64_t)(CHUNK_BYTES / sizeof(float)))

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

/* PASTE(load_, LANES): names of the functions that a .inc file defines for each count of lanes. */
#define PASTE_(name, lanes) name##lanes
#define PASTE(name, lanes) PASTE_(name, lanes)

/* `yes` in the lanes where the comparison `mask` holds, else `no`; for vectors of any width. */
#define CHOOSE(mask, yes, no)                                                                                          \
    ({                                                                                                                 \
        const __typeof__(mask) mask_ = (mask);                                                                         \
        (__typeof__(yes))((mask_ & (__typeof__(mask_))(yes)) | (~mask_ & (__typeof__(mask_))(no)));                    \
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

/* ---- activations: `clamp` each value while it is in a register, then `finish` the row while it is in cache --------- */

/* None, ReLU and Clip are a clamp; the other kinds clamp to infinities and cost a second pass. */
typedef struct {
    nns_activation rest; /* kind NNS_ACT_NONE if the clamp is all */
    float low, high;
} memory_bound_activation;

NNS_INLINE memory_bound_activation activation_of(const activation_parameters *activation) {
    memory_bound_activation result = {nns_activation_read(&activation->kind), -__builtin_inff(), __builtin_inff()};
    if (result.rest.kind == NNS_ACT_RELU) result.low = 0.0f;
    if (result.rest.kind == NNS_ACT_CLIP) {
        result.low = result.rest.a;
        result.high = result.rest.b;
    }
    if (result.rest.kind == NNS_ACT_RELU || result.rest.kind == NNS_ACT_CLIP) result.rest.kind = NNS_ACT_NONE;
    return result;
}

/* Comparisons are written such that NaN stays. */
NNS_INLINE f32x16 clamp16(f32x16 x, const memory_bound_activation *activation) {
    const f32x16 low = splat16(activation->low), high = splat16(activation->high);
    x = CHOOSE(x < low, low, x);
    return CHOOSE(x > high, high, x);
}

NNS_INLINE float clamp1(float x, const memory_bound_activation *activation) {
    x = x < activation->low ? activation->low : x;
    return x > activation->high ? activation->high : x;
}

/* Applies activations that are no clamp to `n` floats in place. One loop per kind. */
NNS_INLINE void finish(float *x, int64_t n, const memory_bound_activation *activation) {
    const float a = activation->rest.a, b = activation->rest.b;
    switch (activation->rest.kind) {
    case NNS_ACT_SIGMOID: nns_activate_all(x, n, (nns_activation){NNS_ACT_SIGMOID, a, b}); break;
    case NNS_ACT_SILU: nns_activate_all(x, n, (nns_activation){NNS_ACT_SILU, a, b}); break;
    case NNS_ACT_HARD_SIGMOID: nns_activate_all(x, n, (nns_activation){NNS_ACT_HARD_SIGMOID, a, b}); break;
    case NNS_ACT_HARD_SWISH: nns_activate_all(x, n, (nns_activation){NNS_ACT_HARD_SWISH, a, b}); break;
    case NNS_ACT_LEAKY_RELU: nns_activate_all(x, n, (nns_activation){NNS_ACT_LEAKY_RELU, a, b}); break;
    case NNS_ACT_TANH: nns_activate_all(x, n, (nns_activation){NNS_ACT_TANH, a, b}); break;
    case NNS_ACT_EXP: nns_activate_all(x, n, (nns_activation){NNS_ACT_EXP, a, b}); break;
    default: break;
    }
}

/* The whole activation in place, for kernels that rarely have one. */
NNS_INLINE void clamp_and_finish(float *x, int64_t n, const memory_bound_activation *activation) {
    if (activation->low != -__builtin_inff() || activation->high != __builtin_inff())
        for (int64_t i = 0; i < n; i++) x[i] = clamp1(x[i], activation);
    finish(x, n, activation);
}

#endif
