/* Transposes NNS_BLOCK vectors in registers, and reduces each of them. */
#ifndef NNS_TRANSPOSE_H
#define NNS_TRANSPOSE_H

#include "vectors/kernel.h"

#if NNS_BLOCK == 16
#define TRANSPOSE_INDICES(f, s)                                                                                   \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#elif NNS_BLOCK == 8
#define TRANSPOSE_INDICES(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define TRANSPOSE_INDICES(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif

/* Swaps the off-diagonal halves of every 2·step × 2·step sub-matrix. */
#define TRANSPOSE_LOW(lane, step) ((lane) & (step) ? NNS_BLOCK + (lane) - (step) : (lane))
#define TRANSPOSE_HIGH(lane, step) ((lane) & (step) ? NNS_BLOCK + (lane) : (lane) + (step))
#define TRANSPOSE_SWAP(step)                                                                                         \
    _Pragma("GCC unroll 16") for (int i = 0; i < NNS_BLOCK; i++) {                                                   \
        if (i & (step)) continue;                                                                                    \
        const nns_vec low =                                                                                          \
            __builtin_shufflevector(v[i], v[i + (step)], TRANSPOSE_INDICES(TRANSPOSE_LOW, step));                    \
        v[i + (step)] = __builtin_shufflevector(v[i], v[i + (step)], TRANSPOSE_INDICES(TRANSPOSE_HIGH, step));       \
        v[i] = low;                                                                                                  \
    }

NNS_INLINE void transpose_block(nns_vec *v) {
    TRANSPOSE_SWAP(1)
    TRANSPOSE_SWAP(2)
#if NNS_BLOCK > 4
    TRANSPOSE_SWAP(4)
#endif
#if NNS_BLOCK > 8
    TRANSPOSE_SWAP(8)
#endif
}

/* Lane i of the answer is the largest lane, or the sum of the lanes, of vector i. Each step halves the number of vectors. */
#define REDUCE_OWN(lane, step) ((lane) & (step) ? NNS_BLOCK + (lane) : (lane))
#define REDUCE_OTHER(lane, step) ((lane) & (step) ? NNS_BLOCK + (lane) - (step) : (lane) + (step))
#define REDUCE_HALVE(step, combine)                                                                               \
    _Pragma("GCC unroll 8") for (int i = 0; i < (step); i++) {                                                    \
        const nns_vec own = __builtin_shufflevector(v[i], v[i + (step)], TRANSPOSE_INDICES(REDUCE_OWN, step));    \
        const nns_vec other = __builtin_shufflevector(v[i], v[i + (step)], TRANSPOSE_INDICES(REDUCE_OTHER, step)); \
        v[i] = combine(own, other);                                                                               \
    }
#if NNS_BLOCK == 16
#define REDUCE_EACH(combine)                                                                                      \
    REDUCE_HALVE(8, combine) REDUCE_HALVE(4, combine) REDUCE_HALVE(2, combine) REDUCE_HALVE(1, combine)
#elif NNS_BLOCK == 8
#define REDUCE_EACH(combine) REDUCE_HALVE(4, combine) REDUCE_HALVE(2, combine) REDUCE_HALVE(1, combine)
#else
#define REDUCE_EACH(combine) REDUCE_HALVE(2, combine) REDUCE_HALVE(1, combine)
#endif
#define REDUCE_SUM(a, b) ((a) + (b))

NNS_INLINE nns_vec max_of_each(nns_vec *v) {
    REDUCE_EACH(nns_max)
    return v[0];
}

NNS_INLINE nns_vec sum_of_each(nns_vec *v) {
    REDUCE_EACH(REDUCE_SUM)
    return v[0];
}

#endif
