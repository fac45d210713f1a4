/* The arrays of a run. nnstretch.h is shipped with this file in place of its #include. */
#ifndef NNS_ARRAYS_H
#define NNS_ARRAYS_H

#include <stdint.h>

/* One input of a run: its address and its size in bytes. */
typedef struct {
    const void *data;
    int64_t bytes;
} nns_input;

/* One output of a run. */
typedef struct {
    void *data;
    int64_t bytes;
} nns_output;

#endif
