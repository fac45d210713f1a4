/* The executor's state, and what its files tell each other: executor.c begins and ends a run, walking.c does its work,
 * draining.c brings queues to rest after it, queues.c starts and stops the threads.
 *
 * Who does what. The calling thread walks the sub-graphs of queue 0 and enqueues those of OpenCL queues as soon as what
 * they wait for is done (NN-Stretch, algorithm 1), or before that, behind a semaphore. Every other queue has a thread that walks
 * its own sub-graphs and waits by itself, so that handing over costs nothing. Since the list is in topological order and
 * every walker keeps to it, one of the walkers can always go on. Nobody who waits at a semaphore keeps a walker from going on:
 * in front of it are only commands of the same queue, and who opens it waits for none behind it.
 *
 * How it is known that a sub-graph is done: its mark holds the number of the run. Marks of OpenCL sub-graphs are set by
 * whoever first sees their event complete. Setting a mark is a release and seeing it an acquire, which makes everything
 * that the sub-graph wrote visible to those that waited for it.
 *
 * Several programs may run on the same queues at a time, each for an input of its own. They take turns with the pools, for
 * a sub-graph each, so that a queue whose sub-graph has to wait for another queue is free for the others meanwhile. */
#ifndef NNS_RUN_H
#define NNS_RUN_H

#include <limits.h>

#include "clock.h"
#include "program.h"
#include "threads.h"

/* How long a walker spins before it sleeps: long where every thread has a core of its own, which lies idle anyway. */
enum { SPIN_NS = 1000000, CROWDED_SPIN_NS = 20000, BETWEEN_RUNS_SPIN_NS = 50000 };

/* Runs in which the calling thread had to leave its core to others count up to the most, and those in which it had not count
 * down. From OFTEN_INTERRUPTED on another process may work on the same cores, whom a device would hold up that spins. */
enum { OFTEN_INTERRUPTED = 3, MOST_INTERRUPTED = 8 };

typedef struct {
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t done; /* number of the run */
    _Atomic uint32_t enqueued;                      /* the same: `event` is valid */
    void *event;
    _Atomic int64_t seen; /* when a traced OpenCL sub-graph was first seen done */
} nns_mark;

typedef struct {
    nns_signal go; /* number of the run, doubled */
    pthread_t thread;
    bool started;
    int32_t queue;
    struct nns_executor *executor;
} nns_queue_thread;

typedef struct nns_executor {
    nns_program *program;
    nns_mark *marks;                /* one per sub-graph */
    nns_task *tasks;                /* one per step; those of kernel steps are in use */
    uint16_t *bounds;               /* of the tasks, `stride` for each */
    int64_t stride;
    nns_queue_thread *threads;       /* one per queue; queue 0 and OpenCL queues leave theirs unused */
    void **step_events;             /* of traced runs: one per step, NULL without OpenCL queues */
    int32_t n_threads; /* of queues */
    int64_t n_working; /* threads that a run keeps busy, those of pools and of devices on cores included */
    int64_t n_cores;   /* of the machine */
    int64_t spin_ns;
    bool stop, has_opencl;
    bool gated; /* there are semaphores, and each thread has a core of its own, a device that waits included */
    int32_t interrupted; /* of the last runs; see OFTEN_INTERRUPTED */
    bool undrained; /* after a failure the queues did not come to rest, or did not give all memory back */
    int64_t undrained_step; /* of that failure */
    bool moved; /* the calling thread was moved away from `affinity` */
    cpu_set_t affinity;

    /* The run. Written by the calling thread before the queues' threads get `go`, its number with `failing` held. */
    uint32_t run;
    nns_trace *trace;

    pthread_mutex_t failing;
    nns_report failure; /* the first of the run */
    int64_t failed_step;
    _Atomic bool failed;

    /* Counts everything that a walker may wait for. Walkers that sleep do so on this word. */
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t progress;
    _Atomic uint32_t sleepers;
    _Atomic int32_t walking; /* threads of queues that are not through yet */
} nns_executor;

/* Threads that the runs of all programs keep busy now, and how many of these runs may use semaphores. */
extern _Atomic int64_t nns_working, nns_gated;

/* Tells all that something changed. The increment and the look at `sleepers` are sequentially consistent, as are a
 * sleeper's increment of `sleepers` and the comparison that the futex makes: either this sees the sleeper or the
 * sleeper sees this. */
static inline void nns_announce(nns_executor *executor) {
    nns_jitter();
    atomic_fetch_add(&executor->progress, 1);
    if (atomic_load(&executor->sleepers)) nns_futex_wake(&executor->progress, INT_MAX);
}

static inline bool nns_has_failed(const nns_executor *executor) {
    return atomic_load_explicit(&executor->failed, memory_order_relaxed);
}

/* Ends the run with a report, unless it has one. `_locked`: with `failing` held. */
void nns_run_fail(nns_executor *executor, const nns_report *report, int64_t step);
void nns_run_fail_locked(nns_executor *executor, const nns_report *report, int64_t step);

/* The work of the calling thread, and of a queue's own thread, in one run. */
void nns_walk_caller(nns_executor *executor);
void nns_walk_queue(nns_executor *executor, const nns_queue *queue);

/* After a run with OpenCL queues: traces them, or waits for the queues if it has failed, and lets go of its events. */
void nns_drain(nns_executor *executor);

/* Brings to rest what an earlier run left `undrained`, as must be before anybody touches the memory again. */
int32_t nns_drain_again(nns_executor *executor, nns_report *report);

#endif
