/* Words that come from outside, of which nothing is known: each is compared with the range that later code relies on. */
#ifndef NNS_WORDS_H
#define NNS_WORDS_H

#include "status.h"

/* What is left to read. */
typedef struct {
    const int64_t *at, *end;
    const char *prefix, *whole; /* how complaints begin, and what they call all the words */
    nns_report *report;
} nns_words;

/* Leaves the calling function with the status of a part that failed. */
#define TRY(expression)                        \
    do {                                       \
        const int32_t status_ = (expression);  \
        if (status_ != NNS_OK) return status_; \
    } while (0)

/* The next word, which `what` names in complaints and which must be within [low, high]. */
static inline int32_t nns_take(nns_words *words, int64_t *value, const char *what, int64_t low, int64_t high) {
    if (words->at == words->end)
        return nns_fail(words->report, NNS_EINVALID, "%s%s ends before %s", words->prefix, words->whole, what);
    *value = *words->at++;
    if (*value < low || *value > high)
        return nns_fail(words->report, NNS_EINVALID, "%s%s is %lld; it must be in %lld..%lld", words->prefix, what,
                        (long long)*value, (long long)low, (long long)high);
    return NNS_OK;
}

#endif
