/* Fork-join pools of pinned threads (NeoCPU, section 3.1.2).
 *
 * A pool of n threads has n - 1 workers; the thread that calls nns_pool_run is the first of the n. It sends
 * each worker the whole list of tasks at once, through a pair of signals that only these two threads use. A
 * task is one kernel call. Each thread then processes the list by itself, with one barrier between two tasks.
 *
 * A task's units are grouped into shares, and each thread starts with a range of them. It takes shares from the
 * front of its range; a thread without shares steals from the back of another range. So undisturbed threads
 * compute the same units in each run, next to those of the task before, and a thread that lost its core to
 * another process gets help.
 *
 * Slower cores. The environment variable NNSTRETCH_CORE_SPEEDS, such as "1:0.5", makes the threads of cores slow for
 * experiments: after its share of a task a thread spins until it has taken 1 / speed times as long. Barriers, transfers and
 * devices keep their time.
 *
 * Programs on equal core lists use the same pool. They lock it for one sub-graph at a time, so that runs of
 * several programs are pipelined through the pools of their queues.
 */
#ifndef NNS_POOL_H
#define NNS_POOL_H

#include "vectors/kernel.h"
#include "status.h"
#include "turn.h"

typedef struct nns_pool nns_pool;

/* One kernel call, divided among a number of threads. */
typedef struct {
    const nns_kernel *kernel;
    const nns_args *args;
    int64_t units;
    int64_t grain;          /* units per share; the last may have fewer */
    int64_t shares;
    int64_t before;         /* shares of the tasks before it in its list */
    const uint16_t *bounds; /* thread t starts with the shares [bounds[t], bounds[t + 1]) */
} nns_task;

/* Splits `units` >= 0 into `n` parts by `ratios` (1 to NNS_MAX_RATIO each; NULL: equally): each part is its exact share
 * rounded down or up by largest remainders; ties round up the first. */
void nns_split_units(int64_t units, const int64_t *ratios, int32_t n, int64_t *parts);

/* Fills in a task for `n_threads` threads with relative speeds `ratios` (NULL: equal). `bounds` receives
 * n_threads + 1 numbers and must outlive the task. `previous` is the preceding task of the list, or NULL. */
void nns_task_make(nns_task *task, const nns_kernel *kernel, const nns_args *args, int64_t units, const int64_t *ratios,
                   int32_t n_threads, uint16_t *bounds, const nns_task *previous);

/* The pool of a list of cores, created if it does not exist: a thread for each. Threads that are `tied` stay on their cores.
 * Others may run on any of these, so that the system moves one whose core another program takes to one where a thread waits.
 * `ordinal` distinguishes pools on the same cores,
 * for queues of one program that must not wait for each other. An empty list gives a new pool without workers
 * whose thread is not pinned. NULL and a report on failure. */
nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, bool tied, int32_t ordinal, nns_report *report);
void nns_pool_release(nns_pool *pool);
/* In the child of a fork: forgets all pools, whose threads do not exist there. Their owners still release them. */
void nns_pools_forget(void);

/* Gives each thread at least `bytes` of scratch memory. Locks the pool. */
int32_t nns_pool_reserve(nns_pool *pool, int64_t bytes, nns_report *report);

/* Before the first and after the last nns_pool_run of a run. Workers spin for up to `spin_ns` between lists
 * while a run is in progress, and shortly otherwise. */
void nns_pool_enter(nns_pool *pool, int64_t spin_ns);
void nns_pool_leave(nns_pool *pool);

/* Whether runs of several programs are in progress, so that a waiting thread may occupy a core that another run
 * needs. */
bool nns_pool_contended(const nns_pool *pool);

/* The pool's lock, held around each nns_pool_run. */
void nns_pool_lock(nns_pool *pool);
void nns_pool_unlock(nns_pool *pool);
/* Locks the pool without blocking, or queues the caller (nns_turn_try_lock); gives up waiting. */
bool nns_pool_try_lock(nns_pool *pool, nns_waiter *waiter);
void nns_pool_withdraw(nns_pool *pool, nns_waiter *waiter);

/* Computes a list of tasks in order on the threads of the pool, for which the tasks were made, and returns when
 * all are done. `times` is NULL or receives the begin and end of each task over all threads. Kernels flush denormals to
 * zero; the calling thread's own mode is the same afterwards. */
void nns_pool_run(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times);

/* Around a call of an external engine on the pool's cores, which takes 1 / their mean speed times as long. */
int64_t nns_pool_call_begins(const nns_pool *pool);
void nns_pool_call_ends(const nns_pool *pool, int64_t began);

#endif
