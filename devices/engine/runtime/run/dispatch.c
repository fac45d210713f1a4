/* Dispatches the sub-graphs of a run: waits for their dependencies, computes them or enqueues them on devices. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "opencl.h"
#include "run.h"

/* Longest sleep of a thread that waits for an OpenCL queue and for other threads: no single event ends both waits. */
enum { MIXED_SLEEP_NS = 100000 };

/* ---- waiting --------------------------------------------------------------------------------------------- */

static void complete(nns_executor *executor, int64_t subgraph) {
    _Atomic int32_t *flags = executor->program->flags;
    if (executor->transfer_delay_ns)
        atomic_store_explicit(&executor->marks[subgraph].done_at, nns_now(), memory_order_relaxed);
    atomic_store_explicit(&executor->marks[subgraph].done, executor->run, memory_order_release);
    if (flags) atomic_store_explicit(&flags[subgraph], NNS_FLAG_DONE, memory_order_release);
    nns_announce(executor);
}

static bool on_device(const nns_executor *executor, int64_t subgraph) {
    const nns_program *program = executor->program;
    return program->queues[program->subgraphs[subgraph].queue].kind == NNS_QUEUE_OPENCL;
}

static bool is_enqueued(const nns_executor *executor, int64_t subgraph) {
    return on_device(executor, subgraph) &&
           atomic_load_explicit(&executor->marks[subgraph].enqueued, memory_order_acquire) == executor->run;
}

static bool is_done(nns_executor *executor, int64_t subgraph) {
    nns_mark *mark = &executor->marks[subgraph];
    if (atomic_load_explicit(&mark->done, memory_order_acquire) == executor->run) return true;
    if (!is_enqueued(executor, subgraph)) return false;
    nns_report report = {0};
    const int32_t state = nns_opencl_poll(mark->event, &report);
    if (state < 0) nns_run_fail(executor, &report, executor->program->subgraphs[subgraph].end - 1);
    if (state != 1) return false;
    int64_t unseen = 0;
    if (executor->trace) atomic_compare_exchange_strong(&mark->seen, &unseen, nns_now());
    complete(executor, subgraph);
    return true;
}

/* Whether a sub-graph is done and its results have reached another queue. */
static bool has_arrived(nns_executor *executor, int64_t subgraph) {
    if (!is_done(executor, subgraph)) return false;
    if (!executor->transfer_delay_ns) return true;
    const int64_t done_at = atomic_load_explicit(&executor->marks[subgraph].done_at, memory_order_relaxed);
    return nns_now() - done_at >= executor->transfer_delay_ns;
}

/* The first sub-graph that `subgraph` waits for and whose results are not there, or -1. */
static int64_t blocker_of(nns_executor *executor, const nns_subgraph *subgraph) {
    for (int64_t i = 0; i < subgraph->n_waits; i++)
        if (!has_arrived(executor, subgraph->waits[i])) return subgraph->waits[i];
    return -1;
}

static void sleep_until_progress(nns_executor *executor, uint32_t seen, int64_t timeout_ns) {
    atomic_fetch_add(&executor->sleepers, 1);
    nns_jitter();
    if (atomic_load(&executor->progress) == seen) nns_futex_wait(&executor->progress, seen, timeout_ns);
    atomic_fetch_sub(&executor->sleepers, 1);
}

/* What a thread waits for: sub-graphs, and the lock of a pool. */
typedef struct {
    int64_t subgraphs[NNS_MAX_QUEUES];
    int64_t count;
    bool turn;
} wait_set;

/* Whether a run of another program may need the core of `queue`. */
static bool is_contended(const nns_executor *executor, const nns_queue *queue) {
    return (queue->pool && nns_pool_contended(queue->pool)) ||
           atomic_load_explicit(&nns_working, memory_order_relaxed) > executor->n_cores;
}

/* How long a thread spins on the core of `queue`: shortly if a run of another program may need that core. */
static int64_t spin_ns_on(const nns_executor *executor, const nns_queue *queue) {
    return is_contended(executor, queue) ? nns_min_int(executor->spin_ns, CROWDED_SPIN_NS) : executor->spin_ns;
}

/* Blocks until an enqueued sub-graph is complete; a failed wait fails the run. */
static void wait_for_device(nns_executor *executor, int64_t subgraph) {
    nns_report report = {0};
    if (nns_opencl_wait(executor->marks[subgraph].event, &report))
        nns_run_fail(executor, &report, executor->program->subgraphs[subgraph].end - 1);
}

/* Waits for progress on the core of `queue`: spins for a moment, or sleeps if it has spun long enough since
 * `*idle_since` (0: the wait begins now). `seen` is the value of `progress` from before the thread looked for
 * work. */
static void idle(nns_executor *executor, const nns_queue *queue, int64_t *idle_since, uint32_t seen,
                 const wait_set *pending) {
    enum { PAUSES = 16 };
    const int64_t now = nns_now();
    if (!*idle_since) *idle_since = now;
    if (executor->transfer_delay_ns || now - *idle_since < spin_ns_on(executor, queue)) {
        for (int i = 0; i < PAUSES; i++) nns_pause();
        return;
    }
    int64_t enqueued = 0;
    for (int64_t i = 0; i < pending->count; i++) enqueued += is_enqueued(executor, pending->subgraphs[i]);
    if (!pending->turn && enqueued && enqueued == pending->count)
        wait_for_device(executor, pending->subgraphs[0]);
    else
        sleep_until_progress(executor, seen, enqueued ? MIXED_SLEEP_NS : 0);
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* The run in the child of a fork that call `s` made: it ends where it is. A thread of a queue has no caller there. */
static void orphan(nns_executor *executor, int32_t queue, int64_t s) {
    if (queue) {
        fputs("nnstretch: a call beside others forked this process and returned in the child, which ends here\n", stderr);
        _exit(2);
    }
    nns_fail(&executor->failure, NNS_EINVALID, "a call of the run forked this process, where the run cannot go on");
    executor->failed_step = s;
    executor->orphaned = true;
    atomic_store(&executor->failed, true);
}

static void run_call(nns_executor *executor, int32_t queue, int64_t s) {
    const nns_program *program = executor->program;
    const nns_step *step = &program->steps[s];
    const nns_pool *pool = program->queues[queue].pool;
    const int64_t began = nns_pool_call_begins(pool);
    nns_jitter();
    const int32_t answer = program->call(program->call_context, step->id, step->args.in, step->args.out);
    if (!nns_is_ours(program)) orphan(executor, queue, s);
    if (!answer) nns_pool_call_ends(pool, began);
    if (!answer || executor->orphaned) return;
    nns_report report = {0};
    nns_fail(&report, NNS_ECALL, "the call failed (%d)", (int)answer);
    nns_run_fail(executor, &report, s);
}

/* The end of the consecutive kernel steps that begin with `first`; `first` itself if that is a call. */
static int64_t end_of_kernels(const nns_program *program, int64_t first, int64_t end) {
    while (first < end && program->steps[first].kind == NNS_STEP_KERNEL) first++;
    return first;
}

/* Executes the steps of a sub-graph on the calling thread and its pool, which it has locked, until a call fails. */
static void run_subgraph(nns_executor *executor, int64_t index) {
    const nns_program *program = executor->program;
    const nns_subgraph *subgraph = &program->subgraphs[index];
    int64_t *times = executor->trace ? executor->trace->steps : NULL;
    for (int64_t s = subgraph->first; s < subgraph->end && !nns_has_failed(executor);) {
        const int64_t end = end_of_kernels(program, s, subgraph->end);
        if (end > s) {
            nns_pool_run(program->queues[subgraph->queue].pool, executor->tasks + s, end - s,
                         times ? times + 2 * s : NULL);
            s = end;
            continue;
        }
        if (times) times[2 * s] = nns_now();
        run_call(executor, subgraph->queue, s);
        if (times) times[2 * s + 1] = nns_now();
        s++;
    }
    complete(executor, index);
}

/* Whether OpenCL sub-graphs that have to wait may be enqueued behind semaphores now. The device spins there. So no
 * other process may need its cores, and no other run in this process, since all runs share the driver's threads. */
static bool takes_semaphores(const nns_executor *executor) {
    if (!executor->gated || executor->transfer_delay_ns) return false;
    return executor->interrupted < OFTEN_INTERRUPTED && !is_contended(executor, &executor->program->queues[0]) &&
           atomic_load_explicit(&nns_gated, memory_order_relaxed) == 1;
}

static void enqueue_subgraph(nns_executor *executor, int64_t index, bool gated) {
    nns_mark *mark = &executor->marks[index];
    nns_report report = {0};
    int64_t *times = executor->trace ? executor->trace->steps : NULL;
    int64_t step = 0;
    nns_jitter();
    if (nns_opencl_enqueue(executor->program, index, gated, &mark->event, executor->step_events, times, &step,
                           &report)) {
        nns_run_fail(executor, &report, step);
        return;
    }
    atomic_store_explicit(&mark->enqueued, executor->run, memory_order_release);
    nns_announce(executor);
}

/* Records the wait before a sub-graph that can start now. `since` is when it was first found blocked, or 0. */
static void trace_wait(nns_executor *executor, int64_t index, int64_t since) {
    if (!executor->trace) return;
    int64_t *wait = &executor->trace->waits[2 * index];
    wait[1] = nns_now();
    wait[0] = since ? since : wait[1];
}

/* ---- queues ---------------------------------------------------------------------------------------------- */

void nns_dispatch_queue(nns_executor *executor, const nns_queue *queue) {
    int64_t at = 0, idle_since = 0;
    wait_set pending = {.count = 1};
    while (at < queue->n_subgraphs && !nns_has_failed(executor)) {
        const int64_t index = queue->subgraphs[at];
        const uint32_t seen = atomic_load(&executor->progress);
        pending.subgraphs[0] = blocker_of(executor, &executor->program->subgraphs[index]);
        if (pending.subgraphs[0] >= 0) {
            if (!nns_has_failed(executor)) idle(executor, queue, &idle_since, seen, &pending);
            continue;
        }
        if (queue->pool) nns_pool_lock(queue->pool);
        trace_wait(executor, index, idle_since);
        idle_since = 0;
        run_subgraph(executor, index);
        if (queue->pool) nns_pool_unlock(queue->pool);
        at++;
    }
}

/* What a thread waits for that dispatches queue 0 or OpenCL queues. */
typedef struct {
    nns_waiter waiter; /* for the lock of queue 0's pool */
    wait_set pending;
} dispatch_state;

/* Locks queue 0's pool. With OpenCL queues to serve it does not block, but waits in line. */
static bool take_turn(nns_executor *executor, nns_pool *pool, nns_waiter *waiter) {
    if (executor->has_opencl) return nns_pool_try_lock(pool, waiter);
    nns_pool_lock(pool);
    return true;
}

/* Starts the next sub-graph of a queue if its dependencies are done, else records what it waits for. Returns
 * whether it started one. */
static bool advance(nns_executor *executor, dispatch_state *state, int32_t l) {
    const nns_queue *queue = &executor->program->queues[l];
    nns_place *place = &executor->places[l];
    if (place->at == queue->n_subgraphs || nns_has_failed(executor)) return false;
    const int64_t index = queue->subgraphs[place->at];
    const nns_subgraph *subgraph = &executor->program->subgraphs[index];
    int64_t blocker = blocker_of(executor, subgraph);
    const bool gated = l && blocker >= 0 && subgraph->semaphore.kernel && takes_semaphores(executor);
    if (gated) blocker = -1;
    const bool turn = blocker < 0 && !l && !take_turn(executor, queue->pool, &state->waiter);
    if (blocker >= 0) state->pending.subgraphs[state->pending.count++] = blocker;
    if (turn) state->pending.turn = true;
    if (blocker >= 0 || turn) {
        if (executor->trace && !place->blocked_since) place->blocked_since = nns_now();
        return false;
    }
    trace_wait(executor, index, place->blocked_since);
    place->blocked_since = 0;
    if (l) {
        enqueue_subgraph(executor, index, gated);
    } else {
        run_subgraph(executor, index);
        if (executor->orphaned) return false;
        nns_pool_unlock(queue->pool);
    }
    place->at++;
    return true;
}

/* Records the last sub-graph of each OpenCL queue that is not done. In an in-order queue those before it are
 * done earlier. */
static void await_queues(nns_executor *executor, wait_set *pending) {
    const nns_program *program = executor->program;
    for (int32_t l = 1; l < program->n_queues; l++) {
        const nns_queue *queue = &program->queues[l];
        const int64_t at = executor->places[l].at;
        if (queue->kind != NNS_QUEUE_OPENCL || !at) continue;
        const int64_t last = queue->subgraphs[at - 1];
        if (!is_done(executor, last)) pending->subgraphs[pending->count++] = last;
    }
}

/* ---- lending --------------------------------------------------------------------------------------------- */

/* Passes the lendable queue from nobody to `holder`. False if somebody holds it; where no queue is lendable, that is the
 * calling thread. */
static bool take_offered(nns_executor *executor, uint32_t holder) {
    uint32_t offered = NNS_HOLDER_NONE;
    nns_jitter();
    return atomic_compare_exchange_strong(&executor->holder, &offered, holder);
}

/* Offers the lendable queue to its thread, unless nothing could be enqueued on it yet. */
static void lend(nns_executor *executor) {
    if (!executor->lendable || !takes_semaphores(executor)) return;
    atomic_store(&executor->holder, NNS_HOLDER_NONE);
    nns_signal_send(&executor->threads[executor->lendable].go, executor->run << 1);
}

void nns_dispatch_lent(nns_executor *executor) {
    dispatch_state state = {0};
    if (!take_offered(executor, NNS_HOLDER_THREAD)) return;
    while (advance(executor, &state, executor->lendable)) {
    }
    atomic_store_explicit(&executor->holder, NNS_HOLDER_CALLER, memory_order_release);
    nns_announce(executor);
}

/* Whether the calling thread holds all OpenCL queues; then it sees what a queue's thread wrote. */
static bool holds_all(const nns_executor *executor) {
    return atomic_load_explicit(&executor->holder, memory_order_acquire) == NNS_HOLDER_CALLER;
}

/* ---- the calling thread ---------------------------------------------------------------------------------- */

/* The calling thread's part of a run. OpenCL queues come first and get as much work as possible, since no
 * thread serves them while this one computes, except one that is lent. With semaphores that is all of a run's work: the
 * device never idles, and no command is enqueued while others start or end. */
void nns_dispatch_caller(nns_executor *executor) {
    const nns_program *program = executor->program;
    dispatch_state state = {.waiter.word = &executor->progress};
    wait_set *pending = &state.pending;
    int64_t idle_since = 0;
    memset(executor->places, 0, sizeof executor->places);
    lend(executor);
    for (;;) {
        const uint32_t seen = atomic_load(&executor->progress);
        bool moved = false;
        *pending = (wait_set){0};
        const bool holding = holds_all(executor);
        for (int32_t l = 1; holding && l < program->n_queues; l++)
            while (program->queues[l].kind == NNS_QUEUE_OPENCL && advance(executor, &state, l)) moved = true;
        moved |= advance(executor, &state, 0);
        if (executor->orphaned) return;
        if (!moved) moved = take_offered(executor, NNS_HOLDER_CALLER);
        if (moved) {
            idle_since = 0;
            continue;
        }
        if (nns_has_failed(executor)) {
            *pending = (wait_set){0};
            nns_pool_withdraw(program->queues[0].pool, &state.waiter);
        }
        const bool dispatched = holding && !pending->count && !pending->turn;
        if (dispatched && !nns_has_failed(executor)) await_queues(executor, pending);
        if (dispatched && !pending->count && !atomic_load(&executor->active_threads)) return;
        if (nns_has_failed(executor)) *pending = (wait_set){0};
        idle(executor, &program->queues[0], &idle_since, seen, pending);
    }
}
