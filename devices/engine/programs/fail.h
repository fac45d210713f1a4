/* Errors that end a program. */
#ifndef NNS_FAIL_H
#define NNS_FAIL_H

#include <stddef.h>

/* Writes one line, which begins with "error: ", to the standard error and exits with status 2. */
_Noreturn void nns_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed memory for `count` elements, at least one; ends the program if there is none. */
void *nns_new(size_t count, size_t size);

/* A copy of a text; ends the program if there is no memory. */
char *nns_copy_text(const char *text);

#endif
