/* Fork-join pools of pinned threads (NeoCPU, section 3.1.2).
 *
 * A pool of n threads has n - 1 workers; the thread that calls nns_pool_run is the first of the n. Work is split
 * statically into contiguous chunks. Pools are shared by core list: whoever uses one holds its turn.
 */
#ifndef NNS_POOL_H
#define NNS_POOL_H

#include "kernel.h"
#include "status.h"

typedef struct nns_pool nns_pool;

/* The pool for a list of cores, made if nobody holds it. `ordinal` tells apart pools on the same cores, for lanes of
 * one program that must not wait for each other. An empty list gives a pool of its own: the calling thread, not pinned.
 * NULL on failure, with a report. */
nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, int32_t ordinal, nns_report *report);
void nns_pool_release(nns_pool *pool);

/* Gives every thread at least that much scratch. Takes the pool's turn. */
int32_t nns_pool_reserve(nns_pool *pool, int64_t bytes, nns_report *report);

/* The turn: held from before the first to after the last nns_pool_run of a run. Workers spin for up to `spin_ns`
 * between the calls made in a turn, and shorter when it is over. */
void nns_pool_lock(nns_pool *pool, int64_t spin_ns);
void nns_pool_unlock(nns_pool *pool);

/* Computes all units of one kernel on the threads of the pool and returns when they are done. */
void nns_pool_run(nns_pool *pool, const nns_kernel *kernel, const nns_args *args, int64_t units);

#endif
