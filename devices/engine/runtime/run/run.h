/* The executor's state. program.c begins and ends a run, dispatch.c executes it, draining.c drains the queues
 * after it, and queues.c starts and stops the threads.
 *
 * Threads. The calling thread executes the sub-graphs of queue 0 and enqueues those of OpenCL queues as soon as
 * their waits are over (NN-Stretch, algorithm 1), or earlier behind a semaphore. Each other queue has a thread
 * that executes its sub-graphs and waits by itself, so that no thread hands work to another.
 *
 * Lending. A device on CPU cores that waits for queue 0 at the begin of a run leaves its cores idle. On these cores, a
 * thread of the OpenCL queue enqueues its sub-graphs behind semaphores while the calling thread computes. The queue has
 * one holder at a time: the calling thread offers it, the queue's thread takes it and gives it back when it can enqueue
 * no more, and a calling thread without other work takes back what was not taken, since waking a thread may take longer
 * than enqueueing. A run ends only once the calling thread holds the queue.
 *
 * Deadlocks. The list of sub-graphs is in topological order and each thread keeps to it, so at least one thread
 * can always continue. A semaphore blocks no thread: only commands of its own queue precede it, and the threads
 * that open it wait for no command behind it.
 *
 * Completion. A sub-graph is done when its mark holds the number of the run. The thread that first sees the
 * event of an OpenCL sub-graph complete sets its mark. Setting a mark is a release and reading it an acquire,
 * so all writes of the sub-graph are visible to the threads that waited for it.
 *
 * Delayed transfers. The environment variable NNSTRETCH_TRANSFER_DELAY_US makes every transfer between queues take that
 * much longer, as between processors whose queues wake slowly: a sub-graph starts at the earliest so long after a
 * sub-graph of another queue that it waits for. There are no semaphores then.
 *
 * Concurrent programs. Several programs may run on the same cores. They lock the pools for one sub-graph at a
 * time, so that a queue is free for other programs while its next sub-graph waits. */
#ifndef NNS_RUN_H
#define NNS_RUN_H

#include <limits.h>

#include "program/program.h"
#include "threads/threads.h"

/* How long a thread spins before it sleeps: long if each thread has a core of its own, which would be idle
 * otherwise. */
enum { SPIN_NS = 1000000, CROWDED_SPIN_NS = 20000, BETWEEN_RUNS_SPIN_NS = 50000 };

/* A counter of preemptions: up to MOST_INTERRUPTED by each run in which the calling thread was preempted, down
 * by each other run. From OFTEN_INTERRUPTED on, semaphores are off: another process uses the same cores, and a
 * spinning device would delay it. */
enum { OFTEN_INTERRUPTED = 3, MOST_INTERRUPTED = 8 };

typedef struct {
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t done; /* number of the run */
    _Atomic uint32_t enqueued;                      /* the same: `event` is valid */
    void *event;
    _Atomic int64_t seen;    /* when a traced OpenCL sub-graph was first seen done */
    _Atomic int64_t done_at; /* when it was done; only if transfers are delayed */
} nns_mark;

/* Where a run is on a queue that the calling thread serves or lends. Its holder's. */
typedef struct {
    int64_t at;            /* the next sub-graph, as an index into the queue's list */
    int64_t blocked_since; /* traced runs: when that sub-graph was first found blocked, or 0 */
} nns_place;

/* Who may enqueue on the OpenCL queue that has a thread. */
enum { NNS_HOLDER_CALLER, NNS_HOLDER_NONE, NNS_HOLDER_THREAD };

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
    nns_queue_thread *threads;       /* one per queue; queue 0 and most OpenCL queues leave theirs unused */
    void **step_events;             /* of traced runs: one per step, NULL without OpenCL queues */
    nns_place places[NNS_MAX_QUEUES];
    int32_t lendable;  /* the OpenCL queue that has a thread, the only one then; or 0 */
    int32_t n_threads; /* of other queues */
    int64_t n_working; /* threads that a run keeps busy, including those of pools and of devices on CPU cores */
    int64_t n_cores;   /* of the machine */
    int64_t spin_ns;
    int64_t transfer_delay_ns; /* added to every transfer between queues, for experiments; threads then never sleep */
    _Atomic bool stop;
    bool has_opencl;
    bool gated; /* there are semaphores, and each thread has a core of its own, including a waiting device */
    int32_t interrupted; /* the counter of preemptions */
    bool undrained; /* after a failure a queue could not be drained, or memory is still mapped to a device */
    int64_t undrained_step; /* of that failure */
    bool moved; /* the calling thread was moved away from `affinity` */
    cpu_set_t affinity;
    bool was_pinned; /* by any run */
    bool warned;     /* that the core of an earlier run is no longer usable */
    bool orphaned;   /* the child of a fork in a call: no other thread of the run exists, and locks may stay locked */

    /* The run. Written by the calling thread before the queues' threads get `go`, its number with `failing`
     * held. */
    uint32_t run;
    nns_trace *trace;

    pthread_mutex_t failing;
    nns_report failure; /* the first of the run */
    int64_t failed_step;
    _Atomic bool failed;

    /* Counts all events that a thread may wait for. Threads sleep on this word. */
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t progress;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t holder; /* of queue `lendable` */
    _Atomic int32_t active_threads; /* queue threads that have not finished the run */
} nns_executor;

/* Threads that the runs of all programs keep busy now, and how many of these runs may use semaphores. */
extern _Atomic int64_t nns_working, nns_gated;

/* Announces progress to all threads. The increment and the read of `sleepers` are sequentially consistent, and
 * so are a sleeper's increment of `sleepers` and the comparison by the futex. So either this function sees the
 * sleeper, or the sleeper sees the progress. */
static inline void nns_announce(nns_executor *executor) {
    nns_jitter();
    atomic_fetch_add(&executor->progress, 1);
    if (atomic_load(&executor->sleepers)) nns_futex_wake(&executor->progress, INT_MAX);
}

static inline bool nns_has_failed(const nns_executor *executor) {
    return atomic_load_explicit(&executor->failed, memory_order_relaxed);
}

/* Starts the queues' threads and maps SHARED memory for the host. After a failure, too, nns_executor_stop frees
 * everything. */
int32_t nns_executor_start(nns_program *program, nns_report *report);
void nns_executor_stop(nns_program *program);

/* Fails the run with a report unless it has failed before. `_locked`: the caller holds `failing`. */
void nns_run_fail(nns_executor *executor, const nns_report *report, int64_t step);
void nns_run_fail_locked(nns_executor *executor, const nns_report *report, int64_t step);

/* One run: the calling thread's part, the part of a queue's own thread, and that of the thread of a lent queue. */
void nns_dispatch_caller(nns_executor *executor);
void nns_dispatch_queue(nns_executor *executor, const nns_queue *queue);
void nns_dispatch_lent(nns_executor *executor);

/* After a run with OpenCL queues: completes the trace, or drains the queues if the run failed; then releases
 * all events. */
void nns_drain(nns_executor *executor);

/* Drains the queues that an earlier run left `undrained`. Required before any access to their memory. */
int32_t nns_drain_again(nns_executor *executor, nns_report *report);

#endif
