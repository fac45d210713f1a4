/* After a run with OpenCL queues: completes traces, and drains command queues after failures. */
#include "opencl.h"
#include "run.h"

/* ---- traces of OpenCL queues ------------------------------------------------------------------------------ */

static void take_smaller(int64_t *smallest, int64_t value) {
    if (value < *smallest) *smallest = value;
}

/* The offset from the device's clock to the host's: the minimum over two kinds of differences, which can only
 * be too large. One is too large by the time from a command's entry into the queue to the return of the host's
 * call, the other by the time from a command's end to the host's observation of it. */
static bool clock_offset(const nns_executor *executor, const nns_queue *queue, int64_t *offset) {
    const nns_program *program = executor->program;
    *offset = INT64_MAX;
    nns_profile profile;
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        const int64_t index = queue->subgraphs[i];
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

/* Replaces the host's times of enqueueing by the device's times of execution if the command queue profiles. */
static void trace_queue(const nns_executor *executor, const nns_queue *queue) {
    int64_t offset = 0;
    if (!clock_offset(executor, queue, &offset)) return;
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        const nns_subgraph *subgraph = &executor->program->subgraphs[queue->subgraphs[i]];
        for (int64_t s = subgraph->first; s < subgraph->end; s++) {
            nns_profile profile;
            if (!nns_opencl_profile(executor->step_events[s], &profile)) continue;
            executor->trace->steps[2 * s] = (int64_t)profile.start + offset;
            executor->trace->steps[2 * s + 1] = (int64_t)profile.end + offset;
        }
    }
}

/* ---- draining -------------------------------------------------------------------------------------------- */

/* After a failure: waits for the command queues and maps all MAPPED memory for the host, as far as the devices
 * can. */
static int32_t drain(nns_program *program, nns_report *report) {
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        if (nns_needs_mapping(area) && !area->mapped)
            nns_opencl_map(area, program->queues[area->queue].command_queue, true, NULL, report);
    }
    for (int64_t i = 0; i < program->n_queues; i++) {
        const nns_queue *queue = &program->queues[i];
        if (queue->kind != NNS_QUEUE_OPENCL) continue;
        nns_opencl_finish(queue->command_queue, report);
        if (queue->trace_queue != queue->command_queue) nns_opencl_finish(queue->trace_queue, report);
    }
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

void nns_drain(nns_executor *executor) {
    nns_program *program = executor->program;
    nns_report undrained = {0}; /* the run has failed already; its report says why */
    if (nns_has_failed(executor)) {
        executor->undrained = drain(program, &undrained) != NNS_OK;
        executor->undrained_step = nns_program_failed_step(program);
    } else if (executor->trace)
        for (int64_t i = 0; i < program->n_queues; i++)
            if (program->queues[i].kind == NNS_QUEUE_OPENCL) trace_queue(executor, &program->queues[i]);
    forget_events(executor);
}

int32_t nns_drain_again(nns_executor *executor, nns_report *report) {
    executor->undrained = drain(executor->program, report) != NNS_OK;
    if (executor->undrained) nns_run_fail(executor, report, executor->undrained_step);
    return report->status;
}
