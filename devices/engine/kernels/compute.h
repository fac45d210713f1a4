/* Shared by the compute-bound kernels (convolutions, dense layers): unrolling, half vectors, blocks of channels. */
#ifndef NNS_COMPUTE_H
#define NNS_COMPUTE_H

#include "epilogue.h"

/* For loops whose trip count is constant after inlining, so that their arrays stay in registers. */
#if defined(__clang__)
#define COMPUTE_UNROLL _Pragma("unroll")
#define COMPUTE_UNROLL_TWICE _Pragma("unroll 2")
#define COMPUTE_UNROLL_NINE _Pragma("unroll 9")
#else
#define COMPUTE_UNROLL _Pragma("GCC unroll 32")
#define COMPUTE_UNROLL_TWICE _Pragma("GCC unroll 2")
#define COMPUTE_UNROLL_NINE _Pragma("GCC unroll 9")
#endif

/* A loop of `i` from 0 to a count that is constant after inlining. */
#define COMPUTE_FOR(i, count) COMPUTE_UNROLL for (int i = 0; i < (count); i++)

/* For loops over the lanes of a block. With short blocks, the loop overhead per lane is large. */
#if NNS_BLOCK == 16
#define COMPUTE_UNROLL_LANES COMPUTE_UNROLL_TWICE
#else
#define COMPUTE_UNROLL_LANES COMPUTE_UNROLL
#endif

/* Calls `function(n, …)` with the constant n that equals `count`, which is 1 to `most`, a constant up to
 * COMPUTE_MOST_COUNT. */
enum { COMPUTE_MOST_COUNT = 28 };
#define COMPUTE_CASE(n, most, function, ...)                         \
    case n:                                                          \
        if (n <= (most)) function(n <= (most) ? n : 1, __VA_ARGS__); \
        break;
#define COMPUTE_BY_COUNT(count, most, ...)                                                                          \
    switch (count) {                                                                                                \
        COMPUTE_CASE(1, most, __VA_ARGS__) COMPUTE_CASE(2, most, __VA_ARGS__) COMPUTE_CASE(3, most, __VA_ARGS__)    \
        COMPUTE_CASE(4, most, __VA_ARGS__) COMPUTE_CASE(5, most, __VA_ARGS__) COMPUTE_CASE(6, most, __VA_ARGS__)    \
        COMPUTE_CASE(7, most, __VA_ARGS__) COMPUTE_CASE(8, most, __VA_ARGS__) COMPUTE_CASE(9, most, __VA_ARGS__)    \
        COMPUTE_CASE(10, most, __VA_ARGS__) COMPUTE_CASE(11, most, __VA_ARGS__) COMPUTE_CASE(12, most, __VA_ARGS__) \
        COMPUTE_CASE(13, most, __VA_ARGS__) COMPUTE_CASE(14, most, __VA_ARGS__) COMPUTE_CASE(15, most, __VA_ARGS__) \
        COMPUTE_CASE(16, most, __VA_ARGS__) COMPUTE_CASE(17, most, __VA_ARGS__) COMPUTE_CASE(18, most, __VA_ARGS__) \
        COMPUTE_CASE(19, most, __VA_ARGS__) COMPUTE_CASE(20, most, __VA_ARGS__) COMPUTE_CASE(21, most, __VA_ARGS__) \
        COMPUTE_CASE(22, most, __VA_ARGS__) COMPUTE_CASE(23, most, __VA_ARGS__) COMPUTE_CASE(24, most, __VA_ARGS__) \
        COMPUTE_CASE(25, most, __VA_ARGS__) COMPUTE_CASE(26, most, __VA_ARGS__) COMPUTE_CASE(27, most, __VA_ARGS__) \
        COMPUTE_CASE(28, most, __VA_ARGS__)                                                                         \
    }

/* X(n, …) for each n from 1 to COMPUTE_MOST_EACH. Where it defines functions, they compile in less time than one with
 * COMPUTE_BY_COUNT, which grows faster than its size. */
enum { COMPUTE_MOST_EACH = 14 };
#define COMPUTE_EACH_COUNT(X, ...)                                                                                 \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)    \
    X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__) \
    X(13, __VA_ARGS__) X(14, __VA_ARGS__)

/* Whether the CPU has 32 vector registers; else it has 16. Selects the register tiles. */
#if NNS_BLOCK == 16 || defined(__aarch64__)
#define COMPUTE_MANY_REGISTERS 1
#else
#define COMPUTE_MANY_REGISTERS 0
#endif

/* Ends the multiply-adds of an input with `vectors` weights for some of `count` sums: both are constants, and `sum` is a vector.
 * Where all sums, weights and this input take every register, neither may a later load come before nor a multiply-add move
 * behind: the compiler would run out of registers and keep sums in memory. */
#if defined(__x86_64__) && !COMPUTE_MANY_REGISTERS
#define COMPUTE_IN_REGISTER(sum, count, vectors) \
    if ((count) + (vectors) + 1 >= 16) __asm__ volatile("" : "+x"(sum) : : "memory")
#else
#define COMPUTE_IN_REGISTER(sum, count, vectors) (void)0
#endif

/* Whether blocks of four input channels are multiplied by element (by_element.h). */
#if defined(__aarch64__)
#define COMPUTE_BY_ELEMENT 1
#else
#define COMPUTE_BY_ELEMENT 0
#endif

/* The bits at `from`, and the same ones in all lanes: for vectors of narrower numbers that are multiplied several at a time. */
NNS_INLINE nns_uvec compute_load_bits(const void *from) {
    nns_uvec v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE nns_uvec compute_broadcast_bits(uint32_t x) { return (nns_uvec)NNS_ALL_LANES(x); }

/* Half vectors of 8 floats, which compute groups of 8, 24 or 40 channels without padding. */
#if NNS_BLOCK == 16
#define COMPUTE_HALVES 1

typedef float compute_half __attribute__((vector_size(NNS_BLOCK * 2)));

NNS_INLINE compute_half half_load(const float *from) {
    compute_half v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE void half_store(float *to, compute_half v) { memcpy(to, &v, sizeof v); }

NNS_INLINE compute_half half_broadcast(float x) { return (compute_half){x, x, x, x, x, x, x, x}; }

NNS_INLINE nns_vec half_widen(compute_half v) {
    return __builtin_shufflevector(v, (compute_half){0}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

NNS_INLINE compute_half half_of(nns_vec v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }

NNS_INLINE compute_half half_max(compute_half a, compute_half b) {
    return half_of(nns_max(half_widen(a), half_widen(b)));
}

NNS_INLINE compute_half half_min(compute_half a, compute_half b) {
    return half_of(nns_min(half_widen(a), half_widen(b)));
}
#else
#define COMPUTE_HALVES 0
#endif

/* Number of blocks for `channels` channels. */
NNS_INLINE int64_t blocks_of(int64_t channels) { return nns_ceil_div(channels, NNS_BLOCK); }

#endif
