#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nns_die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

void *nns_new(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) nns_die("no memory for %zu items of %zu bytes; give fewer or smaller models", count, size);
    return memory;
}

char *nns_copy_text(const char *text) {
    const size_t bytes = strlen(text) + 1;
    return memcpy(nns_new(bytes, 1), text, bytes);
}
