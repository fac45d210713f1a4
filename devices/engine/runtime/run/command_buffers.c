#include "command_buffers.h"

#include <stdlib.h>

#include "opencl.h"

/* Names, types and numbers as the specification of cl_khr_command_buffer has them. All versions from 0.9.0 on agree on these
 * functions. */
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef void *handle;
enum {
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_DEVICE_PLATFORM = 0x1031,
    CL_QUEUE_DEVICE = 0x1091,
    CL_INVALID_OPERATION = -59,
};
enum { EXTENSIONS_BYTES = 16384, FEWEST_LAUNCHES = 2 };

static const char extension[] = "cl_khr_command_buffer";

/* F(result, name without "cl", parameters): functions of any driver. */
#define CORE_FUNCTIONS(F)                                                                                       \
    F(cl_int, GetCommandQueueInfo, (handle queue, cl_uint name, size_t size, void *value, size_t *size_out))    \
    F(cl_int, GetDeviceInfo, (handle device, cl_uint name, size_t size, void *value, size_t *size_out))         \
    F(void *, GetExtensionFunctionAddressForPlatform, (handle platform, const char *name))

/* Functions of the extension, which belong to a platform. */
#define EXTENSION_FUNCTIONS(F)                                                                                  \
    F(handle, CreateCommandBufferKHR,                                                                           \
      (cl_uint n_queues, const handle *queues, const uint64_t *properties, cl_int *error))                      \
    F(cl_int, CommandNDRangeKernelKHR,                                                                          \
      (handle buffer, handle queue, const uint64_t *properties, handle kernel, cl_uint dimensions,              \
       const size_t *offset, const size_t *global, const size_t *local, cl_uint n_waits, const cl_uint *waits,  \
       cl_uint *sync_point, handle *mutable_handle))                                                            \
    F(cl_int, FinalizeCommandBufferKHR, (handle buffer))                                                        \
    F(cl_int, EnqueueCommandBufferKHR,                                                                          \
      (cl_uint n_queues, handle *queues, handle buffer, cl_uint n_waits, const handle *waits, handle *event))   \
    F(cl_int, ReleaseCommandBufferKHR, (handle buffer))

#define POINTER(result, name, parameters) result(*name) parameters;
typedef struct {
    CORE_FUNCTIONS(POINTER)
} core_functions;
struct nns_command_buffers {
    EXTENSION_FUNCTIONS(POINTER)
};

#define CORE_ENTRY(result, name, parameters) {"cl" #name, offsetof(core_functions, name)},
#define EXTENSION_ENTRY(result, name, parameters) {"cl" #name, offsetof(struct nns_command_buffers, name)},
typedef struct {
    const char *name;
    size_t offset;
} entry;
static const entry core_entries[] = {CORE_FUNCTIONS(CORE_ENTRY)};
static const entry extension_entries[] = {EXTENSION_FUNCTIONS(EXTENSION_ENTRY)};

/* ---- functions -------------------------------------------------------------------------------------------- */

static int32_t take(void *functions, const entry *one, void *found, nns_report *report) {
    if (!found) return nns_fail(report, NNS_EOPENCL, "the driver has no function %s", one->name);
    memcpy((char *)functions + one->offset, &found, sizeof found);
    return NNS_OK;
}

static int32_t find_core(core_functions *core, nns_report *report) {
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(core_entries); i++)
        TRY(take(core, &core_entries[i], nns_opencl_function(core_entries[i].name), report));
    return NNS_OK;
}

/* Whether `word` is one of the words of `text`. */
static bool has_word(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (!at[length] || at[length] == ' ')) return true;
    return false;
}

static int32_t check_extension(const core_functions *core, handle device, nns_report *report) {
    char *text = calloc(1, EXTENSIONS_BYTES);
    if (!text) return nns_fail(report, NNS_EMEMORY, "no memory for command buffers");
    const cl_int code = core->GetDeviceInfo(device, CL_DEVICE_EXTENSIONS, EXTENSIONS_BYTES - 1, text, NULL);
    const bool found = !code && has_word(text, extension);
    free(text);
    TRY(nns_opencl_check(code, "clGetDeviceInfo", report));
    return found ? NNS_OK : nns_fail(report, NNS_EOPENCL, "the device has no %s", extension);
}

/* Finds the functions of the extension for the device of a command queue. */
static int32_t find_functions(handle command_queue, nns_command_buffers *functions, nns_report *report) {
    core_functions core = {0};
    handle device = NULL, platform = NULL;
    TRY(find_core(&core, report));
    TRY(nns_opencl_check(core.GetCommandQueueInfo(command_queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL),
                         "clGetCommandQueueInfo", report));
    TRY(check_extension(&core, device, report));
    TRY(nns_opencl_check(core.GetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL),
                         "clGetDeviceInfo", report));
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(extension_entries); i++)
        TRY(take(functions, &extension_entries[i],
                 core.GetExtensionFunctionAddressForPlatform(platform, extension_entries[i].name), report));
    return NNS_OK;
}

/* ---- recording -------------------------------------------------------------------------------------------- */

static int32_t record_launches(const nns_program *program, const nns_subgraph *subgraph,
                               const nns_command_buffers *functions, nns_report *report) {
    cl_uint last = 0, point = 0;
    for (int64_t s = subgraph->first; s < subgraph->end; s++) {
        const nns_launch *launch = &program->steps[s].launch;
        const bool chosen = launch->local[0] || launch->local[1] || launch->local[2];
        const bool follows = s > subgraph->first;
        TRY(nns_opencl_check(functions->CommandNDRangeKernelKHR(subgraph->recorded, NULL, NULL, launch->kernel,
                                                                (cl_uint)launch->dimensions, NULL, launch->global,
                                                                chosen ? launch->local : NULL, follows,
                                                                follows ? &last : NULL, &point, NULL),
                             "clCommandNDRangeKernelKHR", report));
        last = point;
    }
    return nns_opencl_check(functions->FinalizeCommandBufferKHR(subgraph->recorded), "clFinalizeCommandBufferKHR", report);
}

static int32_t record_subgraph(nns_program *program, nns_subgraph *subgraph, nns_report *report) {
    const nns_queue *queue = &program->queues[subgraph->queue];
    cl_int code = 0;
    handle buffer = queue->command_buffers->CreateCommandBufferKHR(1, &queue->command_queue, NULL, &code);
    TRY(nns_opencl_check(code, "clCreateCommandBufferKHR", report));
    if (!buffer) return nns_fail(report, NNS_EOPENCL, "clCreateCommandBufferKHR gave nothing");
    subgraph->recorded = buffer;
    return record_launches(program, subgraph, queue->command_buffers, report);
}

/* Whether the work groups of a launch divide its work. Drivers refuse others, and PoCL 3.1 crashes when it does so while it
 * records; enqueued by itself, such a launch is reported. */
static bool divides(const nns_launch *launch) {
    for (int32_t d = 0; d < launch->dimensions; d++)
        if (launch->local[d] && launch->global[d] % launch->local[d]) return false;
    return true;
}

static bool is_recordable(const nns_program *program, const nns_subgraph *subgraph) {
    for (int64_t s = subgraph->first; s < subgraph->end; s++)
        if (!divides(&program->steps[s].launch)) return false;
    return subgraph->end - subgraph->first >= FEWEST_LAUNCHES;
}

static int32_t record_all(nns_program *program, const nns_queue *queue, int64_t *count, nns_report *report) {
    TRY(find_functions(queue->command_queue, queue->command_buffers, report));
    for (int64_t i = 0; i < queue->n_subgraphs; i++) {
        nns_subgraph *subgraph = &program->subgraphs[queue->subgraphs[i]];
        if (!is_recordable(program, subgraph)) continue;
        TRY(record_subgraph(program, subgraph, report));
        ++*count;
    }
    return NNS_OK;
}

int32_t nns_command_buffers_record(nns_program *program, int32_t index, int64_t *count, nns_report *report) {
    nns_queue *queue = &program->queues[index];
    nns_command_buffers_release(program, index);
    *count = 0;
    queue->command_buffers = calloc(1, sizeof *queue->command_buffers);
    if (!queue->command_buffers) return nns_fail(report, NNS_EMEMORY, "no memory for command buffers");
    if (record_all(program, queue, count, report)) {
        nns_command_buffers_release(program, index);
        *count = 0;
    }
    return report->status;
}

/* ---- use -------------------------------------------------------------------------------------------------- */

static void release_one(const nns_command_buffers *functions, nns_subgraph *subgraph) {
    if (subgraph->recorded) functions->ReleaseCommandBufferKHR(subgraph->recorded);
    subgraph->recorded = NULL;
}

int32_t nns_command_buffer_enqueue(nns_program *program, int64_t index, void **event, bool *taken, nns_report *report) {
    nns_subgraph *subgraph = &program->subgraphs[index];
    const nns_command_buffers *functions = program->queues[subgraph->queue].command_buffers;
    const cl_int code = functions->EnqueueCommandBufferKHR(0, NULL, subgraph->recorded, 0, NULL, event);
    *taken = !code;
    /* Drivers may say that a command is complete a moment before they take its command buffer again. */
    if (!code || code == CL_INVALID_OPERATION) return NNS_OK;
    release_one(functions, subgraph);
    return nns_opencl_check(code, "clEnqueueCommandBufferKHR", report);
}

void nns_command_buffers_release(nns_program *program, int32_t index) {
    nns_queue *queue = &program->queues[index];
    for (int64_t i = 0; queue->command_buffers && i < queue->n_subgraphs; i++)
        release_one(queue->command_buffers, &program->subgraphs[queue->subgraphs[i]]);
    free(queue->command_buffers);
    queue->command_buffers = NULL;
}
