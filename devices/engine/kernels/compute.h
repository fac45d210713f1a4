/* Shared by the compute-bound kernels (convolutions, dense layers): half vectors, tap ranges and the epilogue. */
#ifndef NNS_COMPUTE_H
#define NNS_COMPUTE_H

#include <math.h>

#include "family.h"

/* For loops whose trip count is constant after inlining, so that their arrays stay in registers. */
#if defined(__clang__)
#define COMPUTE_UNROLL _Pragma("unroll")
#define COMPUTE_UNROLL_TWICE _Pragma("unroll 2")
#else
#define COMPUTE_UNROLL _Pragma("GCC unroll 32")
#define COMPUTE_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

/* For loops over the lanes of a block. With short blocks, the loop overhead per lane is large. */
#if NNS_BLOCK == 16
#define COMPUTE_UNROLL_LANES COMPUTE_UNROLL_TWICE
#else
#define COMPUTE_UNROLL_LANES COMPUTE_UNROLL
#endif

#define COMPUTE_JOIN_(a, b) a##b
#define COMPUTE_JOIN(a, b) COMPUTE_JOIN_(a, b)
#define COMPUTE_TEXT_(a) #a
#define COMPUTE_TEXT(a) COMPUTE_TEXT_(a)

/* Whether the CPU has 32 vector registers; else it has 16. Selects the register tiles. */
#if NNS_BLOCK == 16 || defined(__aarch64__)
#define COMPUTE_MANY_REGISTERS 1
#else
#define COMPUTE_MANY_REGISTERS 0
#endif

/* Half vectors of 8 floats, which compute groups of 8, 24 or 40 channels without padding. */
#if NNS_BLOCK == 16
#define COMPUTE_HALVES 1
#define COMPUTE_HALF (NNS_BLOCK / 2)

typedef float compute_half __attribute__((vector_size(COMPUTE_HALF * 4)));

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

/* ---- geometry ----------------------------------------------------------------------------------------------------- */

/* The taps of a kernel that start at `first` (may be negative) and lie within [0, extent): a half-open range. */
typedef struct {
    int64_t begin, end;
} tap_range;

NNS_INLINE tap_range taps_inside(int64_t first, int64_t taps, int64_t dilation, int64_t extent) {
    const int64_t begin = first >= 0 ? 0 : nns_ceil_div(-first, dilation);
    const int64_t end = first >= extent ? 0 : nns_min_int(taps, (extent - 1 - first) / dilation + 1);
    return (tap_range){begin, nns_max_int(begin, end)};
}

/* Number of blocks for `channels` channels. */
NNS_INLINE int64_t blocks_of(int64_t channels) { return nns_ceil_div(channels, NNS_BLOCK); }

/* ---- epilogue ----------------------------------------------------------------------------------------------------- */

/* The activation of a tile: a clamp in registers, or for other kinds a second pass over the stored tile. */
typedef struct {
    float low, high;
    bool bounded_below, bounded_above, second_pass;
    nns_activation activation;
} epilogue;

NNS_INLINE epilogue epilogue_of(const activation_parameters *activation) {
    epilogue e = {.low = -INFINITY, .high = INFINITY, .activation = nns_activation_read(&activation->kind)};
    switch (e.activation.kind) {
    case NNS_ACT_NONE: break;
    case NNS_ACT_RELU:
        e.low = 0;
        e.bounded_below = true;
        break;
    case NNS_ACT_CLIP:
        e.low = e.activation.a;
        e.high = e.activation.b;
        e.bounded_below = e.bounded_above = true;
        break;
    default: e.second_pass = true;
    }
    return e;
}

NNS_INLINE nns_vec epilogue_clamp(const epilogue *e, nns_vec x) {
    return nns_min(nns_broadcast(e->high), nns_max(nns_broadcast(e->low), x));
}

/* Not inlined, to keep its exponentials out of every tile. Frequent kinds have their own loops with a constant kind. */
static __attribute__((noinline, unused)) void epilogue_second_pass(const epilogue *e, float *y, int64_t n) {
    const float a = e->activation.a, b = e->activation.b;
    switch (e->activation.kind) {
    case NNS_ACT_HARD_SIGMOID: nns_activate_all(y, n, (nns_activation){NNS_ACT_HARD_SIGMOID, a, b}); break;
    case NNS_ACT_HARD_SWISH: nns_activate_all(y, n, (nns_activation){NNS_ACT_HARD_SWISH, a, b}); break;
    case NNS_ACT_LEAKY_RELU: nns_activate_all(y, n, (nns_activation){NNS_ACT_LEAKY_RELU, a, b}); break;
    case NNS_ACT_SIGMOID: nns_activate_all(y, n, (nns_activation){NNS_ACT_SIGMOID, a, b}); break;
    case NNS_ACT_SILU: nns_activate_all(y, n, (nns_activation){NNS_ACT_SILU, a, b}); break;
    default: nns_activate_all(y, n, e->activation);
    }
}

#endif
