/* Error reports: a status and one line of text. */
#ifndef NNS_STATUS_H
#define NNS_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include "nns_engine.h"

#define NNS_TEXT 256

/* The largest memory of this process, in bytes: less than 2 GB on a 32-bit CPU. Sizes that come from outside are at most
 * that, so that size_t holds them. */
#define NNS_MOST_BYTES ((int64_t)PTRDIFF_MAX)

/* Returns the status of a failed expression from the calling function. */
#define TRY(expression)                        \
    do {                                       \
        const int32_t status_ = (expression);  \
        if (status_ != NNS_OK) return status_; \
    } while (0)

typedef struct {
    int32_t status;
    char text[NNS_TEXT];
} nns_report;

/* Sets status and text, and returns the status. */
int32_t nns_fail(nns_report *report, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Copies the text of a report to the caller's buffer, which may be NULL, and returns the status. */
int32_t nns_answer(const nns_report *report, char *error, int64_t error_size);

#endif
