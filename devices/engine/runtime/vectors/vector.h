/* Vectors of NNS_BLOCK floats: loads, stores, selection and sums over lanes. */
#ifndef NNS_VECTOR_H
#define NNS_VECTOR_H

#include <stdint.h>
#include <string.h>

#ifndef NNS_BLOCK
#error "NNS_BLOCK must be the number of floats per vector: 16, 8 or 4"
#endif

#ifdef NNS_SANITIZED /* instrumented copies would take most of the compile time */
#define NNS_INLINE static __attribute__((unused))
#else
#define NNS_INLINE static inline __attribute__((always_inline, unused))
#endif

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

/* Initialises all lanes with `x`, so that no addition to zero is left in the code. */
#if NNS_BLOCK == 16
#define NNS_ALL_LANES(x) {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}
#elif NNS_BLOCK == 8
#define NNS_ALL_LANES(x) {x, x, x, x, x, x, x, x}
#else
#define NNS_ALL_LANES(x) {x, x, x, x}
#endif
NNS_INLINE nns_vec nns_broadcast(float x) { return (nns_vec)NNS_ALL_LANES(x); }
NNS_INLINE nns_vec nns_zero(void) { return (nns_vec){0}; }

/* `mask` has all bits set in the lanes that take `yes`; comparisons of vectors give such masks. */
NNS_INLINE nns_vec nns_select(nns_ivec mask, nns_vec yes, nns_vec no) {
    return (nns_vec)((mask & (nns_ivec)yes) | (~mask & (nns_ivec)no));
}

/* Largest and smallest per lane. Where a lane of either is NaN, the answer is the second's: write the bound first and
 * the value second to keep NaN. */
NNS_INLINE nns_vec nns_max(nns_vec a, nns_vec b) { return nns_select(a > b, a, b); }
NNS_INLINE nns_vec nns_min(nns_vec a, nns_vec b) { return nns_select(a < b, a, b); }

/* The sum of all lanes, by halves. */
NNS_INLINE float nns_sum_lanes(nns_vec v) {
#if NNS_BLOCK == 16
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
#elif NNS_BLOCK == 8
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
#endif
    return (v[0] + v[2]) + (v[1] + v[3]);
}

NNS_INLINE float nns_max_lanes(nns_vec v) {
    float best = v[0];
    for (int i = 1; i < NNS_BLOCK; i++) best = v[i] > best ? v[i] : best;
    return best;
}

#endif
