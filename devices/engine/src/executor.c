/* Who does what. The calling thread walks the sub-graphs of lane 0 and enqueues those of OpenCL lanes as soon as what
 * they wait for is done (NN-Stretch, algorithm 1). Every other lane has a thread that walks its own sub-graphs and
 * waits by itself, so that handing over costs nothing. Since the list is in topological order and every walker keeps to
 * it, one of the walkers can always go on.
 *
 * How it is known that a sub-graph is done: its mark holds the number of the run. Marks of OpenCL sub-graphs are set by
 * whoever first sees their event complete. Setting a mark is a release and seeing it an acquire, which makes everything
 * that the sub-graph wrote visible to those that waited for it.
 *
 * Several programs may run on the same lanes at a time, each for an input of its own. They take turns with the pools, for
 * a sub-graph each, so that a lane whose sub-graph has to wait for another lane is free for the others meanwhile. */
#include "executor.h"

#include <limits.h>
#include <stdlib.h>

#include "clock.h"
#include "opencl.h"
#include "threads.h"

/* How long a walker spins before it sleeps: long where every thread has a core of its own, which lies idle anyway. */
enum { SPIN_NS = 1000000, CROWDED_SPIN_NS = 20000, BETWEEN_RUNS_SPIN_NS = 50000 };
/* How long a walker sleeps that waits for an OpenCL lane and others at once. */
enum { MIXED_SLEEP_NS = 100000 };

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
    int32_t lane;
    struct nns_executor *executor;
} nns_lane_thread;

typedef struct nns_executor {
    nns_program *program;
    nns_mark *marks;                /* one per sub-graph */
    nns_task *tasks;                /* one per step; those of kernel steps are in use */
    uint16_t *bounds;               /* of the tasks, `stride` for each */
    int64_t stride;
    nns_lane_thread *threads;       /* one per lane; lane 0 and OpenCL lanes leave theirs unused */
    void **step_events;             /* of traced runs: one per step, NULL without OpenCL lanes */
    int32_t n_threads; /* of lanes */
    int64_t n_working; /* threads that a run keeps busy, those of pools and of devices on cores included */
    int64_t n_cores;   /* of the machine */
    int64_t spin_ns;
    bool stop, has_opencl;
    bool unsettled; /* after a failure the queues did not come to rest, or did not give all memory back */
    int64_t unsettled_step; /* of that failure */
    bool moved; /* the calling thread was moved away from `affinity` */
    cpu_set_t affinity;

    /* The run. Written by the calling thread before the lanes' threads get `go`, its number with `failing` held. */
    uint32_t run;
    nns_trace *trace;

    pthread_mutex_t failing;
    nns_report failure; /* the first of the run */
    int64_t failed_step;
    _Atomic bool failed;

    /* Counts everything that a walker may wait for. Walkers that sleep do so on this word. */
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t progress;
    _Atomic uint32_t sleepers;
    _Atomic int32_t walking; /* threads of lanes that are not through yet */
} nns_executor;

/* Threads that the runs of all programs keep busy now. */
static _Atomic int64_t working;

/* ---- progress and waiting -------------------------------------------------------------------------------- */

/* Tells all that something changed. The increment and the look at `sleepers` are sequentially consistent, as are a
 * sleeper's increment of `sleepers` and the comparison that the futex makes: either this sees the sleeper or the
 * sleeper sees this. */
static void announce(nns_executor *executor) {
    nns_jitter();
    atomic_fetch_add(&executor->progress, 1);
    if (atomic_load(&executor->sleepers)) nns_futex_wake(&executor->progress, INT_MAX);
}

/* Ends the run with a report, unless it has one. With `failing` held. */
static void fail_locked(nns_executor *executor, const nns_report *report, int64_t step) {
    if (!executor->failure.status) {
        executor->failure = *report;
        executor->failed_step = step;
    }
    atomic_store(&executor->failed, true);
    announce(executor);
}

static void fail(nns_executor *executor, const nns_report *report, int64_t step) {
    pthread_mutex_lock(&executor->failing);
    fail_locked(executor, report, step);
    pthread_mutex_unlock(&executor->failing);
}

static bool has_failed(const nns_executor *executor) {
    return atomic_load_explicit(&executor->failed, memory_order_relaxed);
}

static void complete(nns_executor *executor, int64_t subgraph) {
    atomic_store_explicit(&executor->marks[subgraph].done, executor->run, memory_order_release);
    announce(executor);
}

static bool on_device(const nns_executor *executor, int64_t subgraph) {
    const nns_program *program = executor->program;
    return program->lanes[program->subgraphs[subgraph].lane].kind == NNS_LANE_OPENCL;
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
    if (state < 0) fail(executor, &report, executor->program->subgraphs[subgraph].end - 1);
    if (state != 1) return false;
    int64_t unseen = 0;
    if (executor->trace) atomic_compare_exchange_strong(&mark->seen, &unseen, nns_now());
    complete(executor, subgraph);
    return true;
}

/* The first sub-graph that `subgraph` has to wait for, or -1. */
static int64_t blocker_of(nns_executor *executor, const nns_subgraph *subgraph) {
    for (int64_t i = 0; i < subgraph->n_waits; i++)
        if (!is_done(executor, subgraph->waits[i])) return subgraph->waits[i];
    return -1;
}

static void sleep_until_progress(nns_executor *executor, uint32_t seen, int64_t timeout_ns) {
    atomic_fetch_add(&executor->sleepers, 1);
    nns_jitter();
    if (atomic_load(&executor->progress) == seen) nns_futex_wait(&executor->progress, seen, timeout_ns);
    atomic_fetch_sub(&executor->sleepers, 1);
}

/* What a walker waits for: sub-graphs, and the turn of a pool (whose end nobody announces). */
typedef struct {
    int64_t blockers[NNS_MAX_LANES];
    int64_t n_blockers;
    bool turn;
} nns_obstacles;

/* How long a walker spins on the core of `lane`: not for long where a run of another program may want that core. */
static int64_t spin_ns_on(const nns_executor *executor, const nns_lane *lane) {
    const bool contended = (lane->pool && nns_pool_contended(lane->pool)) ||
                           atomic_load_explicit(&working, memory_order_relaxed) > executor->n_cores;
    return contended ? nns_min_int(executor->spin_ns, CROWDED_SPIN_NS) : executor->spin_ns;
}

/* A walker, on the core of `lane`, that found nothing to do: spins a little, or sleeps once it has spun long enough since
 * `*idle_since` (0: it has just begun). `seen` is the progress as it was before the walker looked. */
static void idle(nns_executor *executor, const nns_lane *lane, int64_t *idle_since, uint32_t seen,
                 const nns_obstacles *obstacles) {
    enum { BETWEEN_LOOKS = 16 };
    const int64_t now = nns_now();
    if (!*idle_since) *idle_since = now;
    if (now - *idle_since < spin_ns_on(executor, lane)) {
        for (int i = 0; i < BETWEEN_LOOKS; i++) nns_pause();
        return;
    }
    int64_t enqueued = 0;
    for (int64_t i = 0; i < obstacles->n_blockers; i++) enqueued += is_enqueued(executor, obstacles->blockers[i]);
    if (!obstacles->turn && enqueued && enqueued == obstacles->n_blockers)
        nns_opencl_wait(executor->marks[obstacles->blockers[0]].event);
    else
        sleep_until_progress(executor, seen, enqueued || obstacles->turn ? MIXED_SLEEP_NS : 0);
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

static void run_call(nns_executor *executor, int64_t s) {
    const nns_step *step = &executor->program->steps[s];
    nns_jitter();
    const int32_t answer = executor->program->call(step->id, step->args.in, step->args.out);
    if (!answer) return;
    nns_report report = {0};
    nns_fail(&report, NNS_ECALL, "the call failed (%d)", (int)answer);
    fail(executor, &report, s);
}

/* The end of the stretch of kernel steps that begins with `first`: `first` itself if that is a call. */
static int64_t end_of_kernels(const nns_program *program, int64_t first, int64_t end) {
    while (first < end && program->steps[first].kind == NNS_STEP_KERNEL) first++;
    return first;
}

/* Runs the steps of a sub-graph on the calling thread and its pool, whose turn it has, until one fails. Kernels cannot. */
static void run_subgraph(nns_executor *executor, int64_t index) {
    const nns_program *program = executor->program;
    const nns_subgraph *subgraph = &program->subgraphs[index];
    int64_t *times = executor->trace ? executor->trace->steps : NULL;
    for (int64_t s = subgraph->first; s < subgraph->end && !has_failed(executor);) {
        const int64_t end = end_of_kernels(program, s, subgraph->end);
        if (end > s) {
            nns_pool_run(program->lanes[subgraph->lane].pool, executor->tasks + s, end - s, times ? times + 2 * s : NULL);
            s = end;
            continue;
        }
        if (times) times[2 * s] = nns_now();
        run_call(executor, s);
        if (times) times[2 * s + 1] = nns_now();
        s++;
    }
    complete(executor, index);
}

static void enqueue_subgraph(nns_executor *executor, int64_t index) {
    nns_mark *mark = &executor->marks[index];
    nns_report report = {0};
    int64_t *times = executor->trace ? executor->trace->steps : NULL;
    int64_t step = 0;
    nns_jitter();
    if (nns_opencl_enqueue(executor->program, &executor->program->subgraphs[index], &mark->event, executor->step_events,
                           times, &step, &report)) {
        fail(executor, &report, step);
        return;
    }
    atomic_store_explicit(&mark->enqueued, executor->run, memory_order_release);
    announce(executor);
}

/* Notes the wait before a sub-graph that can start now; `since` is when it was first found blocked, or 0. */
static void trace_wait(nns_executor *executor, int64_t index, int64_t since) {
    if (!executor->trace) return;
    int64_t *wait = &executor->trace->waits[2 * index];
    wait[1] = nns_now();
    wait[0] = since ? since : wait[1];
}

/* ---- walkers --------------------------------------------------------------------------------------------- */

/* The body of a lane's thread during one run. */
static void walk_lane(nns_executor *executor, const nns_lane *lane) {
    int64_t at = 0, idle_since = 0;
    nns_obstacles obstacles = {.n_blockers = 1};
    while (at < lane->n_subgraphs && !has_failed(executor)) {
        const int64_t index = lane->subgraphs[at];
        const uint32_t seen = atomic_load(&executor->progress);
        obstacles.blockers[0] = blocker_of(executor, &executor->program->subgraphs[index]);
        if (obstacles.blockers[0] >= 0) {
            if (!has_failed(executor)) idle(executor, lane, &idle_since, seen, &obstacles);
            continue;
        }
        if (lane->pool) nns_pool_lock(lane->pool);
        trace_wait(executor, index, idle_since);
        idle_since = 0;
        run_subgraph(executor, index);
        if (lane->pool) nns_pool_unlock(lane->pool);
        at++;
    }
}

static void *lane_thread(void *argument) {
    nns_lane_thread *thread = argument;
    nns_executor *executor = thread->executor;
    const int64_t spin_ns = executor->spin_ns < BETWEEN_RUNS_SPIN_NS ? executor->spin_ns : BETWEEN_RUNS_SPIN_NS;
    uint32_t seen = 0;
    for (;;) {
        seen = nns_signal_await(&thread->go, seen, spin_ns);
        if (executor->stop) return NULL;
        walk_lane(executor, &executor->program->lanes[thread->lane]);
        atomic_fetch_sub(&executor->walking, 1);
        announce(executor);
    }
}

/* Where the calling thread is in the lanes that it walks: lane 0 and OpenCL lanes. */
typedef struct {
    int64_t at[NNS_MAX_LANES];
    int64_t blocked_since[NNS_MAX_LANES]; /* traced runs */
    nns_obstacles obstacles;
} nns_walk;

/* Takes the turn of lane 0's pool. Who has queues to serve does not wait for it. */
static bool take_turn(nns_executor *executor, nns_pool *pool) {
    if (executor->has_opencl) return nns_pool_try_lock(pool);
    nns_pool_lock(pool);
    return true;
}

/* Starts the next sub-graph of a lane if there is one and nothing is in its way. Notes what is otherwise. */
static bool advance(nns_executor *executor, nns_walk *walk, int32_t l) {
    const nns_lane *lane = &executor->program->lanes[l];
    if (walk->at[l] == lane->n_subgraphs || has_failed(executor)) return false;
    const int64_t index = lane->subgraphs[walk->at[l]];
    const int64_t blocker = blocker_of(executor, &executor->program->subgraphs[index]);
    const bool turn = blocker < 0 && !l && !take_turn(executor, lane->pool);
    if (blocker >= 0) walk->obstacles.blockers[walk->obstacles.n_blockers++] = blocker;
    if (turn) walk->obstacles.turn = true;
    if (blocker >= 0 || turn) {
        if (executor->trace && !walk->blocked_since[l]) walk->blocked_since[l] = nns_now();
        return false;
    }
    trace_wait(executor, index, walk->blocked_since[l]);
    walk->blocked_since[l] = 0;
    if (l) {
        enqueue_subgraph(executor, index);
    } else {
        run_subgraph(executor, index);
        nns_pool_unlock(lane->pool);
    }
    walk->at[l]++;
    return true;
}

/* Notes the last sub-graphs of OpenCL lanes that are not done: in a queue that keeps order nothing else needs a look.
 */
static void await_queues(nns_executor *executor, nns_walk *walk) {
    const nns_program *program = executor->program;
    for (int32_t l = 1; l < program->n_lanes; l++) {
        const nns_lane *lane = &program->lanes[l];
        if (lane->kind != NNS_LANE_OPENCL || !walk->at[l]) continue;
        const int64_t last = lane->subgraphs[walk->at[l] - 1];
        if (!is_done(executor, last)) walk->obstacles.blockers[walk->obstacles.n_blockers++] = last;
    }
}

/* The calling thread's part of a run: OpenCL lanes first, and all that they can be given, since they go on by themselves once
 * they have work, and nobody looks after them while the thread computes. */
static void walk_caller(nns_executor *executor) {
    const nns_program *program = executor->program;
    nns_walk walk = {0};
    nns_obstacles *obstacles = &walk.obstacles;
    int64_t idle_since = 0;
    for (;;) {
        const uint32_t seen = atomic_load(&executor->progress);
        bool moved = false;
        *obstacles = (nns_obstacles){0};
        for (int32_t l = 1; l < program->n_lanes; l++)
            while (program->lanes[l].kind == NNS_LANE_OPENCL && advance(executor, &walk, l)) moved = true;
        moved |= advance(executor, &walk, 0);
        if (moved) {
            idle_since = 0;
            continue;
        }
        if (has_failed(executor)) *obstacles = (nns_obstacles){0};
        const bool walked = !obstacles->n_blockers && !obstacles->turn;
        if (walked && !has_failed(executor)) await_queues(executor, &walk);
        if (walked && !obstacles->n_blockers && !atomic_load(&executor->walking)) return;
        if (has_failed(executor)) *obstacles = (nns_obstacles){0};
        idle(executor, &program->lanes[0], &idle_since, seen, obstacles);
    }
}

/* ---- traces of OpenCL lanes ------------------------------------------------------------------------------ */

static void take_smaller(int64_t *smallest, int64_t value) {
    if (value < *smallest) *smallest = value;
}

/* The least that must be added to the device's clock to get the host's. Both differences can only be too large: by the
 * time between a command's entry into the queue and the host's return from the call, and between its end and when that
 * was seen. */
static bool clock_offset(const nns_executor *executor, const nns_lane *lane, int64_t *offset) {
    const nns_program *program = executor->program;
    *offset = INT64_MAX;
    nns_profile profile;
    for (int64_t i = 0; i < lane->n_subgraphs; i++) {
        const int64_t index = lane->subgraphs[i];
        const nns_subgraph *subgraph = &program->subgraphs[index];
        const nns_mark *mark = &executor->marks[index];
        for (int64_t s = subgraph->first; s < subgraph->end; s++) {
            if (!nns_opencl_profile(executor->step_events[s], &profile)) return false;
            take_smaller(offset, executor->trace->steps[2 * s + 1] - (int64_t)profile.queued);
        }
        const int64_t seen = atomic_load(&mark->seen);
        if (seen && nns_opencl_profile(mark->event, &profile)) take_smaller(offset, seen - (int64_t)profile.end);
    }
    return true;
}

/* Replaces the host's times of enqueuing by the device's times of running, where the queue profiles. */
static void trace_lane(const nns_executor *executor, const nns_lane *lane) {
    int64_t offset = 0;
    if (!clock_offset(executor, lane, &offset)) return;
    for (int64_t i = 0; i < lane->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &executor->program->subgraphs[lane->subgraphs[i]];
        for (int64_t s = subgraph->first; s < subgraph->end; s++) {
            nns_profile profile;
            if (!nns_opencl_profile(executor->step_events[s], &profile)) continue;
            executor->trace->steps[2 * s] = (int64_t)profile.start + offset;
            executor->trace->steps[2 * s + 1] = (int64_t)profile.end + offset;
        }
    }
}

/* ---- a run ----------------------------------------------------------------------------------------------- */

/* After a failure: waits for the queues and gives all unified memory back to the host, as far as the devices let it. */
static int32_t drain(nns_program *program, nns_report *report) {
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (area->kind == NNS_REGION_SHARED && area->unified && area->bytes && !area->mapped)
            nns_opencl_map(area, program->lanes[area->lane].queue, true, NULL, report);
    }
    for (int64_t i = 0; i < program->n_lanes; i++)
        if (program->lanes[i].kind == NNS_LANE_OPENCL) nns_opencl_finish(program->lanes[i].queue, report);
    return report->status;
}

static void forget_events(nns_executor *executor) {
    const nns_program *program = executor->program;
    for (int64_t i = 0; i < program->n_subgraphs; i++) {
        nns_mark *mark = &executor->marks[i];
        const nns_subgraph *subgraph = &program->subgraphs[i];
        const bool shared = subgraph->end > subgraph->first && mark->event == executor->step_events[subgraph->end - 1];
        if (mark->event && !shared) nns_opencl_forget(mark->event);
        mark->event = NULL;
        atomic_store_explicit(&mark->seen, 0, memory_order_relaxed);
    }
    for (int64_t s = 0; executor->trace && s < program->n_steps; s++) {
        if (executor->step_events[s]) nns_opencl_forget(executor->step_events[s]);
        executor->step_events[s] = NULL;
    }
}

static void settle_opencl(nns_executor *executor) {
    nns_program *program = executor->program;
    nns_report unsettled = {0}; /* the run has failed already; its report says why */
    if (has_failed(executor)) {
        executor->unsettled = drain(program, &unsettled) != NNS_OK;
        executor->unsettled_step = nns_executor_failed_step(program);
    } else if (executor->trace)
        for (int64_t i = 0; i < program->n_lanes; i++)
            if (program->lanes[i].kind == NNS_LANE_OPENCL) trace_lane(executor, &program->lanes[i]);
    forget_events(executor);
}

static void begin(nns_executor *executor, nns_trace *trace) {
    pthread_mutex_lock(&executor->failing);
    executor->run++;
    pthread_mutex_unlock(&executor->failing);
    executor->trace = trace;
    atomic_store_explicit(&executor->walking, executor->n_threads, memory_order_relaxed);
}

static void forget_failure(nns_executor *executor) {
    pthread_mutex_lock(&executor->failing);
    executor->failure.status = NNS_OK;
    executor->failed_step = -1;
    atomic_store_explicit(&executor->failed, false, memory_order_relaxed);
    pthread_mutex_unlock(&executor->failing);
}

/* What an earlier run could not bring to rest must be before anybody touches the memory again. */
static int32_t settle_again(nns_executor *executor, nns_report *report) {
    if (!executor->unsettled) return NNS_OK;
    executor->unsettled = drain(executor->program, report) != NNS_OK;
    if (executor->unsettled) fail(executor, report, executor->unsettled_step);
    return report->status;
}

static int32_t outcome(nns_executor *executor, nns_report *report) {
    if (!has_failed(executor)) return NNS_OK;
    pthread_mutex_lock(&executor->failing);
    *report = executor->failure;
    pthread_mutex_unlock(&executor->failing);
    return report->status;
}

int32_t nns_executor_run(nns_program *program, nns_trace *trace, nns_report *report) {
    nns_executor *executor = program->executor;
    if (settle_again(executor, report)) return report->status;
    begin(executor, trace);
    if (trace) trace->begin = nns_now();
    for (int64_t i = 1; i < program->n_lanes; i++)
        if (executor->threads[i].started) nns_signal_send(&executor->threads[i].go, executor->run << 1);
    walk_caller(executor);
    if (trace) trace->end = nns_now();
    if (executor->has_opencl) settle_opencl(executor);
    return outcome(executor, report);
}

/* ---- from other threads ------------------------------------------------------------------------------------ */

static bool is_marked(const nns_executor *executor, int64_t subgraph) {
    return atomic_load_explicit(&executor->marks[subgraph].done, memory_order_relaxed) == executor->run;
}

/* Whether a sub-graph is not done though all that it waits for is: other lanes, and the one before it on its own. */
static bool is_held_up(const nns_executor *executor, const nns_lane *lane, int64_t at) {
    const nns_subgraph *subgraph = &executor->program->subgraphs[lane->subgraphs[at]];
    if (is_marked(executor, lane->subgraphs[at]) || (at && !is_marked(executor, lane->subgraphs[at - 1]))) return false;
    for (int64_t i = 0; i < subgraph->n_waits; i++)
        if (!is_marked(executor, subgraph->waits[i])) return false;
    return true;
}

static int64_t step_held_up(const nns_executor *executor) {
    const nns_program *program = executor->program;
    for (int64_t l = 0; l < program->n_lanes; l++)
        for (int64_t i = 0; i < program->lanes[l].n_subgraphs; i++)
            if (is_held_up(executor, &program->lanes[l], i))
                return program->subgraphs[program->lanes[l].subgraphs[i]].first;
    return -1;
}

int64_t nns_executor_cancel(nns_program *program) {
    nns_executor *executor = program->executor;
    nns_report report = {0};
    nns_fail(&report, NNS_ECANCELLED, "the run was cancelled");
    pthread_mutex_lock(&executor->failing);
    const int64_t step = step_held_up(executor);
    fail_locked(executor, &report, step);
    pthread_mutex_unlock(&executor->failing);
    return step;
}

int64_t nns_executor_failed_step(const nns_program *program) {
    nns_executor *executor = program->executor;
    pthread_mutex_lock(&executor->failing);
    const int64_t step = executor->failed_step;
    pthread_mutex_unlock(&executor->failing);
    return step;
}

int32_t nns_executor_enter(nns_program *program, nns_report *report) {
    nns_executor *executor = program->executor;
    const nns_lane *lane = &program->lanes[0];
    forget_failure(executor);
    executor->moved = false;
    if (lane->n_cores) {
        const int32_t status = nns_thread_pin(lane->cores[0], &executor->affinity, &executor->moved, report);
        if (status) return status;
    }
    for (int64_t i = 0; i < program->n_lanes; i++)
        if (program->lanes[i].pool) nns_pool_enter(program->lanes[i].pool, executor->spin_ns);
    atomic_fetch_add(&working, executor->n_working);
    return NNS_OK;
}

void nns_executor_leave(nns_program *program) {
    nns_executor *executor = program->executor;
    atomic_fetch_sub(&working, executor->n_working);
    for (int64_t i = 0; i < program->n_lanes; i++)
        if (program->lanes[i].pool) nns_pool_leave(program->lanes[i].pool);
    if (executor->moved) nns_thread_restore(&executor->affinity);
}

/* ---- start and stop -------------------------------------------------------------------------------------- */

static int64_t count_working(const nns_program *program) {
    int64_t threads = 0;
    for (int64_t i = 0; i < program->n_lanes; i++) {
        const nns_lane *lane = &program->lanes[i];
        threads += lane->n_cores ? lane->n_cores : lane->kind != NNS_LANE_OPENCL;
    }
    return threads;
}

/* Whether threads outnumber cores or two share one, so that who spins may keep another from working. */
static bool is_crowded(const nns_executor *executor) {
    const nns_program *program = executor->program;
    bool taken[NNS_MAX_CORES] = {false};
    for (int64_t i = 0; i < program->n_lanes; i++) {
        const nns_lane *lane = &program->lanes[i];
        for (int32_t c = 0; c < lane->n_cores; c++) {
            if (taken[lane->cores[c]]) return true;
            taken[lane->cores[c]] = true;
        }
    }
    return executor->n_working > executor->n_cores;
}

static bool same_cores(const nns_lane *a, const nns_lane *b) {
    return a->n_cores == b->n_cores && memcmp(a->cores, b->cores, sizeof *a->cores * (size_t)a->n_cores) == 0;
}

static int64_t most_threads(const nns_program *program) {
    int64_t most = 1;
    for (int64_t i = 0; i < program->n_lanes; i++)
        if (program->lanes[i].kind == NNS_LANE_HOST) most = nns_max_int(most, program->lanes[i].n_cores);
    return most;
}

/* Cuts the kernel steps of a lane up for its threads. */
static void make_tasks(nns_executor *executor, const nns_lane *lane) {
    const nns_program *program = executor->program;
    const int32_t n_threads = (int32_t)nns_max_int(lane->n_cores, 1);
    for (int64_t i = 0; i < lane->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &program->subgraphs[lane->subgraphs[i]];
        const nns_task *previous = NULL;
        for (int64_t s = subgraph->first; s < subgraph->end; s++) {
            const nns_step *step = &program->steps[s];
            nns_task *task = step->kind == NNS_STEP_KERNEL ? &executor->tasks[s] : NULL;
            if (task)
                nns_task_make(task, step->kernel, &step->args, step->work.units, lane->ratios, n_threads,
                              executor->bounds + s * executor->stride, previous);
            previous = task;
        }
    }
}

static int32_t start_pool(nns_program *program, int64_t index, nns_report *report) {
    nns_lane *lane = &program->lanes[index];
    int32_t ordinal = 0;
    for (int64_t i = 0; i < index; i++) ordinal += program->lanes[i].pool && same_cores(lane, &program->lanes[i]);
    lane->pool = nns_pool_acquire(lane->cores, lane->n_cores, ordinal, report);
    if (!lane->pool) return report->status;
    int64_t scratch = 0;
    for (int64_t i = 0; i < lane->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &program->subgraphs[lane->subgraphs[i]];
        for (int64_t s = subgraph->first; s < subgraph->end; s++)
            scratch = nns_max_int(scratch, program->steps[s].work.scratch);
    }
    return nns_pool_reserve(lane->pool, scratch, report);
}

static int32_t start_thread(nns_executor *executor, int32_t index, nns_report *report) {
    const nns_lane *lane = &executor->program->lanes[index];
    nns_lane_thread *thread = &executor->threads[index];
    /* A host lane's thread is the first of its pool; a call may use all cores of its lane. */
    const int32_t n_cores = lane->kind == NNS_LANE_HOST ? (int32_t)nns_min_int(lane->n_cores, 1) : lane->n_cores;
    thread->lane = index;
    thread->executor = executor;
    const int32_t status =
        nns_thread_start(&thread->thread, "nns-lane", lane->cores, n_cores, lane_thread, thread, report);
    if (status) return status;
    thread->started = true;
    executor->n_threads++;
    return NNS_OK;
}

static int32_t start_lane(nns_executor *executor, int32_t index, nns_report *report) {
    nns_lane *lane = &executor->program->lanes[index];
    if (lane->kind == NNS_LANE_OPENCL) {
        executor->has_opencl = true;
        return nns_opencl_loaded()
                   ? NNS_OK
                   : nns_fail(report, NNS_EINVALID, "OpenCL lane %d: nns_opencl_load comes first", (int)index);
    }
    if (lane->kind == NNS_LANE_HOST) {
        const int32_t status = start_pool(executor->program, index, report);
        if (status) return status;
        make_tasks(executor, lane);
    }
    return index && lane->n_subgraphs ? start_thread(executor, index, report) : NNS_OK;
}

static int32_t map_shared(nns_program *program, nns_report *report) {
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (area->kind != NNS_REGION_SHARED || !area->unified || !area->bytes) continue;
        const int32_t status = nns_opencl_map(area, program->lanes[area->lane].queue, true, NULL, report);
        if (status) return status;
    }
    return NNS_OK;
}

static void *zeroed(size_t count, size_t size) {
    const size_t bytes = (count ? count : 1) * size;
    void *memory = aligned_alloc(NNS_CACHE_LINE, (bytes + NNS_CACHE_LINE - 1) / NNS_CACHE_LINE * NNS_CACHE_LINE);
    return memory ? memset(memory, 0, bytes) : NULL;
}

int32_t nns_executor_start(nns_program *program, nns_report *report) {
    nns_executor *executor = zeroed(1, sizeof *executor);
    if (!executor) return nns_fail(report, NNS_EMEMORY, "no memory for an executor");
    program->executor = executor;
    executor->program = program;
    pthread_mutex_init(&executor->failing, NULL);
    executor->failed_step = -1;
    executor->n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    executor->n_working = count_working(program);
    executor->spin_ns = is_crowded(executor) ? CROWDED_SPIN_NS : SPIN_NS;
    executor->stride = most_threads(program) + 1;
    executor->marks = zeroed((size_t)program->n_subgraphs, sizeof *executor->marks);
    executor->tasks = zeroed((size_t)program->n_steps, sizeof *executor->tasks);
    executor->bounds = zeroed((size_t)(program->n_steps * executor->stride), sizeof *executor->bounds);
    executor->threads = zeroed((size_t)program->n_lanes, sizeof *executor->threads);
    executor->step_events = zeroed((size_t)program->n_steps, sizeof *executor->step_events);
    if (!executor->marks || !executor->tasks || !executor->bounds || !executor->threads || !executor->step_events)
        return nns_fail(report, NNS_EMEMORY, "no memory for an executor of %lld steps and %lld sub-graphs",
                        (long long)program->n_steps, (long long)program->n_subgraphs);
    for (int32_t i = 0; i < program->n_lanes; i++) {
        const int32_t status = start_lane(executor, i, report);
        if (status) return status;
    }
    return map_shared(program, report);
}

static void unmap_shared(nns_program *program) {
    nns_report ignored = {0}; /* nobody is left to tell */
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (!area->mapped) continue;
        nns_opencl_unmap(area, program->lanes[area->lane].queue, &ignored);
        nns_opencl_finish(program->lanes[area->lane].queue, &ignored);
    }
}

void nns_executor_stop(nns_program *program) {
    nns_executor *executor = program->executor;
    if (!executor) return;
    const bool alive = program->process == getpid();
    executor->stop = true;
    for (int64_t i = 0; alive && executor->threads && i < program->n_lanes; i++) {
        if (!executor->threads[i].started) continue;
        nns_signal_send(&executor->threads[i].go, (executor->run + 1) << 1);
        pthread_join(executor->threads[i].thread, NULL);
    }
    if (alive) unmap_shared(program);
    for (int64_t i = 0; i < program->n_lanes; i++)
        if (program->lanes[i].pool) nns_pool_release(program->lanes[i].pool);
    pthread_mutex_destroy(&executor->failing);
    free(executor->marks);
    free(executor->tasks);
    free(executor->bounds);
    free(executor->threads);
    free(executor->step_events);
    free(executor);
    program->executor = NULL;
}
