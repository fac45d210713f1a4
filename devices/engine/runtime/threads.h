/* Threads of the engine. */
#ifndef NNS_THREADS_H
#define NNS_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* Starts a thread that may run on those cores only (anywhere if there are none) and takes no signals, so that they
 * reach the program's own threads. */
int32_t nns_thread_start(pthread_t *thread, const char *name, const int32_t *cores, int32_t n_cores,
                         void *(*body)(void *), void *argument, nns_report *report);

/* Moves the calling thread to a core. `before` gets its affinity, and the answer says in `moved` whether it changed. */
int32_t nns_thread_pin(int32_t core, cpu_set_t *before, bool *moved, nns_report *report);
void nns_thread_restore(const cpu_set_t *before);

#endif
