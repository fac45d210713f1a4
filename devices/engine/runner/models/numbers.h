/* Random numbers from a seed: the same on every machine. */
#ifndef NNS_NUMBERS_H
#define NNS_NUMBERS_H

#include <stdint.h>

#include "elements.h"

/* Word number `index` of a stream (splitmix64). */
static inline uint64_t nns_word_at(uint64_t stream, uint64_t index) {
    uint64_t word = stream + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

/* Number `index` of mean 0 and variance 1: the sum of the twelve 16-bit parts of the words 3 · index to 3 · index + 2 of a
 * stream, less 6 · 65535, divided by 65536. It is nearly normal, and a float32 has it without a rounding. */
static inline double nns_normal_at(uint64_t stream, uint64_t index) {
    int32_t sum = -6 * 65535;
    for (uint64_t k = 0; k < 3; k++) {
        const uint64_t word = nns_word_at(stream, 3 * index + k);
        sum += (int32_t)((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48));
    }
    return sum / 65536.0;
}

/* Fills input number `input` of a model with random numbers (nns_random_number): normal ones, or the lowest bits of words. The
 * stream is word number `input` of the stream `seed`. */
static inline void nns_fill_random(const nns_tensor *tensor, void *array, uint64_t seed, uint64_t input) {
    const uint64_t stream = nns_word_at(seed, input);
    for (int64_t i = 0; i < tensor->count; i++) {
        const uint64_t index = (uint64_t)i;
        const double value = nns_random_number(tensor, nns_normal_at(stream, index), nns_word_at(stream, index));
        nns_set_element(tensor, array, i, value);
    }
}

#endif
