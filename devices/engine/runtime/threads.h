/* Threads of the engine. */
#ifndef NNS_THREADS_H
#define NNS_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* Starts a thread that runs on the given cores only (on any core if there are none). It blocks all signals, so
 * that the application's threads receive them. */
int32_t nns_thread_start(pthread_t *thread, const char *name, const int32_t *cores, int32_t n_cores,
                         void *(*body)(void *), void *argument, nns_report *report);

/* Moves the calling thread to a core. `before` receives its affinity, `moved` whether that changed. */
int32_t nns_thread_pin(int32_t core, cpu_set_t *before, bool *moved, nns_report *report);
void nns_thread_restore(const cpu_set_t *before);

#endif
