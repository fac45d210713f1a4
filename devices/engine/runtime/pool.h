/* Fork-join pools of pinned threads (NeoCPU, section 3.1.2).
 *
 * A pool of n threads has n - 1 workers; the thread that calls nns_pool_run is the first of the n. It hands every worker
 * the whole list of tasks at once, through a pair of signals that only these two touch; a task is one kernel call. Then
 * every thread walks the list by itself, so that between two tasks there is one meeting and no order to wait for.
 *
 * A task's units are split in shares, and every thread has a range of them to begin with. It takes from the front of its
 * range; who has none left takes from the back of another's. So threads that run undisturbed compute the same units in
 * every run, next to those of the task before, and one that lost its core to another process is helped out.
 *
 * Pools are shared by core list: whoever uses one holds its turn, for a sub-graph at a time, so that the runs of several
 * programs go through the pools of their queues one behind the other.
 */
#ifndef NNS_POOL_H
#define NNS_POOL_H

#include "kernel.h"
#include "status.h"

typedef struct nns_pool nns_pool;

/* One kernel call, cut up for a number of threads. */
typedef struct {
    const nns_kernel *kernel;
    const nns_args *args;
    int64_t units;
    int64_t grain;          /* units per share; the last may have fewer */
    int64_t shares;
    int64_t before;         /* shares of the tasks before it in its list */
    const uint16_t *bounds; /* thread t begins with the shares [bounds[t], bounds[t + 1]) */
} nns_task;

/* Splits `units` by `ratios` (equally if NULL): every part is its exact share rounded down or up, by largest remainders, the
 * first ones on a tie. */
void nns_split_units(int64_t units, const int64_t *ratios, int32_t n, int64_t *parts);

/* Fills in a task for `n_threads` threads whose speeds are as `ratios` (NULL: equal). `bounds` takes n_threads + 1 numbers
 * and must live as long as the task; `previous` is the task before it in its list, or NULL. */
void nns_task_make(nns_task *task, const nns_kernel *kernel, const nns_args *args, int64_t units, const int64_t *ratios,
                   int32_t n_threads, uint16_t *bounds, const nns_task *previous);

/* The pool for a list of cores, made if nobody holds it. `ordinal` tells apart pools on the same cores, for queues of
 * one program that must not wait for each other. An empty list gives a pool of its own: the calling thread, not pinned.
 * NULL on failure, with a report. */
nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, int32_t ordinal, nns_report *report);
void nns_pool_release(nns_pool *pool);

/* Gives every thread at least that much scratch. Takes the pool's turn. */
int32_t nns_pool_reserve(nns_pool *pool, int64_t bytes, nns_report *report);

/* From before the first to after the last nns_pool_run of a run. Workers spin for up to `spin_ns` between the lists that
 * they get while anybody's run is going on, and shorter when all are over. */
void nns_pool_enter(nns_pool *pool, int64_t spin_ns);
void nns_pool_leave(nns_pool *pool);

/* Whether runs of several programs are going on: who waits then does so on a core that another one may compute on. */
bool nns_pool_contended(const nns_pool *pool);

/* The turn, held around every nns_pool_run. */
void nns_pool_lock(nns_pool *pool);
bool nns_pool_try_lock(nns_pool *pool);
void nns_pool_unlock(nns_pool *pool);

/* Computes tasks one after another on the threads of the pool and returns when all are done. The tasks are for that many
 * threads, and the first is the first of its list. `times` is NULL or gets the begin and end of each: of all threads'
 * work on it, whichever of them came first and last. */
void nns_pool_run(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times);

#endif
