/* Products of float16: rounding, and vectors of two blocks of numbers that one instruction multiplies and adds.
 *
 * Sums are of float16, too, and their errors grow with their sizes. So they have few terms, MOST_TERMS at most, and are then added
 * to sums of float32. With n terms, an error is at most (n + 2) · 2 to the power of -11 times the sum of the terms' sizes, whatever
 * the number of channels; where terms have either sign, it is about the square root of n / 6 times 2 to the power of -11, relative
 * to the standard deviation of results.
 *
 * Inputs of a unit of work are multiplied by a power of two, weights of an output by another, such that no sum of MOST_TERMS
 * products is beyond the range of float16, and no number is denormal that matters beside the largest. Sums of float32 are
 * multiplied by the reciprocals. So results are finite where they are finite in float32, for inputs and weights of any size. */
#ifndef NNS_FLOAT16_PRODUCT_H
#define NNS_FLOAT16_PRODUCT_H

#include "compute.h"
#include "float16/bits.h"

/* A float16's bits. */
typedef uint16_t float16;

/* F16_NATIVE: whether the CPU has arithmetic of float16 vectors.
 * F16_KERNELS: whether there are kernels. On 64-bit ARM, they require this arithmetic. On other architectures, for which no plans
 * are made, they are slow and have sums of float32; the fuzzer runs them. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define F16_NATIVE 1
#else
#define F16_NATIVE 0
#endif
#if F16_NATIVE || !defined(__aarch64__)
#define F16_KERNELS 1
#else
#define F16_KERNELS 0
#endif

enum {
    F16_LANES = 2 * NNS_BLOCK, /* numbers of a vector */
    F16_INPUTS = 4,            /* input channels of a load */
    F16_TAP = F16_LANES * F16_LANES, /* weights of F16_LANES input channels for a vector */
};

/* Least and largest size of the largest input that needs no factor: weights are at most 1. */
#define F16_LEAST_INPUT 0x1p-6f
#define F16_LARGEST_INPUT 0x1p8f
/* The largest float16 is 65504; rounding makes sums larger by a tenth at most. */
_Static_assert(MOST_TERMS * 256 <= 59000, "a sum of float16 may overflow");

#if F16_NATIVE
typedef _Float16 f16_vec __attribute__((vector_size(16)));
typedef _Float16 f16_inputs __attribute__((vector_size(8)));

#define F16_FENCE() __asm__ volatile("" ::: "memory")

NNS_INLINE f16_vec f16_zero(void) { return (f16_vec){0}; }

NNS_INLINE f16_vec f16_load(const float16 *from) {
    f16_vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE f16_inputs f16_load_inputs(const float16 *from) {
    f16_inputs v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE void f16_store(float16 *to, nns_vec low, nns_vec high) {
    const float16x8_t v = vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)low), (float32x4_t)high);
    memcpy(to, &v, sizeof v);
}

NNS_INLINE f16_vec f16_of(f16_inputs x, int i) {
    switch (i) {
    case 0: return __builtin_shufflevector(x, x, 0, 0, 0, 0, 0, 0, 0, 0);
    case 1: return __builtin_shufflevector(x, x, 1, 1, 1, 1, 1, 1, 1, 1);
    case 2: return __builtin_shufflevector(x, x, 2, 2, 2, 2, 2, 2, 2, 2);
    default: return __builtin_shufflevector(x, x, 3, 3, 3, 3, 3, 3, 3, 3);
    }
}

/* sum + w · x[i]. */
NNS_INLINE f16_vec f16_multiply_add(f16_vec sum, f16_vec w, f16_inputs x, int i) { return sum + w * f16_of(x, i); }

NNS_INLINE nns_vec f16_low(f16_vec v) { return (nns_vec)vcvt_f32_f16(vget_low_f16((float16x8_t)v)); }
NNS_INLINE nns_vec f16_high(f16_vec v) { return (nns_vec)vcvt_high_f32_f16((float16x8_t)v); }

/* The address `at` numbers behind `from`, in a register: loads near it add what is a constant. */
NNS_INLINE const float16 *f16_behind(const float16 *from, int64_t at) {
    from += at;
    __asm__("" : "+r"(from));
    return from;
}

/* The address `at` bytes behind `from`. It stays a sum of two registers, which the load adds. */
NNS_INLINE const float16 *f16_at(const float16 *from, int64_t at) {
    __asm__("" : "+r"(at));
    return (const float16 *)((const char *)from + at);
}

#else

typedef struct {
    nns_vec low, high;
} f16_vec;
typedef struct {
    float of[F16_INPUTS];
} f16_inputs;

#define F16_FENCE() (void)0

NNS_INLINE f16_vec f16_zero(void) { return (f16_vec){nns_zero(), nns_zero()}; }

NNS_INLINE f16_vec f16_load(const float16 *from) {
    float wide[F16_LANES];
    for (int i = 0; i < F16_LANES; i++) wide[i] = from_half(from[i]);
    return (f16_vec){nns_load(wide), nns_load(wide + NNS_BLOCK)};
}

NNS_INLINE f16_inputs f16_load_inputs(const float16 *from) {
    f16_inputs x;
    for (int i = 0; i < F16_INPUTS; i++) x.of[i] = from_half(from[i]);
    return x;
}

NNS_INLINE void f16_store(float16 *to, nns_vec low, nns_vec high) {
    for (int i = 0; i < NNS_BLOCK; i++) to[i] = to_half(low[i]);
    for (int i = 0; i < NNS_BLOCK; i++) to[NNS_BLOCK + i] = to_half(high[i]);
}

NNS_INLINE f16_vec f16_multiply_add(f16_vec sum, f16_vec w, f16_inputs x, int i) {
    const nns_vec input = nns_broadcast(x.of[i]);
    return (f16_vec){sum.low + w.low * input, sum.high + w.high * input};
}

NNS_INLINE nns_vec f16_low(f16_vec v) { return v.low; }
NNS_INLINE nns_vec f16_high(f16_vec v) { return v.high; }
NNS_INLINE const float16 *f16_behind(const float16 *from, int64_t at) { return from + at; }
NNS_INLINE const float16 *f16_at(const float16 *from, int64_t at) { return (const float16 *)((const char *)from + at); }

#endif

/* The power of two for inputs whose largest has this size. */
NNS_INLINE float f16_factor(float largest) {
    if (largest >= F16_LEAST_INPUT && largest < F16_LARGEST_INPUT) return 1;
    const int64_t wanted = (int64_t)bits_of(F16_LARGEST_INPUT / 2) - (int64_t)(bits_of(largest) & EXPONENT(255));
    return nns_float_of_bits(EXPONENT(nns_min_int(127 + (wanted >> 23), 253)));
}

NNS_INLINE nns_vec f16_sizes(nns_vec x) { return (nns_vec)((nns_uvec)x & 0x7fffffffu); }

/* Adds the products of F16_LANES input channels to sums of float16: sums[p * vectors + v] += Σ x[channel] · w[v][channel] for
 * `count` pixels, whose inputs lie `at` bytes behind each[p], and `vectors` output vectors, whose weights lie `to_next` apart;
 * counts are constants. Weights of four channels stay in registers, inputs pass by loads of 64 bits, beside which a Cortex-A55
 * issues a multiply-add. */
NNS_INLINE void f16_block(const int count, const int vectors, f16_vec *sums, const float16 *const *each, int64_t at,
                          const float16 *w, int64_t to_next) {
    enum { AT_ONCE = 4 };
    const float16 *of_vector[2];
    COMPUTE_FOR(v, vectors) of_vector[v] = f16_behind(w, v * to_next);
    COMPUTE_FOR(group, F16_LANES / F16_INPUTS) {
        const int channel = group * F16_INPUTS;
        f16_vec weights[F16_INPUTS * 2];
        COMPUTE_FOR(i, F16_INPUTS) {
            COMPUTE_FOR(v, vectors) weights[i * vectors + v] = f16_load(of_vector[v] + (channel + i) * F16_LANES);
        }
        COMPUTE_UNROLL for (int first = 0; first < count; first += AT_ONCE) {
            const int pixels = count - first < AT_ONCE ? count - first : AT_ONCE;
            f16_inputs inputs[AT_ONCE];
            COMPUTE_FOR(p, pixels) {
                inputs[p] = f16_load_inputs(f16_at(each[first + p], at + channel * (int64_t)sizeof(float16)));
            }
            COMPUTE_FOR(i, F16_INPUTS) COMPUTE_FOR(p, pixels) COMPUTE_FOR(v, vectors) {
                f16_vec *sum = sums + (first + p) * vectors + v;
                *sum = f16_multiply_add(*sum, weights[i * vectors + v], inputs[p], i);
            }
            F16_FENCE();
        }
    }
}

#endif
