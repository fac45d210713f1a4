/* Starts and stops the queues: thread pools, threads, and mappings of shared memory. */
#include <stdlib.h>

#include "command_buffers.h"
#include "opencl.h"
#include "run.h"

enum { MOST_TRANSFER_DELAY_US = 1000000 };
/* Fewest launches for which a thread is woken. With PoCL on two cores enqueueing one takes 2 to 6 us, and waking a thread
 * 50 us: a network of 25 launches takes 0.96 of its time, one of 18 between 0.93 and 1.02, one of 11 up to 1.04. */
enum { FEWEST_LENT_LAUNCHES = 16 };

static void *queue_thread(void *argument) {
    nns_queue_thread *thread = argument;
    nns_executor *executor = thread->executor;
    const int64_t spin_ns = executor->spin_ns < BETWEEN_RUNS_SPIN_NS ? executor->spin_ns : BETWEEN_RUNS_SPIN_NS;
    uint32_t seen = 0;
    for (;;) {
        seen = nns_signal_await(&thread->go, seen, spin_ns);
        if (atomic_load(&executor->stop)) return NULL;
        nns_dispatch_queue(executor, &executor->program->queues[thread->queue]);
        atomic_fetch_sub(&executor->active_threads, 1);
        nns_announce(executor);
    }
}

/* The thread of an OpenCL queue. It does not spin between runs: it would take the core from the device. It may wake only
 * after the run that it was woken for. */
static void *enqueueing_thread(void *argument) {
    nns_queue_thread *thread = argument;
    nns_executor *executor = thread->executor;
    uint32_t seen = 0;
    for (;;) {
        seen = nns_signal_await(&thread->go, seen, 0);
        if (atomic_load(&executor->stop)) return NULL;
        nns_dispatch_lent(executor);
    }
}

static int64_t count_working(const nns_program *program) {
    int64_t threads = 0;
    for (int64_t i = 0; i < program->n_queues; i++) {
        const nns_queue *queue = &program->queues[i];
        threads += queue->n_cores ? queue->n_cores : queue->kind != NNS_QUEUE_OPENCL;
    }
    return threads;
}

/* Whether threads outnumber cores or two share one, so that a spinning thread may delay another. */
static bool is_crowded(const nns_executor *executor) {
    const nns_program *program = executor->program;
    bool taken[NNS_MAX_CORES] = {false};
    for (int64_t i = 0; i < program->n_queues; i++) {
        const nns_queue *queue = &program->queues[i];
        for (int32_t c = 0; c < queue->n_cores; c++) {
            if (taken[queue->cores[c]]) return true;
            taken[queue->cores[c]] = true;
        }
    }
    return executor->n_working > executor->n_cores;
}

static bool same_cores(const nns_queue *a, const nns_queue *b) {
    return a->n_cores == b->n_cores && memcmp(a->cores, b->cores, sizeof *a->cores * (size_t)a->n_cores) == 0;
}

static int64_t most_threads(const nns_program *program) {
    int64_t most = 1;
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].kind == NNS_QUEUE_HOST) most = nns_max_int(most, program->queues[i].n_cores);
    return most;
}

/* Divides the kernel steps of a queue among its threads. */
static void make_tasks(nns_executor *executor, const nns_queue *queue) {
    const nns_program *program = executor->program;
    const int32_t n_threads = (int32_t)nns_max_int(queue->n_cores, 1);
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &program->subgraphs[queue->subgraphs[i]];
        const nns_task *previous = NULL;
        for (int64_t s = subgraph->first; s < subgraph->end; s++) {
            const nns_step *step = &program->steps[s];
            nns_task *task = step->kind == NNS_STEP_KERNEL ? &executor->tasks[s] : NULL;
            if (task)
                nns_task_make(task, step->kernel, &step->args, step->work.units, queue->ratios, n_threads,
                              executor->bounds + s * executor->stride, previous);
            previous = task;
        }
    }
}

static int32_t start_pool(nns_program *program, int64_t index, nns_report *report) {
    nns_queue *queue = &program->queues[index];
    int32_t ordinal = 0;
    for (int64_t i = 0; i < index; i++) ordinal += program->queues[i].pool && same_cores(queue, &program->queues[i]);
    queue->pool = nns_pool_acquire(queue->cores, queue->n_cores, queue->ratios != NULL, ordinal, report);
    if (!queue->pool) return report->status;
    int64_t scratch = 0;
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &program->subgraphs[queue->subgraphs[i]];
        for (int64_t s = subgraph->first; s < subgraph->end; s++)
            scratch = nns_max_int(scratch, program->steps[s].work.scratch);
    }
    return nns_pool_reserve(queue->pool, scratch, report);
}

static int32_t start_thread(nns_executor *executor, int32_t index, void *(*body)(void *), nns_report *report) {
    const nns_queue *queue = &executor->program->queues[index];
    nns_queue_thread *thread = &executor->threads[index];
    /* A host queue's thread is the first of its pool, which may be tied; a call may use all cores of its queue. */
    const bool tied = queue->kind == NNS_QUEUE_HOST && queue->ratios;
    const int32_t n_cores = tied ? (int32_t)nns_min_int(queue->n_cores, 1) : queue->n_cores;
    thread->queue = index;
    thread->executor = executor;
    TRY(nns_thread_start(&thread->thread, "nns-queue", queue->cores, n_cores, body, thread, report));
    thread->started = true;
    return NNS_OK;
}

/* Whether an OpenCL queue is worth lending: its device's cores are idle at the begin of a run, while queue 0 computes,
 * and there is more to enqueue than a thread takes to wake. */
static bool is_lendable(const nns_executor *executor, const nns_queue *queue) {
    const nns_program *program = executor->program;
    const nns_queue *callers = &program->queues[0];
    if (!executor->gated || !queue->n_cores || !queue->n_subgraphs || !callers->n_subgraphs) return false;
    int64_t launches = 0;
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &program->subgraphs[queue->subgraphs[i]];
        launches += subgraph->end - subgraph->first + (subgraph->semaphore.kernel != NULL);
    }
    return launches >= FEWEST_LENT_LAUNCHES && program->subgraphs[queue->subgraphs[0]].n_waits &&
           !program->subgraphs[callers->subgraphs[0]].n_waits;
}

static int32_t start_opencl(nns_executor *executor, int32_t index, nns_report *report) {
    executor->has_opencl = true;
    if (!nns_opencl_loaded())
        return nns_fail(report, NNS_EINVALID, "OpenCL queue %d: nns_opencl_load comes first", (int)index);
    nns_report ignored = {0}; /* without a thread the queue is not lent */
    if (is_lendable(executor, &executor->program->queues[index]) &&
        start_thread(executor, index, enqueueing_thread, &ignored) == NNS_OK)
        executor->lendable = index;
    return NNS_OK;
}

static int32_t start_queue(nns_executor *executor, int32_t index, nns_report *report) {
    nns_queue *queue = &executor->program->queues[index];
    if (queue->kind == NNS_QUEUE_OPENCL) return start_opencl(executor, index, report);
    if (queue->kind == NNS_QUEUE_HOST) {
        TRY(start_pool(executor->program, index, report));
        make_tasks(executor, queue);
    }
    if (!index || !queue->n_subgraphs) return NNS_OK;
    executor->n_threads++;
    return start_thread(executor, index, queue_thread, report);
}

static int32_t map_shared(nns_program *program, nns_report *report) {
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (!nns_needs_mapping(area)) continue;
        TRY(nns_opencl_map(area, program->queues[area->queue].command_queue, true, NULL, report));
    }
    return NNS_OK;
}

static void *zeroed(size_t count, size_t size) {
    const size_t bytes = (count ? count : 1) * size;
    void *memory = aligned_alloc(NNS_CACHE_LINE, (bytes + NNS_CACHE_LINE - 1) / NNS_CACHE_LINE * NNS_CACHE_LINE);
    return memory ? memset(memory, 0, bytes) : NULL;
}

/* The delay of transfers that the environment asks for; 0 for other texts than a number of microseconds. */
static int64_t transfer_delay_ns(void) {
    const char *text = getenv("NNSTRETCH_TRANSFER_DELAY_US");
    const double us = text ? strtod(text, NULL) : 0;
    return us > 0 && us <= MOST_TRANSFER_DELAY_US ? (int64_t)(us * 1000) : 0;
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
    const bool crowded = is_crowded(executor);
    executor->spin_ns = crowded ? CROWDED_SPIN_NS : SPIN_NS;
    executor->transfer_delay_ns = transfer_delay_ns();
    executor->gated = program->flags && !crowded;
    executor->stride = most_threads(program) + 1;
    executor->marks = zeroed((size_t)program->n_subgraphs, sizeof *executor->marks);
    executor->tasks = zeroed((size_t)program->n_steps, sizeof *executor->tasks);
    executor->bounds = zeroed((size_t)(program->n_steps * executor->stride), sizeof *executor->bounds);
    executor->threads = zeroed((size_t)program->n_queues, sizeof *executor->threads);
    executor->step_events = zeroed((size_t)program->n_steps, sizeof *executor->step_events);
    if (!executor->marks || !executor->tasks || !executor->bounds || !executor->threads || !executor->step_events)
        return nns_fail(report, NNS_EMEMORY, "no memory for an executor of %lld steps and %lld sub-graphs",
                        (long long)program->n_steps, (long long)program->n_subgraphs);
    for (int32_t i = 0; i < program->n_queues; i++) TRY(start_queue(executor, i, report));
    return map_shared(program, report);
}

static void unmap_shared(nns_program *program) {
    nns_report ignored = {0}; /* there is no caller to report to */
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (!area->mapped) continue;
        nns_opencl_unmap(area, program->queues[area->queue].command_queue, &ignored);
        nns_opencl_finish(program->queues[area->queue].command_queue, &ignored);
    }
}

void nns_executor_stop(nns_program *program) {
    nns_executor *executor = program->executor;
    if (!executor) return;
    const bool alive = program->process == getpid();
    atomic_store(&executor->stop, true);
    for (int64_t i = 0; alive && executor->threads && i < program->n_queues; i++) {
        if (!executor->threads[i].started) continue;
        nns_signal_send(&executor->threads[i].go, (executor->run + 1) << 1);
        pthread_join(executor->threads[i].thread, NULL);
    }
    if (alive) unmap_shared(program);
    for (int32_t i = 0; alive && i < program->n_queues; i++) nns_command_buffers_release(program, i);
    for (int64_t i = 0; i < program->n_queues; i++)
        if (program->queues[i].pool) nns_pool_release(program->queues[i].pool);
    pthread_mutex_destroy(&executor->failing);
    free(executor->marks);
    free(executor->tasks);
    free(executor->bounds);
    free(executor->threads);
    free(executor->step_events);
    free(executor);
    program->executor = NULL;
}
