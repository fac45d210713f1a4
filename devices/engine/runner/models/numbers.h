/* Random numbers from a seed: the same on every machine. */
#ifndef NNS_NUMBERS_H
#define NNS_NUMBERS_H

#include <stdint.h>

/* Word number `index` of a stream (splitmix64). */
static inline uint64_t nns_word_at(uint64_t stream, uint64_t index) {
    uint64_t word = stream + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

/* Fills input number `input` of a model with numbers of mean 0 and variance 1. Number i is the sum of the twelve 16-bit
 * parts of the words 3i to 3i + 2 of the input's stream, less 6 · 65535, divided by 65536: nearly normal, and without a
 * rounding that could differ between machines. The stream is word number `input` of the stream `seed`. */
static inline void nns_fill_normal(float *numbers, int64_t count, uint64_t seed, uint64_t input) {
    const uint64_t stream = nns_word_at(seed, input);
    for (int64_t i = 0; i < count; i++) {
        int32_t sum = -6 * 65535;
        for (uint64_t k = 0; k < 3; k++) {
            const uint64_t word = nns_word_at(stream, 3 * (uint64_t)i + k);
            sum += (int32_t)((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48));
        }
        numbers[i] = (float)sum / 65536.0f;
    }
}

#endif
