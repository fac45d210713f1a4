#include "opencl.h"

#include <dlfcn.h>

#include "command_buffers.h"
#include "threads/threads.h"

/* Names, types and numbers as the OpenCL 1.2 specification has them; handles are opaque pointers. */
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef void *handle;
enum {
    CL_MAP_READ_WRITE = 3,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_PROFILING_COMMAND_QUEUED = 0x1280,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283,
};

/* F(result, name without "cl", parameters) */
#define FUNCTIONS(F)                                                                                                 \
    F(cl_int, EnqueueNDRangeKernel,                                                                                  \
      (handle command_queue, handle kernel, cl_uint dimensions, const size_t *offset, const size_t *global,          \
       const size_t *local, cl_uint n_waits, const handle *waits, handle *event))                                    \
    F(void *, EnqueueMapBuffer,                                                                                      \
      (handle command_queue, handle buffer, cl_bool blocking, cl_ulong flags, size_t offset, size_t size,            \
       cl_uint n_waits, const handle *waits, handle *event, cl_int *error))                                          \
    F(cl_int, EnqueueUnmapMemObject,                                                                                 \
      (handle command_queue, handle memory, void *mapped, cl_uint n_waits, const handle *waits, handle *event))      \
    F(cl_int, EnqueueReadBuffer,                                                                                     \
      (handle command_queue, handle buffer, cl_bool blocking, size_t offset, size_t size, void *to, cl_uint n_waits, \
       const handle *waits, handle *event))                                                                          \
    F(cl_int, EnqueueWriteBuffer,                                                                                    \
      (handle command_queue, handle buffer, cl_bool blocking, size_t offset, size_t size, const void *from,          \
       cl_uint n_waits, const handle *waits, handle *event))                                                         \
    F(cl_int, Flush, (handle command_queue))                                                                         \
    F(cl_int, Finish, (handle command_queue))                                                                        \
    F(cl_int, GetEventInfo, (handle event, cl_uint name, size_t size, void *value, size_t *size_out))                \
    F(cl_int, GetEventProfilingInfo, (handle event, cl_uint name, size_t size, void *value, size_t *size_out))       \
    F(cl_int, WaitForEvents, (cl_uint count, const handle *events))                                                  \
    F(cl_int, ReleaseEvent, (handle event))

#define POINTER(result, name, parameters) result(*name) parameters;
static struct {
    FUNCTIONS(POINTER)
} cl;

#define ENTRY(result, name, parameters) {"cl" #name, &cl.name},
static const struct {
    const char *name;
    void *slot;
} functions[] = {FUNCTIONS(ENTRY)};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;
static void *loaded_library; /* written before `loaded` */

static int32_t load(const char *path, nns_report *report) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return nns_fail(report, NNS_EOPENCL, "%s", dlerror());
    void *found[NNS_ARRAY_LENGTH(functions)];
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(functions); i++) {
        found[i] = dlsym(library, functions[i].name);
        if (found[i]) continue;
        dlclose(library);
        return nns_fail(report, NNS_EOPENCL, "%s has no function %s", path, functions[i].name);
    }
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(functions); i++) memcpy(functions[i].slot, &found[i], sizeof found[i]);
    loaded_library = library;
    atomic_store(&loaded, true);
    return NNS_OK;
}

int32_t nns_opencl_load(const char *path, char *error, int64_t error_size) {
    nns_report report = {0};
    pthread_mutex_lock(&load_lock);
    if (!atomic_load(&loaded)) load(path, &report);
    pthread_mutex_unlock(&load_lock);
    return nns_answer(&report, error, error_size);
}

void nns_opencl_unlock_loading(void) { load_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

bool nns_opencl_loaded(void) { return atomic_load(&loaded); }

void *nns_opencl_function(const char *name) { return nns_opencl_loaded() ? dlsym(loaded_library, name) : NULL; }

/* Explains the errors that a valid program can cause. */
static const char *meaning(cl_int code) {
    static const struct {
        cl_int code;
        const char *text;
    } known[] = {
        {-2, " (device not available)"},
        {-4, " (no memory for a buffer)"},
        {-5, " (out of resources)"},
        {-6, " (out of host memory)"},
        {-12, " (memory cannot be mapped)"},
        {-14, " (a command before it failed)"},
        {-36, " (the command queue is gone)"},
        {-54, " (work-group size not supported)"},
    };
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(known); i++)
        if (known[i].code == code) return known[i].text;
    return "";
}

int32_t nns_opencl_check(int32_t code, const char *function, nns_report *report) {
    if (!code) return NNS_OK;
    return nns_fail(report, NNS_EOPENCL, "%s failed with OpenCL error %d%s", function, (int)code, meaning(code));
}

int32_t nns_opencl_map(nns_area *area, void *command_queue, bool wait, void **event, nns_report *report) {
    cl_int code = 0;
    void *host = cl.EnqueueMapBuffer(command_queue, area->mem, wait, CL_MAP_READ_WRITE, 0, (size_t)area->bytes, 0, NULL,
                                     event, &code);
    if (code) return nns_opencl_check(code, "clEnqueueMapBuffer", report);
    area->mapped = true;
    if (host == area->host) return NNS_OK;
    area->host = host; /* what unmapping needs; the program is refused */
    return nns_fail(report, NNS_EOPENCL, "a mapped region lies at another address than its host memory");
}

int32_t nns_opencl_unmap(nns_area *area, void *command_queue, nns_report *report) {
    const cl_int code = cl.EnqueueUnmapMemObject(command_queue, area->mem, area->host, 0, NULL, NULL);
    if (!code) area->mapped = false;
    return nns_opencl_check(code, "clEnqueueUnmapMemObject", report);
}

static bool is_copied(const nns_area *area) { return area->sharing == NNS_SHARING_COPIED && area->bytes; }

bool nns_needs_mapping(const nns_area *area) {
    return area->kind == NNS_REGION_SHARED && area->sharing == NNS_SHARING_MAPPED && area->bytes;
}

/* Unmaps touched memory and writes acquired copies for the device. */
static int32_t before_kernels(nns_program *program, const nns_subgraph *subgraph, void *command_queue,
                              nns_report *report) {
    for (int64_t i = 0; i < subgraph->n_touched; i++)
        TRY(nns_opencl_unmap(&program->areas[subgraph->touched[i]], command_queue, report));
    for (int64_t i = 0; i < subgraph->n_acquires; i++) {
        const nns_area *area = &program->areas[subgraph->acquires[i]];
        if (!is_copied(area)) continue;
        const cl_int code =
            cl.EnqueueWriteBuffer(command_queue, area->mem, false, 0, (size_t)area->bytes, area->host, 0, NULL, NULL);
        TRY(nns_opencl_check(code, "clEnqueueWriteBuffer", report));
    }
    return NNS_OK;
}

/* Replaces the event of an earlier command by that of a later one. */
static void replace(void **last, void *event) {
    if (*last) nns_opencl_forget(*last);
    *last = event;
}

/* Returns memory to the host. Each command gets an event since any may be the last. */
static int32_t after_kernels(nns_program *program, const nns_subgraph *subgraph, void *command_queue, void **last,
                             nns_report *report) {
    for (int64_t i = 0; i < subgraph->n_releases; i++) {
        const nns_area *area = &program->areas[subgraph->releases[i]];
        if (!is_copied(area)) continue;
        void *event = NULL;
        const cl_int code =
            cl.EnqueueReadBuffer(command_queue, area->mem, false, 0, (size_t)area->bytes, area->host, 0, NULL, &event);
        TRY(nns_opencl_check(code, "clEnqueueReadBuffer", report));
        replace(last, event);
    }
    for (int64_t i = 0; i < subgraph->n_touched; i++) {
        void *event = NULL;
        const int32_t status =
            nns_opencl_map(&program->areas[subgraph->touched[i]], command_queue, false, &event, report);
        if (event) replace(last, event);
        if (status) return status;
    }
    return NNS_OK;
}

static int32_t launch(const nns_launch *launch, void *command_queue, void **event, nns_report *report) {
    const bool chosen = launch->local[0] || launch->local[1] || launch->local[2];
    const cl_int code = cl.EnqueueNDRangeKernel(command_queue, launch->kernel, (cl_uint)launch->dimensions, NULL,
                                                launch->global, chosen ? launch->local : NULL, 0, NULL, event);
    return nns_opencl_check(code, "clEnqueueNDRangeKernel", report);
}

/* Whether a command follows the kernels of a sub-graph. */
static bool returns_memory(const nns_program *program, const nns_subgraph *subgraph) {
    if (subgraph->n_touched) return true;
    for (int64_t i = 0; i < subgraph->n_releases; i++)
        if (is_copied(&program->areas[subgraph->releases[i]])) return true;
    return false;
}

/* Launches that are enqueued before a flush. Drivers of GPUs may keep commands until then, so a device that waited for the last
 * launch of a long sub-graph would begin late; a flush takes time, too. */
enum { LAUNCHES_KEPT = 16 };

/* Enqueues the launches of a sub-graph one by one. `last`, if not NULL, receives the event of the last one. With `times`,
 * each gets an event in `step_events`. */
static int32_t launch_each(const nns_program *program, const nns_subgraph *subgraph, void *command_queue, void **last,
                           void **step_events, int64_t *times, int64_t *at, nns_report *report) {
    for (int64_t s = subgraph->first; s < subgraph->end; s++) {
        *at = s;
        void **event = times ? &step_events[s] : s + 1 == subgraph->end ? last : NULL;
        if (times) times[2 * s] = nns_now();
        const int32_t status = launch(&program->steps[s].launch, command_queue, event, report);
        if (times) times[2 * s + 1] = nns_now();
        if (status) return status;
        const int64_t enqueued = s + 1 - subgraph->first;
        if (enqueued % LAUNCHES_KEPT == 0 && s + 1 < subgraph->end)
            TRY(nns_opencl_check(cl.Flush(command_queue), "clFlush", report));
    }
    return NNS_OK;
}

int32_t nns_opencl_enqueue(nns_program *program, int64_t index, bool gated, void **last, void **step_events,
                           int64_t *times, int64_t *at, nns_report *report) {
    const nns_subgraph *subgraph = &program->subgraphs[index];
    const nns_queue *queue = &program->queues[subgraph->queue];
    void *command_queue = times ? queue->trace_queue : queue->command_queue;
    const bool more = returns_memory(program, subgraph);
    void **event = more ? NULL : last;
    bool taken = false;
    *at = subgraph->first;
    if (gated) TRY(launch(&subgraph->semaphore, command_queue, NULL, report));
    TRY(before_kernels(program, subgraph, command_queue, report));
    if (subgraph->recorded && !times) TRY(nns_command_buffer_enqueue(program, index, event, &taken, report));
    if (!taken) TRY(launch_each(program, subgraph, command_queue, event, step_events, times, at, report));
    /* The last launch of a traced sub-graph has one event for both purposes; the step owns it. */
    if (more) TRY(after_kernels(program, subgraph, command_queue, last, report));
    else if (times) *last = step_events[subgraph->end - 1];
    return nns_opencl_check(cl.Flush(command_queue), "clFlush", report);
}

/* The execution status of an event's command, or -1 with a report if the command or the query failed. */
static cl_int status_of(void *event, nns_report *report) {
    cl_int state = 0;
    const cl_int code = cl.GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    if (!code && state >= 0) return state;
    nns_opencl_check(code ? code : state, code ? "clGetEventInfo" : "a command in the queue", report);
    return -1;
}

int32_t nns_opencl_poll(void *event, nns_report *report) {
    const cl_int state = status_of(event, report);
    if (state) return state < 0 ? -1 : 0;
    /* A status is no synchronisation point, a wait is one (OpenCL 1.2, section 5.9). */
    return nns_opencl_wait(event, report) ? -1 : 1;
}

int32_t nns_opencl_wait(void *event, nns_report *report) {
    const cl_int code = cl.WaitForEvents(1, &event);
    if (code && status_of(event, report) < 0) return report->status; /* the command's own error says more */
    return nns_opencl_check(code, "clWaitForEvents", report);
}

int32_t nns_opencl_finish(void *command_queue, nns_report *report) {
    return nns_opencl_check(cl.Finish(command_queue), "clFinish", report);
}

void nns_opencl_forget(void *event) { cl.ReleaseEvent(event); }

bool nns_opencl_profile(void *event, nns_profile *profile) {
    const struct {
        cl_uint name;
        uint64_t *value;
    } wanted[] = {
        {CL_PROFILING_COMMAND_QUEUED, &profile->queued},
        {CL_PROFILING_COMMAND_START, &profile->start},
        {CL_PROFILING_COMMAND_END, &profile->end},
    };
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(wanted); i++)
        if (cl.GetEventProfilingInfo(event, wanted[i].name, sizeof(uint64_t), wanted[i].value, NULL)) return false;
    return true;
}
