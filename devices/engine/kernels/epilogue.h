/* The activation of a result: a clamp while it is in registers, or for other kinds a second pass while it is in the
 * cache. */
#ifndef NNS_EPILOGUE_H
#define NNS_EPILOGUE_H

#include <math.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "family.h"

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

/* nns_max and nns_min of a bound and a result. NEON has instructions that keep a result that is not a number, too. */
#if defined(__aarch64__)
NNS_INLINE nns_vec epilogue_max(nns_vec low, nns_vec x) { return (nns_vec)vmaxq_f32((float32x4_t)low, (float32x4_t)x); }
NNS_INLINE nns_vec epilogue_min(nns_vec high, nns_vec x) {
    return (nns_vec)vminq_f32((float32x4_t)high, (float32x4_t)x);
}
#else
#define epilogue_max nns_max
#define epilogue_min nns_min
#endif

NNS_INLINE nns_vec epilogue_clamp(const epilogue *e, nns_vec x) {
    return epilogue_min(nns_broadcast(e->high), epilogue_max(nns_broadcast(e->low), x));
}

/* The second pass over `rows` rows of `n` floats; row r begins `at[r]` floats from `y`. Not inlined, to keep its exponentials
 * out of every tile. Each kind has its own loop, which loads its constants once. */
#define EPILOGUE_CASE(kind)                                                  \
    case kind:                                                               \
        nns_activate_rows(y, at, rows, n, (nns_activation){kind, a, b});     \
        break;
static __attribute__((noinline, unused)) void epilogue_rows(const epilogue *e, float *y, const int64_t *at, int rows,
                                                            int64_t n) {
    const float a = e->activation.a, b = e->activation.b;
    switch (e->activation.kind) {
        EPILOGUE_CASE(NNS_ACT_SIGMOID)
        EPILOGUE_CASE(NNS_ACT_SILU)
        EPILOGUE_CASE(NNS_ACT_HARD_SIGMOID)
        EPILOGUE_CASE(NNS_ACT_HARD_SWISH)
        EPILOGUE_CASE(NNS_ACT_LEAKY_RELU)
        EPILOGUE_CASE(NNS_ACT_TANH)
        EPILOGUE_CASE(NNS_ACT_EXP)
        EPILOGUE_CASE(NNS_ACT_GELU)
        EPILOGUE_CASE(NNS_ACT_GELU_TANH)
        EPILOGUE_CASE(NNS_ACT_SWISH)
        EPILOGUE_CASE(NNS_ACT_MISH)
        EPILOGUE_CASE(NNS_ACT_SOFTPLUS)
        EPILOGUE_CASE(NNS_ACT_ELU)
        EPILOGUE_CASE(NNS_ACT_SELU)
        EPILOGUE_CASE(NNS_ACT_ERF)
    default: break;
    }
}
#undef EPILOGUE_CASE

NNS_INLINE void epilogue_second_pass(const epilogue *e, float *y, int64_t n) {
    epilogue_rows(e, y, (const int64_t[]){0}, 1, n);
}

/* Rows that wait for the second pass: several at a time share its constants, and are still in the nearest cache. */
enum { EPILOGUE_WAITING = 8 };
typedef struct {
    int64_t at[EPILOGUE_WAITING]; /* floats from the first row of all */
    int rows;
} epilogue_waiting;

/* Adds the row of `n` floats at `row`; with `last`, none is left waiting. `y` is the first row of all. */
NNS_INLINE void epilogue_wait(const epilogue *e, epilogue_waiting *waiting, float *y, const float *row, int64_t n, bool last) {
    if (!e->second_pass) return;
    waiting->at[waiting->rows++] = row - y;
    if (waiting->rows < EPILOGUE_WAITING && !last) return;
    epilogue_rows(e, y, waiting->at, waiting->rows, n);
    waiting->rows = 0;
}

#endif
