/* Bounds-checked reader for untrusted input: every word is compared with the range that later code relies on. */
#ifndef NNS_READER_H
#define NNS_READER_H

#include <stdlib.h>

#include "status.h"

/* The words that are left to read. */
typedef struct {
    const int64_t *at, *end;
    const char *prefix; /* of error messages */
    const char *source; /* what the messages call the input */
    nns_report *report;
} nns_reader;

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

/* Reads a list: a count up to `most`, then that many numbers within [low, high]. `list` points into the input. */
static inline int32_t nns_read_list(nns_reader *reader, const int64_t **list, int64_t *count, int64_t most,
                                    const char *what, int64_t low, int64_t high) {
    TRY(nns_read(reader, count, what, 0, most));
    if (*count > reader->end - reader->at)
        return nns_fail(reader->report, NNS_EINVALID, "%s%s: %lld are more than %s holds", reader->prefix, what,
                        (long long)*count, reader->source);
    *list = reader->at;
    for (const int64_t *end = reader->at + *count; reader->at < end; reader->at++)
        if (*reader->at < low || *reader->at > high)
            return nns_fail(reader->report, NNS_EINVALID, "%s%s: %lld is outside %lld..%lld", reader->prefix, what,
                            (long long)*reader->at, (long long)low, (long long)high);
    return NNS_OK;
}

/* A zeroed array of at least one element; NULL and a report on failure. */
static inline void *nns_new_array(nns_report *report, int64_t count, size_t size) {
    void *memory = count <= NNS_MOST_BYTES ? calloc(count ? (size_t)count : 1, size) : NULL;
    if (!memory) nns_fail(report, NNS_EMEMORY, "no memory for a program of %lld parts", (long long)count);
    return memory;
}

#endif
