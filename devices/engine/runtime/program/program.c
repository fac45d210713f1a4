/* Programs: created, run, timed, cancelled from other threads, and destroyed. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "run/command_buffers.h"
#include "run/run.h"

_Atomic int64_t nns_working, nns_gated;

/* ---- creation -------------------------------------------------------------------------------------------- */

static void free_program(nns_program *program) {
    for (int64_t i = 0; program->queues && i < program->n_queues; i++) {
        free(program->queues[i].cores);
        free(program->queues[i].subgraphs);
        free(program->queues[i].command_buffers); /* in the child of a fork, where no driver works; else they are released */
    }
    for (int64_t i = 0; program->steps && i < program->n_steps; i++) free(program->steps[i].parameters);
    for (int64_t i = 0; program->subgraphs && i < program->n_subgraphs; i++) free(program->subgraphs[i].touched);
    free(program->queues);
    free(program->areas);
    free(program->buffers);
    free(program->steps);
    free(program->patches);
    free(program->subgraphs);
    free(program->image);
    nns_turn_destroy(&program->turn);
    free(program);
}

static int32_t fill(nns_program *program, const int64_t *image, int64_t words, const nns_bindings *bindings,
                    nns_report *report) {
    program->image = malloc((size_t)words * sizeof *image);
    if (!program->image)
        return nns_fail(report, NNS_EMEMORY, "no memory for a program of %lld words", (long long)words);
    memcpy(program->image, image, (size_t)words * sizeof *image);
    TRY(nns_parse(program, words, bindings, report));
    return nns_executor_start(program, report);
}

int32_t nns_program_create(const int64_t *image, int64_t words, const nns_bindings *bindings, nns_program **program,
                           char *error, int64_t error_size) {
    nns_report report = {0};
    *program = NULL;
    nns_program *made = calloc(1, sizeof *made);
    if (!image || words < 1 || words > NNS_MOST_BYTES / (int64_t)sizeof *image || !bindings)
        nns_fail(&report, NNS_EINVALID, "there is no program image");
    else if (!made)
        nns_fail(&report, NNS_EMEMORY, "no memory for a program");
    if (report.status) {
        free(made);
        return nns_answer(&report, error, error_size);
    }
    nns_turn_init(&made->turn);
    made->process = getpid();
    if (fill(made, image, words, bindings, &report) == NNS_OK)
        *program = made;
    else
        nns_program_destroy(made);
    return nns_answer(&report, error, error_size);
}

void nns_program_destroy(nns_program *program) {
    if (!program) return;
    nns_executor_stop(program);
    free_program(program);
}

static int32_t record(nns_program *program, int32_t queue, int64_t *count, nns_report *report) {
    if (!nns_is_ours(program))
        return nns_fail(report, NNS_EINVALID, "the program was made before a fork; make it again in this process");
    if (queue < 0 || queue >= program->n_queues || program->queues[queue].kind != NNS_QUEUE_OPENCL)
        return nns_fail(report, NNS_EINVALID, "queue %d of the program is no OpenCL queue", (int)queue);
    nns_turn_lock(&program->turn);
    nns_command_buffers_record(program, queue, count, report);
    nns_turn_unlock(&program->turn);
    return report->status;
}

int32_t nns_program_record(nns_program *program, int32_t queue, int64_t *count, char *error, int64_t error_size) {
    nns_report report = {0};
    *count = 0;
    record(program, queue, count, &report);
    return nns_answer(&report, error, error_size);
}

/* ---- failures -------------------------------------------------------------------------------------------- */

static void set_flags(const nns_program *program, int32_t value) {
    for (int64_t i = 0; program->flags && i < program->n_subgraphs; i++)
        atomic_store_explicit(&program->flags[i], value, memory_order_release);
}

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

/* ---- runs ------------------------------------------------------------------------------------------------ */

/* Checks one input or output of a run against the region that it provides. */
static int32_t check_feed(const nns_area *area, const void *data, int64_t bytes, nns_report *report) {
    const char *what = area->kind == NNS_REGION_OUTPUT ? "output" : "input";
    if (bytes < area->bytes)
        return nns_fail(report, NNS_EINVALID, "%s %lld of the run has %lld bytes and needs %lld", what,
                        (long long)area->index, (long long)bytes, (long long)area->bytes);
    if (!data && area->bytes)
        return nns_fail(report, NNS_EINVALID, "%s %lld of the run is missing", what, (long long)area->index);
    return NNS_OK;
}

static int32_t check_feeds(const nns_program *program, const nns_feeds *feeds, nns_report *report) {
    static const nns_feeds none = {0};
    if (!feeds) feeds = &none;
    if (feeds->n_inputs != program->n_inputs || feeds->n_outputs != program->n_outputs)
        return nns_fail(report, NNS_EINVALID,
                        "the run has %lld inputs and %lld outputs, the program has %lld inputs and %lld outputs",
                        (long long)feeds->n_inputs, (long long)feeds->n_outputs, (long long)program->n_inputs,
                        (long long)program->n_outputs);
    if ((feeds->n_inputs && !feeds->inputs) || (feeds->n_outputs && !feeds->outputs))
        return nns_fail(report, NNS_EINVALID, "the arrays of the run's inputs and outputs are missing");
    for (int64_t i = 0; i < program->n_regions; i++) {
        const nns_area *area = &program->areas[i];
        if (area->kind == NNS_REGION_INPUT)
            TRY(check_feed(area, feeds->inputs[area->index].data, feeds->inputs[area->index].bytes, report));
        if (area->kind == NNS_REGION_OUTPUT)
            TRY(check_feed(area, feeds->outputs[area->index].data, feeds->outputs[area->index].bytes, report));
    }
    return NNS_OK;
}

/* Sets the operands that lie in this run's inputs and outputs. */
static void bind(nns_program *program, const nns_feeds *feeds) {
    for (int64_t i = 0; i < program->n_patches; i++) {
        const nns_patch *patch = &program->patches[i];
        nns_args *args = &program->steps[patch->step].args;
        const char *base = patch->output ? feeds->outputs[patch->index].data : feeds->inputs[patch->index].data;
        if (patch->written)
            args->out[patch->slot] = (char *)base + patch->offset;
        else
            args->in[patch->slot] = base + patch->offset;
    }
}

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

/* One run, between `enter` and `leave`. */
static int32_t run_once(nns_program *program, nns_trace *trace, nns_report *report) {
    nns_executor *executor = program->executor;
    if (executor->undrained && nns_drain_again(executor, report)) return report->status;
    begin(executor, trace);
    const int64_t interruptions = executor->gated ? count_interruptions() : 0;
    if (trace) trace->begin = nns_now();
    for (int64_t i = 1; i < program->n_queues; i++)
        if (executor->threads[i].started && i != executor->lendable)
            nns_signal_send(&executor->threads[i].go, executor->run << 1);
    nns_dispatch_caller(executor);
    if (executor->orphaned) {
        *report = executor->failure;
        return report->status;
    }
    if (trace) trace->end = nns_now();
    if (executor->gated) record_interruptions(executor, interruptions);
    if (executor->has_opencl) nns_drain(executor);
    return outcome(executor, report);
}

/* Moves the calling thread to queue 0's cores, or to the first one if threads are tied to theirs. The system may take cores
 * away between runs: such a run goes on unpinned, with one warning per program, and the next run tries again. */
static int32_t pin_caller(nns_executor *executor, const nns_queue *queue, nns_report *report) {
    nns_report failed = {0};
    executor->moved = false;
    if (!queue->n_cores) return NNS_OK;
    const int32_t n_cores = queue->ratios ? 1 : queue->n_cores;
    if (nns_thread_pin(queue->cores, n_cores, &executor->affinity, &executor->moved, &failed) == NNS_OK) {
        executor->was_pinned = true;
        return NNS_OK;
    }
    if (!executor->was_pinned) {
        *report = failed;
        return report->status;
    }
    if (!executor->warned) fprintf(stderr, "nnstretch: %s; runs go on without it\n", failed.text);
    executor->warned = true;
    return NNS_OK;
}

/* Sets the run's operands, announces the run to the pools, and pins the calling thread. */
static int32_t prepare(nns_program *program, const nns_feeds *feeds, nns_report *report) {
    nns_executor *executor = program->executor;
    bind(program, feeds);
    forget_failure(executor);
    TRY(pin_caller(executor, &program->queues[0], report));
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].pool) nns_pool_enter(program->queues[i].pool, executor->spin_ns);
    atomic_fetch_add(&nns_working, executor->n_working);
    atomic_fetch_add(&nns_gated, executor->gated);
    return NNS_OK;
}

static int32_t enter(nns_program *program, const nns_feeds *feeds, nns_report *report) {
    if (!nns_is_ours(program))
        return nns_fail(report, NNS_EINVALID, "the program was made before a fork; make it again in this process");
    TRY(check_feeds(program, feeds, report));
    nns_turn_lock(&program->turn);
    const int32_t status = prepare(program, feeds, report);
    if (status) nns_turn_unlock(&program->turn);
    return status;
}

static void leave(nns_program *program) {
    nns_executor *executor = program->executor;
    if (executor->moved) nns_thread_restore(&executor->affinity);
    if (executor->orphaned) return; /* fork.c has reset the counters, and nobody waits for the locks */
    atomic_fetch_sub(&nns_working, executor->n_working);
    atomic_fetch_sub(&nns_gated, executor->gated);
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].pool) nns_pool_leave(program->queues[i].pool);
    nns_turn_unlock(&program->turn);
}

int32_t nns_program_run(nns_program *program, const nns_feeds *feeds, nns_trace *trace, char *error,
                        int64_t error_size) {
    nns_report report = {0};
    if (enter(program, feeds, &report) == NNS_OK) {
        run_once(program, trace, &report);
        leave(program);
    }
    return nns_answer(&report, error, error_size);
}

int32_t nns_program_time(nns_program *program, const nns_feeds *feeds, int64_t warmup, int64_t runs, int64_t budget_ns,
                         int64_t *ns, int64_t *done, char *error, int64_t error_size) {
    enum { FEWEST = 3 };
    nns_report report = {0};
    *done = 0;
    if (enter(program, feeds, &report) != NNS_OK) return nns_answer(&report, error, error_size);
    const int64_t start = nns_now();
    for (int64_t i = 0; i < warmup && !report.status; i++) {
        run_once(program, NULL, &report);
        if (budget_ns > 0 && nns_now() - start > budget_ns) break;
    }
    for (int64_t i = 0; i < runs && !report.status; i++) {
        if (budget_ns > 0 && i >= FEWEST && nns_now() - start > budget_ns) break;
        const int64_t begin = nns_now();
        run_once(program, NULL, &report);
        if (report.status) break;
        ns[i] = nns_now() - begin;
        *done = i + 1;
    }
    leave(program);
    return nns_answer(&report, error, error_size);
}

/* ---- from other threads ---------------------------------------------------------------------------------- */

static bool is_marked(const nns_executor *executor, int64_t subgraph) {
    return atomic_load_explicit(&executor->marks[subgraph].done, memory_order_relaxed) == executor->run;
}

/* Whether a sub-graph is not done although all sub-graphs are that it waits for, including the one before it on
 * its queue. */
static bool is_held_up(const nns_executor *executor, const nns_queue *queue, int64_t at) {
    const nns_subgraph *subgraph = &executor->program->subgraphs[queue->subgraphs[at]];
    if (is_marked(executor, queue->subgraphs[at]) || (at && !is_marked(executor, queue->subgraphs[at - 1])))
        return false;
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

int64_t nns_program_cancel(nns_program *program) {
    if (!nns_is_ours(program)) return -1;
    nns_executor *executor = program->executor;
    nns_report report = {0};
    nns_fail(&report, NNS_ECANCELLED, "the run was cancelled");
    pthread_mutex_lock(&executor->failing);
    const int64_t step = step_held_up(executor);
    nns_run_fail_locked(executor, &report, step);
    pthread_mutex_unlock(&executor->failing);
    return step;
}

int64_t nns_program_failed_step(const nns_program *program) {
    if (!nns_is_ours(program)) return -1;
    nns_executor *executor = program->executor;
    pthread_mutex_lock(&executor->failing);
    const int64_t step = executor->failed_step;
    pthread_mutex_unlock(&executor->failing);
    return step;
}
