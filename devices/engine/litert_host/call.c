/* One call: a TFLite file that LiteRT has compiled, with memory for its inputs and outputs. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "program/reader.h"

enum { MOST_TASK = 96 };

/* What LiteRT is asked to do, for messages: "compile LAYERS". */
typedef struct {
    char text[MOST_TASK];
} task;

static task task_of(const char *verb, const nns_litert_call *call) {
    task made;
    snprintf(made.text, sizeof made.text, "%s %.50s", verb, call->name);
    return made;
}

/* Calls a function of LiteRT's, and returns from the calling function if it fails. */
#define ASK(litert, what, name, ...)                                                     \
    do {                                                                                 \
        const int32_t code_ = (litert)->functions.name(__VA_ARGS__);                     \
        if (code_) return nns_litert_fail((what).text, "LiteRt" #name, code_, report);   \
    } while (0)

/* ---- types ------------------------------------------------------------------------------------------------ */

/* LiteRT's numbers of our element types. */
static const int32_t elements[] = {
    [NNS_FLOAT32] = 1, [NNS_FLOAT16] = 10, [NNS_BFLOAT16] = 19, [NNS_FLOAT64] = 11, [NNS_INT8] = 9,
    [NNS_UINT8] = 3,   [NNS_INT16] = 7,    [NNS_UINT16] = 17,   [NNS_INT32] = 2,    [NNS_UINT32] = 16,
    [NNS_INT64] = 4,   [NNS_UINT64] = 13,  [NNS_BOOL] = 6,
};

static litert_type type_of(const nns_tensor *tensor) {
    litert_type type = {.element = elements[tensor->dtype], .flags = (uint32_t)tensor->rank};
    for (int32_t i = 0; i < tensor->rank; i++) type.extents[i] = (int32_t)tensor->shape[i];
    return type;
}

static bool are_equal(const litert_type *a, const litert_type *b) {
    const uint32_t rank = a->flags & LITERT_RANK_BITS;
    return a->element == b->element && rank == (b->flags & LITERT_RANK_BITS) && rank <= NNS_LITERT_MOST_RANK &&
           !memcmp(a->extents, b->extents, rank * sizeof *a->extents);
}

/* Checks that a file has the inputs and outputs of its call. */
static int32_t check_types(const nns_litert *litert, const nns_litert_work *work, nns_report *report) {
    const nns_litert_call *call = work->plan;
    const task what = task_of("read the types of", call);
    litert_handle signature = NULL;
    size_t n_inputs = 0, n_outputs = 0;
    ASK(litert, what, GetModelSignature, work->model, 0, &signature);
    ASK(litert, what, GetNumSignatureInputs, signature, &n_inputs);
    ASK(litert, what, GetNumSignatureOutputs, signature, &n_outputs);
    bool fits = n_inputs == (size_t)call->n_reads && n_outputs == (size_t)call->n_writes;
    for (int32_t i = 0; fits && i < call->n_reads + call->n_writes; i++) {
        litert_handle tensor = NULL;
        litert_type found = {0};
        if (i < call->n_reads)
            ASK(litert, what, GetSignatureInputTensorByIndex, signature, (size_t)i, &tensor);
        else
            ASK(litert, what, GetSignatureOutputTensorByIndex, signature, (size_t)(i - call->n_reads), &tensor);
        ASK(litert, what, GetRankedTensorType, tensor, &found);
        const litert_type wanted = type_of(&call->tensors[i]);
        fits = are_equal(&found, &wanted);
    }
    if (fits) return NNS_OK;
    return nns_fail(report, NNS_EINVALID,
                    "the TFLite file of %.60s has other inputs or outputs than the model; compile the model again",
                    call->name);
}

/* ---- compilation ------------------------------------------------------------------------------------------ */

/* Adds the settings of the CPU accelerator. */
static int32_t set_cpu(const nns_litert *litert, task what, litert_handle options, const char *cpu, nns_report *report) {
    litert_handle opaque = NULL;
    char *settings = strdup(cpu);
    if (!settings) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    int32_t code = litert->functions.CreateOpaqueOptions("xnnpack", settings, free, &opaque); /* takes them over */
    if (code) {
        free(settings);
        return nns_litert_fail(what.text, "LiteRtCreateOpaqueOptions", code, report);
    }
    code = litert->functions.AddOpaqueOptions(options, opaque); /* takes them over */
    if (!code) return NNS_OK;
    litert->functions.DestroyOpaqueOptions(opaque);
    return nns_litert_fail(what.text, "LiteRtAddOpaqueOptions", code, report);
}

static int32_t compile_with(const nns_litert *litert, nns_litert_work *work, litert_handle options, int32_t set,
                            const char *cpu, nns_report *report) {
    const task what = task_of("compile", work->plan);
    ASK(litert, what, SetOptionsHardwareAccelerators, options, set);
    TRY(set_cpu(litert, what, options, cpu, report));
    ASK(litert, what, CreateCompiledModel, litert->environment, work->model, options, &work->compiled);
    return NNS_OK;
}

static int32_t compile(const nns_litert *litert, nns_litert_work *work, int32_t set, const char *cpu,
                       nns_report *report) {
    litert_handle options = NULL;
    ASK(litert, task_of("compile", work->plan), CreateOptions, &options);
    compile_with(litert, work, options, set, cpu, report);
    litert->functions.DestroyOptions(options);
    return report->status;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static int32_t make_buffer(const nns_litert *litert, nns_litert_work *work, int32_t index, nns_report *report) {
    const nns_litert_call *call = work->plan;
    const task what = task_of("allocate memory for", call);
    const litert_type type = type_of(&call->tensors[index]);
    litert_handle requirements = NULL; /* the compiled model's */
    size_t bytes = 0;
    if (index < call->n_reads)
        ASK(litert, what, GetCompiledModelInputBufferRequirements, work->compiled, 0, (size_t)index, &requirements);
    else
        ASK(litert, what, GetCompiledModelOutputBufferRequirements, work->compiled, 0, (size_t)(index - call->n_reads),
            &requirements);
    ASK(litert, what, CreateManagedTensorBufferFromRequirements, litert->environment, &type, requirements,
        &work->buffers[index]);
    ASK(litert, what, GetTensorBufferPackedSize, work->buffers[index], &bytes);
    if (bytes == (size_t)call->tensors[index].bytes) return NNS_OK;
    return nns_fail(report, NNS_EINVALID, "LiteRT has %zu bytes for a tensor of %.60s, which has %lld", bytes, call->name,
                    (long long)call->tensors[index].bytes);
}

int32_t nns_litert_make_work(const nns_litert *litert, nns_litert_work *work, int32_t set, const char *cpu,
                             nns_report *report) {
    const nns_litert_call *call = work->plan;
    ASK(litert, task_of("load", call), CreateModelFromBuffer, litert->environment, call->content, (size_t)call->bytes,
        &work->model);
    TRY(check_types(litert, work, report));
    TRY(compile(litert, work, set, cpu, report));
    work->buffers = nns_new_array(report, call->n_reads + call->n_writes, sizeof *work->buffers);
    if (!work->buffers) return report->status;
    for (int32_t i = 0; i < call->n_reads + call->n_writes; i++) TRY(make_buffer(litert, work, i, report));
    return NNS_OK;
}

void nns_litert_free_work(const nns_litert *litert, nns_litert_work *work) {
    for (int32_t i = 0; work->buffers && i < work->plan->n_reads + work->plan->n_writes; i++)
        if (work->buffers[i]) litert->functions.DestroyTensorBuffer(work->buffers[i]);
    free(work->buffers);
    if (work->compiled) litert->functions.DestroyCompiledModel(work->compiled);
    if (work->model) litert->functions.DestroyModel(work->model);
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

/* Copies a tensor to LiteRT's memory from `from`, or from there to `to`. */
static int32_t transfer(const nns_litert *litert, const nns_litert_work *work, int32_t index, const void *from, void *to,
                        nns_report *report) {
    const task what = task_of("transfer tensors of", work->plan);
    const size_t bytes = (size_t)work->plan->tensors[index].bytes;
    void *memory = NULL;
    ASK(litert, what, LockTensorBuffer, work->buffers[index], &memory, from ? LITERT_WRITE : LITERT_READ);
    memcpy(from ? memory : to, from ? from : memory, bytes);
    ASK(litert, what, UnlockTensorBuffer, work->buffers[index]);
    return NNS_OK;
}

int32_t nns_litert_run_work(const nns_litert *litert, const nns_litert_work *work, const void *const *reads,
                            void *const *writes, nns_report *report) {
    const nns_litert_call *call = work->plan;
    for (int32_t i = 0; i < call->n_reads; i++) TRY(transfer(litert, work, i, reads[i], NULL, report));
    ASK(litert, task_of("run", call), RunCompiledModel, work->compiled, 0, (size_t)call->n_reads, work->buffers,
        (size_t)call->n_writes, work->buffers + call->n_reads);
    for (int32_t i = 0; i < call->n_writes; i++)
        TRY(transfer(litert, work, call->n_reads + i, NULL, writes[i], report));
    return NNS_OK;
}
