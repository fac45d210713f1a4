/* What a child process forgets after a fork: locks that other threads of the parent held then, thread pools, and runs
 * in progress. None of these threads exists in the child. Programs of the parent are refused there (nns_program_run),
 * new ones work. */
#include <pthread.h>

#include "run/opencl.h"
#include "run/run.h"

static void forget_parent(void) {
    atomic_store(&nns_working, 0);
    atomic_store(&nns_gated, 0);
    nns_pools_forget();
    nns_opencl_unlock_loading();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_parent); }
