/* Threads of drivers that run kernels on CPU cores. */
#ifndef NNS_OCL_WORKERS_H
#define NNS_OCL_WORKERS_H

#include <sys/types.h>

#include "drivers.h"

enum { NNS_OCL_MOST_WORKERS = 1024 };

typedef struct {
    pid_t ids[NNS_OCL_MOST_WORKERS];
    int32_t count;
} nns_ocl_threads;

/* The threads of this process, ascending; none if they cannot be listed. */
void nns_ocl_list_threads(nns_ocl_threads *threads);
/* Leaves the threads that are not in `before`. */
void nns_ocl_new_threads(nns_ocl_threads *threads, const nns_ocl_threads *before);
/* Binds a thread to cores. */
void nns_ocl_bind_thread(pid_t thread, const int32_t *cores, int32_t count);

#endif
