/* Begins and ends a run, and cancels it from other threads. */
#include "executor.h"

#include <sys/resource.h>

#include "run.h"

_Atomic int64_t nns_working, nns_gated;

/* ---- flags ----------------------------------------------------------------------------------------------- */

static void set_flags(const nns_program *program, int32_t value) {
    for (int64_t i = 0; program->flags && i < program->n_subgraphs; i++)
        atomic_store_explicit(&program->flags[i], value, memory_order_release);
}

/* ---- failing --------------------------------------------------------------------------------------------- */

void nns_run_fail_locked(nns_executor *executor, const nns_report *report, int64_t step) {
    if (!executor->failure.status) {
        executor->failure = *report;
        executor->failed_step = step;
    }
    atomic_store(&executor->failed, true);
    set_flags(executor->program, NNS_FLAG_FAILED); /* else devices would wait at semaphores for ever */
    nns_announce(executor);
}

void nns_run_fail(nns_executor *executor, const nns_report *report, int64_t step) {
    pthread_mutex_lock(&executor->failing);
    nns_run_fail_locked(executor, report, step);
    pthread_mutex_unlock(&executor->failing);
}

/* ---- a run ----------------------------------------------------------------------------------------------- */

static void begin(nns_executor *executor, nns_trace *trace) {
    pthread_mutex_lock(&executor->failing);
    executor->run++;
    pthread_mutex_unlock(&executor->failing);
    executor->trace = trace;
    set_flags(executor->program, 0);
    atomic_store_explicit(&executor->active_threads, executor->n_threads, memory_order_relaxed);
}

static void forget_failure(nns_executor *executor) {
    pthread_mutex_lock(&executor->failing);
    executor->failure.status = NNS_OK;
    executor->failed_step = -1;
    atomic_store_explicit(&executor->failed, false, memory_order_relaxed);
    pthread_mutex_unlock(&executor->failing);
}

static int32_t outcome(nns_executor *executor, nns_report *report) {
    if (!nns_has_failed(executor)) return NNS_OK;
    pthread_mutex_lock(&executor->failing);
    *report = executor->failure;
    pthread_mutex_unlock(&executor->failing);
    return report->status;
}

/* How often the calling thread was preempted. */
static int64_t count_interruptions(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
}

static void record_interruptions(nns_executor *executor, int64_t since) {
    const int32_t count = executor->interrupted;
    if (count_interruptions() != since) executor->interrupted = count < MOST_INTERRUPTED ? count + 1 : count;
    else if (count) executor->interrupted = count - 1;
}

int32_t nns_executor_run(nns_program *program, nns_trace *trace, nns_report *report) {
    nns_executor *executor = program->executor;
    if (executor->undrained && nns_drain_again(executor, report)) return report->status;
    begin(executor, trace);
    const int64_t interruptions = executor->gated ? count_interruptions() : 0;
    if (trace) trace->begin = nns_now();
    for (int64_t i = 1; i < program->n_queues; i++)
        if (executor->threads[i].started) nns_signal_send(&executor->threads[i].go, executor->run << 1);
    nns_dispatch_caller(executor);
    if (trace) trace->end = nns_now();
    if (executor->gated) record_interruptions(executor, interruptions);
    if (executor->has_opencl) nns_drain(executor);
    return outcome(executor, report);
}

int32_t nns_executor_enter(nns_program *program, nns_report *report) {
    nns_executor *executor = program->executor;
    const nns_queue *queue = &program->queues[0];
    forget_failure(executor);
    executor->moved = false;
    if (queue->n_cores) {
        const int32_t status = nns_thread_pin(queue->cores[0], &executor->affinity, &executor->moved, report);
        if (status) return status;
    }
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].pool) nns_pool_enter(program->queues[i].pool, executor->spin_ns);
    atomic_fetch_add(&nns_working, executor->n_working);
    atomic_fetch_add(&nns_gated, executor->gated);
    return NNS_OK;
}

void nns_executor_leave(nns_program *program) {
    nns_executor *executor = program->executor;
    atomic_fetch_sub(&nns_working, executor->n_working);
    atomic_fetch_sub(&nns_gated, executor->gated);
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].pool) nns_pool_leave(program->queues[i].pool);
    if (executor->moved) nns_thread_restore(&executor->affinity);
}

/* ---- from other threads ---------------------------------------------------------------------------------- */

static bool is_marked(const nns_executor *executor, int64_t subgraph) {
    return atomic_load_explicit(&executor->marks[subgraph].done, memory_order_relaxed) == executor->run;
}

/* Whether a sub-graph is not done although all sub-graphs are that it waits for, including the one before it on
 * its queue. */
static bool is_held_up(const nns_executor *executor, const nns_queue *queue, int64_t at) {
    const nns_subgraph *subgraph = &executor->program->subgraphs[queue->subgraphs[at]];
    if (is_marked(executor, queue->subgraphs[at]) || (at && !is_marked(executor, queue->subgraphs[at - 1]))) return false;
    for (int64_t i = 0; i < subgraph->n_waits; i++)
        if (!is_marked(executor, subgraph->waits[i])) return false;
    return true;
}

static int64_t step_held_up(const nns_executor *executor) {
    const nns_program *program = executor->program;
    for (int64_t l = 0; l < program->n_queues; l++)
        for (int64_t i = 0; i < program->queues[l].n_subgraphs; i++)
            if (is_held_up(executor, &program->queues[l], i))
                return program->subgraphs[program->queues[l].subgraphs[i]].first;
    return -1;
}

int64_t nns_executor_cancel(nns_program *program) {
    nns_executor *executor = program->executor;
    nns_report report = {0};
    nns_fail(&report, NNS_ECANCELLED, "the run was cancelled");
    pthread_mutex_lock(&executor->failing);
    const int64_t step = step_held_up(executor);
    nns_run_fail_locked(executor, &report, step);
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
