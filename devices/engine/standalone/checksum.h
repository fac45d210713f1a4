/* The check of a model file, over all its bytes. It finds each change within one 64-bit word for certain, since a step is
 * a bijection of its state, and others but for one in 2^64. It is no protection against forgery.
 *
 * The words of a page go to one sum each. So the steps of a page do not depend on each other, and the check runs about
 * as fast as memory is read. nnstretch/package/standalone.py has the same function. */
#ifndef NNS_CHECKSUM_H
#define NNS_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { NNS_CHECK_SUMS = 512, NNS_CHECK_PAGE = NNS_CHECK_SUMS * 8 };

#define NNS_CHECK_FACTOR UINT64_C(0x9e3779b97f4a7c15) /* odd */

static inline uint64_t nns_check_step(uint64_t state, uint64_t word) {
    state ^= word;
    return (state << 27 | state >> 37) * NNS_CHECK_FACTOR;
}

static inline void nns_check_page(uint64_t *sums, const void *page) {
    for (int i = 0; i < NNS_CHECK_SUMS; i++) {
        uint64_t word;
        memcpy(&word, (const char *)page + 8 * i, sizeof word);
        sums[i] = nns_check_step(sums[i], word);
    }
}

/* The check of a file of `bytes` bytes, whose word number `place` (in the first page) holds the check and counts as 0. The
 * last page is filled up with zeros. */
static inline uint64_t nns_checksum(const void *file, size_t bytes, int place) {
    uint64_t sums[NNS_CHECK_SUMS], buffer[NNS_CHECK_SUMS], check = bytes;
    for (int i = 0; i < NNS_CHECK_SUMS; i++) sums[i] = (uint64_t)(i + 1) * NNS_CHECK_FACTOR;
    for (size_t at = 0; at < bytes; at += NNS_CHECK_PAGE) {
        const size_t left = bytes - at < NNS_CHECK_PAGE ? bytes - at : NNS_CHECK_PAGE;
        const void *page = (const char *)file + at;
        if (!at || left < NNS_CHECK_PAGE) {
            memset(buffer, 0, sizeof buffer);
            page = memcpy(buffer, page, left);
            if (!at) buffer[place] = 0;
        }
        nns_check_page(sums, page);
    }
    for (int i = 0; i < NNS_CHECK_SUMS; i++) check = nns_check_step(check, sums[i]);
    return check;
}

#endif
