/* Bounds-checked reader for untrusted input: every word is compared with the range that later code relies on. */
#ifndef NNS_READER_H
#define NNS_READER_H

#include "status.h"

/* The words that are left to read. */
typedef struct {
    const int64_t *at, *end;
    const char *prefix; /* of error messages */
    const char *source; /* what the messages call the input */
    nns_report *report;
} nns_reader;

/* Returns the status of a failed expression from the calling function. */
#define TRY(expression)                        \
    do {                                       \
        const int32_t status_ = (expression);  \
        if (status_ != NNS_OK) return status_; \
    } while (0)

/* Reads the next word, which must be within [low, high]. `what` names it in error messages. */
static inline int32_t nns_read(nns_reader *reader, int64_t *value, const char *what, int64_t low, int64_t high) {
    if (reader->at == reader->end)
        return nns_fail(reader->report, NNS_EINVALID, "%s%s ends before %s", reader->prefix, reader->source, what);
    *value = *reader->at++;
    if (*value < low || *value > high)
        return nns_fail(reader->report, NNS_EINVALID, "%s%s is %lld; it must be in %lld..%lld", reader->prefix, what,
                        (long long)*value, (long long)low, (long long)high);
    return NNS_OK;
}

#endif
