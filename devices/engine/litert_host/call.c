/* One call: a TFLite file that LiteRT has compiled, with memory for its inputs and outputs. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "program/reader.h"

/* Calls a function of LiteRT's, and returns from the calling function if it fails. LiteRT is asked to VERB a call. */
#define ASK(litert, verb, call, function, ...)                                                             \
    do {                                                                                                   \
        const int32_t code_ = (litert)->functions.function(__VA_ARGS__);                                   \
        if (code_) return nns_litert_fail(verb, (call)->name, "LiteRt" #function, code_, report);          \
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
    static const char verb[] = "read the types of";
    litert_handle signature = NULL;
    size_t n_inputs = 0, n_outputs = 0;
    ASK(litert, verb, call, GetModelSignature, work->model, 0, &signature);
    ASK(litert, verb, call, GetNumSignatureInputs, signature, &n_inputs);
    ASK(litert, verb, call, GetNumSignatureOutputs, signature, &n_outputs);
    bool fits = n_inputs == (size_t)call->n_reads && n_outputs == (size_t)call->n_writes;
    for (int32_t i = 0; fits && i < call->n_reads + call->n_writes; i++) {
        litert_handle tensor = NULL;
        litert_type found = {0};
        if (i < call->n_reads)
            ASK(litert, verb, call, GetSignatureInputTensorByIndex, signature, (size_t)i, &tensor);
        else
            ASK(litert, verb, call, GetSignatureOutputTensorByIndex, signature, (size_t)(i - call->n_reads), &tensor);
        ASK(litert, verb, call, GetRankedTensorType, tensor, &found);
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
static int32_t set_cpu(const nns_litert *litert, const nns_litert_call *call, litert_handle options, const char *cpu,
                       nns_report *report) {
    litert_handle opaque = NULL;
    char *settings = strdup(cpu);
    if (!settings) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    int32_t code = litert->functions.CreateOpaqueOptions("xnnpack", settings, free, &opaque); /* takes them over */
    if (code) {
        free(settings);
        return nns_litert_fail("compile", call->name, "LiteRtCreateOpaqueOptions", code, report);
    }
    code = litert->functions.AddOpaqueOptions(options, opaque); /* takes them over */
    if (!code) return NNS_OK;
    litert->functions.DestroyOpaqueOptions(opaque);
    return nns_litert_fail("compile", call->name, "LiteRtAddOpaqueOptions", code, report);
}

static int32_t compile_with(const nns_litert *litert, nns_litert_work *work, litert_handle options, int32_t set,
                            const char *cpu, nns_report *report) {
    static const char verb[] = "compile";
    const nns_litert_call *call = work->plan;
    ASK(litert, verb, call, SetOptionsHardwareAccelerators, options, set);
    TRY(set_cpu(litert, call, options, cpu, report));
    ASK(litert, verb, call, CreateCompiledModel, litert->environment, work->model, options, &work->compiled);
    return NNS_OK;
}

static int32_t compile(const nns_litert *litert, nns_litert_work *work, int32_t set, const char *cpu,
                       nns_report *report) {
    litert_handle options = NULL;
    ASK(litert, "compile", work->plan, CreateOptions, &options);
    compile_with(litert, work, options, set, cpu, report);
    litert->functions.DestroyOptions(options);
    return report->status;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static int32_t make_buffer(const nns_litert *litert, nns_litert_work *work, int32_t index, nns_report *report) {
    const nns_litert_call *call = work->plan;
    static const char verb[] = "allocate memory for";
    const litert_type type = type_of(&call->tensors[index]);
    litert_handle requirements = NULL; /* the compiled model's */
    size_t bytes = 0;
    if (index < call->n_reads)
        ASK(litert, verb, call, GetCompiledModelInputBufferRequirements, work->compiled, 0, (size_t)index, &requirements);
    else
        ASK(litert, verb, call, GetCompiledModelOutputBufferRequirements, work->compiled, 0, (size_t)(index - call->n_reads),
            &requirements);
    ASK(litert, verb, call, CreateManagedTensorBufferFromRequirements, litert->environment, &type, requirements,
        &work->buffers[index]);
    ASK(litert, verb, call, GetTensorBufferPackedSize, work->buffers[index], &bytes);
    if (bytes == (size_t)call->tensors[index].bytes) return NNS_OK;
    return nns_fail(report, NNS_EINVALID, "LiteRT has %zu bytes for a tensor of %.60s, which has %lld", bytes, call->name,
                    (long long)call->tensors[index].bytes);
}

int32_t nns_litert_make_work(const nns_litert *litert, nns_litert_work *work, int32_t set, const char *cpu,
                             nns_report *report) {
    const nns_litert_call *call = work->plan;
    ASK(litert, "load", call, CreateModelFromBuffer, litert->environment, call->content, (size_t)call->bytes,
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
    static const char verb[] = "transfer tensors of";
    const nns_litert_call *call = work->plan;
    const size_t bytes = (size_t)call->tensors[index].bytes;
    void *memory = NULL;
    ASK(litert, verb, call, LockTensorBuffer, work->buffers[index], &memory, from ? LITERT_WRITE : LITERT_READ);
    memcpy(from ? memory : to, from ? from : memory, bytes);
    ASK(litert, verb, call, UnlockTensorBuffer, work->buffers[index]);
    return NNS_OK;
}

int32_t nns_litert_run_work(const nns_litert *litert, const nns_litert_work *work, const void *const *reads,
                            void *const *writes, nns_report *report) {
    const nns_litert_call *call = work->plan;
    for (int32_t i = 0; i < call->n_reads; i++) TRY(transfer(litert, work, i, reads[i], NULL, report));
    ASK(litert, "run", call, RunCompiledModel, work->compiled, 0, (size_t)call->n_reads, work->buffers,
        (size_t)call->n_writes, work->buffers + call->n_reads);
    for (int32_t i = 0; i < call->n_writes; i++)
        TRY(transfer(litert, work, call->n_reads + i, NULL, writes[i], report));
    return NNS_OK;
}
