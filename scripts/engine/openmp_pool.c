/* devices/engine/runtime/threads/pool.h on OpenMP, for comparison (NeoCPU, figure 4). Each task is a parallel region whose threads
 * compute the shares of their bounds, without stealing. OMP_PLACES and OMP_PROC_BIND place the threads.
 * pool_benchmark.py builds an engine with it in place of the engine's pool. */
#include "threads/pool.h"

#include <omp.h>
#include <stdlib.h>

#include "threads/threads.h"

struct nns_pool {
    int32_t n_threads;
    void **scratch; /* one per thread */
    nns_turn turn;
};

nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, bool tied, int32_t ordinal, nns_report *report) {
    (void)cores, (void)tied, (void)ordinal;
    nns_pool *pool = calloc(1, sizeof *pool);
    void **scratch = calloc((size_t)nns_max_int(n_cores, 1), sizeof *scratch);
    if (!pool || !scratch) {
        nns_fail(report, NNS_EMEMORY, "no memory for a pool of %d threads", (int)n_cores);
        free(scratch);
        free(pool);
        return NULL;
    }
    pool->n_threads = (int32_t)nns_max_int(n_cores, 1);
    pool->scratch = scratch;
    nns_turn_init(&pool->turn);
    omp_set_dynamic(0);
    return pool;
}

void nns_pool_release(nns_pool *pool) {
    for (int32_t i = 0; i < pool->n_threads; i++) free(pool->scratch[i]);
    nns_turn_destroy(&pool->turn);
    free(pool->scratch);
    free(pool);
}

int32_t nns_pool_reserve(nns_pool *pool, int64_t bytes, nns_report *report) {
    for (int32_t i = 0; i < pool->n_threads; i++) {
        free(pool->scratch[i]);
        pool->scratch[i] = aligned_alloc(NNS_CACHE_LINE, (size_t)(bytes / NNS_CACHE_LINE + 1) * NNS_CACHE_LINE);
        if (!pool->scratch[i]) return nns_fail(report, NNS_EMEMORY, "no memory for %lld bytes of scratch", (long long)bytes);
    }
    return NNS_OK;
}

void nns_pool_enter(nns_pool *pool, int64_t spin_ns) { (void)pool, (void)spin_ns; }

void nns_pool_leave(nns_pool *pool) { (void)pool; }

bool nns_pool_contended(const nns_pool *pool) {
    (void)pool;
    return false;
}

void nns_pools_forget(void) {}

void nns_pool_lock(nns_pool *pool) { nns_turn_lock(&pool->turn); }

void nns_pool_unlock(nns_pool *pool) { nns_turn_unlock(&pool->turn); }

bool nns_pool_try_lock(nns_pool *pool, nns_waiter *waiter) { return nns_turn_try_lock(&pool->turn, waiter); }

void nns_pool_withdraw(nns_pool *pool, nns_waiter *waiter) { nns_turn_withdraw(&pool->turn, waiter); }

int64_t nns_pool_call_begins(const nns_pool *pool) {
    (void)pool;
    return 0;
}

void nns_pool_call_ends(const nns_pool *pool, int64_t began) { (void)pool, (void)began; }

static void run_part(const nns_pool *pool, const nns_task *task, int32_t thread) {
    const int64_t begin = task->bounds[thread] * task->grain, end = task->bounds[thread + 1] * task->grain;
    if (pool->scratch[thread]) *(uint64_t *)pool->scratch[thread] = 0;
    if (begin < end) task->kernel->run(task->args, begin, nns_min_int(end, task->units), pool->scratch[thread]);
}

void nns_pool_run(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times) {
    for (int64_t i = 0; i < n_tasks; i++) {
        const nns_task *task = &tasks[i];
        if (times) times[2 * i] = nns_now();
        if (pool->n_threads == 1) {
            run_part(pool, task, 0);
        } else {
#pragma omp parallel num_threads(pool->n_threads)
            run_part(pool, task, omp_get_thread_num());
        }
        if (times) times[2 * i + 1] = nns_now();
    }
}
