/* Transposes NNS_BLOCK vectors in registers. */
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

#endif
