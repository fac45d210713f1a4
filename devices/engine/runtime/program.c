#include "program.h"

#include <stdlib.h>

#include "clock.h"
#include "executor.h"
#include "parse.h"

static void free_program(nns_program *program) {
    for (int64_t i = 0; program->queues && i < program->n_queues; i++) {
        free(program->queues[i].cores);
        free(program->queues[i].subgraphs);
    }
    for (int64_t i = 0; program->subgraphs && i < program->n_subgraphs; i++) free(program->subgraphs[i].touched);
    free(program->queues);
    free(program->areas);
    free(program->buffers);
    free(program->steps);
    free(program->patches);
    free(program->subgraphs);
    free(program->image);
    pthread_mutex_destroy(&program->turn);
    free(program);
}

static int32_t fill(nns_program *program, const int64_t *image, int64_t words, const nns_bindings *bindings,
                    nns_report *report) {
    program->image = malloc((size_t)words * sizeof *image);
    if (!program->image)
        return nns_fail(report, NNS_EMEMORY, "no memory for a program of %lld words", (long long)words);
    memcpy(program->image, image, (size_t)words * sizeof *image);
    const int32_t status = nns_parse(program, words, bindings, report);
    return status ? status : nns_executor_start(program, report);
}

int32_t nns_program_create(const int64_t *image, int64_t words, const nns_bindings *bindings, nns_program **program,
                           char *error, int64_t error_size) {
    nns_report report = {0};
    *program = NULL;
    nns_program *made = calloc(1, sizeof *made);
    if (!image || words < 1 || words > INT64_MAX / 8 || !bindings)
        nns_fail(&report, NNS_EINVALID, "there is no program image");
    else if (!made)
        nns_fail(&report, NNS_EMEMORY, "no memory for a program");
    if (report.status) {
        free(made);
        return nns_answer(&report, error, error_size);
    }
    pthread_mutex_init(&made->turn, NULL);
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

/* Sets the operands that lie in this run's inputs and outputs. */
static int32_t bind(nns_program *program, const void *const *inputs, void *const *outputs, nns_report *report) {
    for (int64_t i = 0; i < program->n_patches; i++) {
        const nns_patch *patch = &program->patches[i];
        nns_args *args = &program->steps[patch->step].args;
        const char *base =
            patch->output ? (outputs ? outputs[patch->index] : NULL) : (inputs ? inputs[patch->index] : NULL);
        if (!base)
            return nns_fail(report, NNS_EINVALID, "%s %lld of the run is missing", patch->output ? "output" : "input",
                            (long long)patch->index);
        if (patch->written)
            args->out[patch->slot] = (char *)base + patch->offset;
        else
            args->in[patch->slot] = base + patch->offset;
    }
    return NNS_OK;
}

/* Locks the program and prepares a run. */
static int32_t enter(nns_program *program, const void *const *inputs, void *const *outputs, nns_report *report) {
    if (program->process != getpid())
        return nns_fail(report, NNS_EINVALID, "the program was made before a fork; make it again in this process");
    pthread_mutex_lock(&program->turn);
    int32_t status = bind(program, inputs, outputs, report);
    if (!status) status = nns_executor_enter(program, report);
    if (status) pthread_mutex_unlock(&program->turn);
    return status;
}

static void leave(nns_program *program) {
    nns_executor_leave(program);
    pthread_mutex_unlock(&program->turn);
}

int32_t nns_program_run(nns_program *program, const void *const *inputs, void *const *outputs, nns_trace *trace,
                        char *error, int64_t error_size) {
    nns_report report = {0};
    if (enter(program, inputs, outputs, &report) == NNS_OK) {
        nns_executor_run(program, trace, &report);
        leave(program);
    }
    return nns_answer(&report, error, error_size);
}

int64_t nns_program_cancel(nns_program *program) { return nns_executor_cancel(program); }

int64_t nns_program_failed_step(const nns_program *program) { return nns_executor_failed_step(program); }

int32_t nns_program_time(nns_program *program, const void *const *inputs, void *const *outputs, int64_t warmup,
                         int64_t runs, int64_t budget_ns, int64_t *ns, int64_t *done, char *error, int64_t error_size) {
    enum { FEWEST = 3 };
    nns_report report = {0};
    *done = 0;
    if (enter(program, inputs, outputs, &report) != NNS_OK) return nns_answer(&report, error, error_size);
    const int64_t start = nns_now();
    for (int64_t i = 0; i < warmup && !report.status; i++) {
        nns_executor_run(program, NULL, &report);
        if (budget_ns > 0 && nns_now() - start > budget_ns) break;
    }
    for (int64_t i = 0; i < runs && !report.status; i++) {
        if (budget_ns > 0 && i >= FEWEST && nns_now() - start > budget_ns) break;
        const int64_t begin = nns_now();
        nns_executor_run(program, NULL, &report);
        if (report.status) break;
        ns[i] = nns_now() - begin;
        *done = i + 1;
    }
    leave(program);
    return nns_answer(&report, error, error_size);
}
