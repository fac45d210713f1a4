/* Products of a block of input channels for NEON (vectors of 4 floats, 32 registers), which multiplies a vector by one
 * element of another. One load brings two or four input channels of a pixel, where a broadcast brings one.
 *
 * The order of loads suits cores that issue in order: weights and inputs are loaded a few multiply-adds before their
 * use, and successive multiply-adds have different sums. ELEMENT_FENCE keeps it so; without it the compiler collects
 * loads at the start of the block and runs out of registers. Inputs come by loads of 64 bits where registers allow,
 * because a Cortex-A55 issues no load of 128 bits beside a multiply-add. */
#ifndef NNS_BY_ELEMENT_H
#define NNS_BY_ELEMENT_H

#include "compute.h"

#if COMPUTE_BY_ELEMENT

/* Pixels of a cache line. */
#define ELEMENT_LINE_PIXELS 4

#define ELEMENT_FENCE() __asm__ volatile("" ::: "memory")

/* Two input channels of a pixel. */
typedef float element_pair __attribute__((vector_size(8)));

/* Inputs of a tile: pixel p's channels lie `at` bytes behind each[p]. With `each` NULL, which is a constant, pixels lie
 * beside each other from `first` on. */
typedef struct {
    const float *const *each;
    const float *first;
    int64_t at;
} element_inputs;

/* The address of channel `channel` of pixel `p`. */
NNS_INLINE const float *element_at(const element_inputs *x, int p, int channel) {
    if (!x->each) return x->first + p * NNS_BLOCK + channel;
    int64_t at = x->at + channel * (int64_t)sizeof(float);
    __asm__("" : "+r"(at)); /* the address stays a sum of two registers, which the load adds */
    return (const float *)((const char *)x->each[p] + at);
}

/* Prefetches `count` pixels that lie beside each other. */
NNS_INLINE void element_fetch(const int count, const float *x) {
    COMPUTE_UNROLL for (int p = 0; p < count; p += ELEMENT_LINE_PIXELS) __builtin_prefetch(x + p * NNS_BLOCK);
}

/* Channels 2 · `half` and 2 · `half` + 1 of pixel `p`. */
NNS_INLINE element_pair element_load_pair(const element_inputs *x, int p, int half) {
    element_pair pair;
    memcpy(&pair, element_at(x, p, 2 * half), sizeof pair);
    return pair;
}

NNS_INLINE nns_vec element_of_pair(element_pair x, int i) {
    return i ? __builtin_shufflevector(x, x, 1, 1, 1, 1) : __builtin_shufflevector(x, x, 0, 0, 0, 0);
}

NNS_INLINE nns_vec element_of(nns_vec x, int i) {
    switch (i) {
    case 0: return __builtin_shufflevector(x, x, 0, 0, 0, 0);
    case 1: return __builtin_shufflevector(x, x, 1, 1, 1, 1);
    case 2: return __builtin_shufflevector(x, x, 2, 2, 2, 2);
    default: return __builtin_shufflevector(x, x, 3, 3, 3, 3);
    }
}

/* Three or four output vectors: two channels of all inputs stay in registers, weights pass. */
NNS_INLINE void element_block_wide(const int count, const int vectors, nns_vec *sums, const int row,
                                   const element_inputs *x, const float *w) {
    nns_vec inputs[COMPUTE_MOST_COUNT];
    COMPUTE_FOR(p, count) inputs[p] = nns_load(element_at(x, p, 0));
    COMPUTE_FOR(i, 4 * vectors) {
        const nns_vec weights = nns_load(w + i * NNS_BLOCK);
        COMPUTE_FOR(p, count) sums[p * row + i % vectors] += weights * element_of(inputs[p], i / vectors);
        if (i % (2 * vectors) == 0) ELEMENT_FENCE();
    }
}

/* Two output vectors: weights of two channels stay in registers, inputs pass. */
NNS_INLINE void element_block_two(const int count, nns_vec *sums, const int row, const element_inputs *x,
                                  const float *w) {
    COMPUTE_FOR(half, 2) {
        nns_vec weights[4];
        COMPUTE_FOR(i, 4) weights[i] = nns_load(w + (4 * half + i) * NNS_BLOCK);
        COMPUTE_UNROLL for (int first = 0; first < count; first += 2) {
            const int pixels = count - first < 2 ? 1 : 2;
            element_pair inputs[2];
            COMPUTE_FOR(p, pixels) inputs[p] = element_load_pair(x, first + p, half);
            COMPUTE_FOR(i, 2) COMPUTE_FOR(p, pixels) COMPUTE_FOR(v, 2)
                sums[(first + p) * row + v] += weights[2 * i + v] * element_of_pair(inputs[p], i);
            ELEMENT_FENCE();
        }
    }
}

/* One output vector: weights of four channels stay in registers, inputs pass. */
NNS_INLINE void element_block_one(const int count, nns_vec *sums, const int row, const element_inputs *x,
                                  const float *w) {
    nns_vec weights[4];
    COMPUTE_FOR(i, 4) weights[i] = nns_load(w + i * NNS_BLOCK);
    COMPUTE_UNROLL for (int first = 0; first < count; first += 4) {
        const int pixels = count - first < 4 ? count - first : 4;
        nns_vec inputs[4];
        COMPUTE_FOR(p, pixels) inputs[p] = nns_load(element_at(x, first + p, 0));
        COMPUTE_FOR(i, 4) COMPUTE_FOR(p, pixels) sums[(first + p) * row] += weights[i] * element_of(inputs[p], i);
        ELEMENT_FENCE();
    }
}

/* sums[p * row + v] += Σ x[p][channel] · w[channel][v] over the four channels of a block, for `count` pixels and
 * `vectors` output vectors, both constants. */
NNS_INLINE void element_block(const int count, const int vectors, nns_vec *sums, const int row,
                              const element_inputs *x, const float *w) {
    if (vectors == 1)
        element_block_one(count, sums, row, x, w);
    else if (vectors == 2)
        element_block_two(count, sums, row, x, w);
    else
        element_block_wide(count, vectors, sums, row, x, w);
}

/* sums[p * row + v] += x[p] · w[v], for `count` neighbouring floats of a plane and `vectors` output vectors, both
 * constants. Reads up to three floats more. */
NNS_INLINE void element_tap(const int count, const int vectors, nns_vec *sums, const int row, const float *x,
                            const float *w) {
    const int many = vectors == 2 ? 2 : 4; /* inputs of a load */
    nns_vec weights[COMPUTE_MOST_COUNT];
    COMPUTE_FOR(v, vectors) {
        weights[v] = nns_load(w + v * NNS_BLOCK);
        if (vectors == 2) ELEMENT_FENCE(); /* no load of a pair, which takes long on a Cortex-A55 */
    }
    COMPUTE_UNROLL for (int first = 0; first < count; first += many) {
        nns_vec inputs = nns_zero();
        memcpy(&inputs, x + first, (size_t)many * sizeof(float));
        COMPUTE_FOR(i, many) {
            if (first + i >= count) continue;
            COMPUTE_FOR(v, vectors) sums[(first + i) * row + v] += weights[v] * element_of(inputs, i);
        }
    }
}

#endif
#endif
