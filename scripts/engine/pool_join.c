/* Barriers of the engine's thread pools, for pool_benchmark.py, which links it with each pool. */
#include <stdlib.h>

#include "threads/pool.h"
#include "threads/threads.h"

static const char *check_nothing(const nns_args *args, nns_work *work) {
    *work = (nns_work){.units = args->n_p};
    return NULL;
}

static void run_nothing(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)args, (void)begin, (void)end, (void)scratch;
}

static double time_lists(nns_pool *pool, int32_t n_cores, int32_t steps, nns_task *tasks, uint16_t *bounds) {
    enum { LISTS = 50 };
    static const nns_kernel nothing = {"nothing", check_nothing, run_nothing};
    static const nns_args args;
    for (int32_t i = 0; i < steps; i++)
        nns_task_make(&tasks[i], &nothing, &args, n_cores, NULL, n_cores, bounds, i ? &tasks[i - 1] : NULL);
    int64_t best = INT64_MAX;
    nns_pool_enter(pool, 1000000);
    nns_pool_lock(pool);
    for (int list = 0; list < LISTS; list++) {
        const int64_t begin = nns_now();
        nns_pool_run(pool, tasks, steps, NULL);
        best = nns_min_int(best, nns_now() - begin);
    }
    nns_pool_unlock(pool);
    nns_pool_leave(pool);
    return (double)best / steps;
}

/* Nanoseconds between two empty steps on a pool with one thread per core: the smallest mean of several lists of
 * `steps` steps. -1 on failure. The calling thread moves to the first core during the measurement. */
NNS_EXPORT double nns_join_ns(const int32_t *cores, int32_t n_cores, int32_t steps);

double nns_join_ns(const int32_t *cores, int32_t n_cores, int32_t steps) {
    if (n_cores < 1 || n_cores > NNS_MAX_CORES || steps < 1) return -1;
    for (int32_t i = 0; i < n_cores; i++)
        if (cores[i] < 0 || cores[i] >= NNS_MAX_CORES) return -1;
    nns_report report = {0};
    cpu_set_t before;
    bool moved = false;
    if (nns_thread_pin(cores, n_cores, &before, &moved, &report)) return -1;
    nns_pool *pool = nns_pool_acquire(cores, n_cores, false, 0, &report);
    nns_task *tasks = calloc((size_t)steps, sizeof *tasks);
    uint16_t *bounds = calloc((size_t)n_cores + 1, sizeof *bounds);
    const double ns = pool && tasks && bounds ? time_lists(pool, n_cores, steps, tasks, bounds) : -1;
    free(bounds);
    free(tasks);
    if (pool) nns_pool_release(pool);
    if (moved) nns_thread_restore(&before);
    return ns;
}
