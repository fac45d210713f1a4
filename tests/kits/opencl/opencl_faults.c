/* Stands between a program and its OpenCL loader, hands every call on, and makes some of them fail.
 *
 * A fault strikes the calls number `first` to `last` (from 1, counted since it was set) of one function: they return an
 * error without being made, come late, or crash by a signal; or they are made, and their event ends with an error
 * or does not end before the faults are cleared. It is loaded in the place of the loader, or before it (LD_PRELOAD); `faults_open` says where that is.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ERROR = 0, LATE = 1, LOST = 2, HANGING = 3, CRASH = 4 };
enum { CL_COMPLETE = 0, CL_SUBMITTED = 2, CL_EXECUTION_STATUS = 0x11D3, CL_EXEC_STATUS_ERROR = -14, MOST_EVENTS = 1024 };

static struct {
    char function[64];
    int64_t first, last, calls, struck;
    int kind, value;
} fault;
static struct {
    void *event;
    int kind, value;
} marked[MOST_EVENTS];
static int64_t live, mapped, unsynchronised, objects;
static void *polled[MOST_EVENTS]; /* events whose status was complete and for which nobody has waited since */
static void *library;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cleared = PTHREAD_COND_INITIALIZER;

int faults_open(const char *path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library != NULL;
}

void faults_set(const char *function, int64_t first, int64_t last, int kind, int value) {
    pthread_mutex_lock(&lock);
    snprintf(fault.function, sizeof fault.function, "%s", function);
    fault.first = first;
    fault.last = last;
    fault.calls = fault.struck = 0;
    fault.kind = kind;
    fault.value = value;
    pthread_mutex_unlock(&lock);
}

/* No faults any more; what hangs goes on. Returns how many calls were struck. */
int64_t faults_clear(void) {
    pthread_mutex_lock(&lock);
    const int64_t struck = fault.struck;
    memset(&fault, 0, sizeof fault);
    memset(marked, 0, sizeof marked);
    pthread_cond_broadcast(&cleared);
    pthread_mutex_unlock(&lock);
    return struck;
}

/* Calls that the fault has struck so far. */
int64_t faults_struck(void) {
    pthread_mutex_lock(&lock);
    const int64_t struck = fault.struck;
    pthread_mutex_unlock(&lock);
    return struck;
}

/* Events that were handed out and not released. */
int64_t faults_live_events(void) {
    pthread_mutex_lock(&lock);
    const int64_t count = live;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Contexts, queues, programs, kernels, memory and command buffers that were made and not released. */
int64_t faults_live_objects(void) {
    pthread_mutex_lock(&lock);
    const int64_t count = objects;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Regions that were mapped and not unmapped. */
int64_t faults_mapped(void) {
    pthread_mutex_lock(&lock);
    const int64_t count = mapped;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Events that were released after their status was complete, without a wait in between: a status does not make the
 * device's writes visible to the host. */
int64_t faults_unsynchronised(void) {
    pthread_mutex_lock(&lock);
    const int64_t count = unsynchronised;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Replaces the first `from` in `polled`; returns whether there is one. With `lock` held. */
static int replace_polled(const void *from, void *to) {
    for (int i = 0; i < MOST_EVENTS; i++)
        if (polled[i] == from) {
            polled[i] = to;
            return 1;
        }
    return 0;
}

static void *count_object(void *made) {
    pthread_mutex_lock(&lock);
    objects += made != NULL;
    pthread_mutex_unlock(&lock);
    return made;
}

#ifdef FAULTS_OF_HOST
static void count_released(void) {
    pthread_mutex_lock(&lock);
    objects--;
    pthread_mutex_unlock(&lock);
}
#endif

static void count_mapped(int64_t change) {
    pthread_mutex_lock(&lock);
    mapped += change;
    pthread_mutex_unlock(&lock);
}

static void *real(const char *name) { return dlsym(library, name); }

/* The kind of fault that strikes this call, or -1. */
static int strikes(const char *function, int *value) {
    pthread_mutex_lock(&lock);
    int kind = -1;
    if (!strcmp(fault.function, function)) {
        fault.calls++;
        if (fault.calls >= fault.first && fault.calls <= fault.last) {
            fault.struck++;
            kind = fault.kind;
            *value = fault.value;
        }
    }
    pthread_mutex_unlock(&lock);
    if (kind == LATE) usleep((useconds_t)*value * 1000);
    if (kind == CRASH && *value == SIGSEGV) *(volatile int *)(intptr_t)(fault.kind - CRASH) = 0;
    if (kind == CRASH) raise(*value);
    return kind;
}

static void handed_out(void *event, int kind, int value) {
    pthread_mutex_lock(&lock);
    live++;
    for (int i = 0; i < MOST_EVENTS && kind >= LOST; i++) {
        if (marked[i].event) continue;
        marked[i].event = event;
        marked[i].kind = kind;
        marked[i].value = value;
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* The fault of an event, or -1. With `lock` held. */
static int kind_of(const void *event, int *value) {
    for (int i = 0; i < MOST_EVENTS; i++)
        if (marked[i].event == event) {
            *value = marked[i].value;
            return marked[i].kind;
        }
    return -1;
}

/* With `lock` held. */
static int anything_hangs(void) {
    for (int i = 0; i < MOST_EVENTS; i++)
        if (marked[i].event && marked[i].kind == HANGING) return 1;
    return 0;
}

static void wait_until_nothing_hangs(void) {
    pthread_mutex_lock(&lock);
    while (anything_hangs()) pthread_cond_wait(&cleared, &lock);
    pthread_mutex_unlock(&lock);
}

/* A function that returns its error. */
#define PLAIN(name, parameters, arguments)                     \
    int32_t name parameters {                                  \
        int value = 0;                                         \
        if (strikes(#name, &value) == ERROR) return value;     \
        return ((int32_t(*) parameters)real(#name)) arguments; \
    }

/* The same for one that makes a command and may hand out its event. */
#define COMMAND(name, parameters, arguments)                                           \
    int32_t name parameters {                                                          \
        int value = 0;                                                                 \
        const int kind = strikes(#name, &value);                                       \
        if (kind == ERROR) return value;                                               \
        const int32_t error = ((int32_t(*) parameters)real(#name)) arguments;          \
        if (!error && event) handed_out(*event, kind, value);                          \
        return error;                                                                  \
    }

/* The same for one that makes an object and returns its error through a pointer. */
#define MAKER(name, parameters, arguments)                   \
    void *name parameters {                                  \
        int value = 0;                                       \
        if (strikes(#name, &value) == ERROR) {               \
            if (error) *error = value;                       \
            return NULL;                                     \
        }                                                    \
        return count_object(((void *(*) parameters)real(#name)) arguments); \
    }

/* The same for one that releases an object, which it does also where it returns an error. */
#define RELEASER(name)                                                  \
    int32_t name(void *object) {                                        \
        int value = 0;                                                  \
        const int kind = strikes(#name, &value);                        \
        count_released();                                               \
        const int32_t error = ((int32_t(*)(void *))real(#name))(object); \
        return kind == ERROR ? value : error;                           \
    }

COMMAND(clEnqueueNDRangeKernel,
        (void *queue, void *kernel, uint32_t dimensions, const size_t *offset, const size_t *global, const size_t *local,
         uint32_t n, void *const *waits, void **event),
        (queue, kernel, dimensions, offset, global, local, n, waits, event))
COMMAND(clEnqueueReadBuffer,
        (void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size, void *to, uint32_t n,
         void *const *waits, void **event),
        (queue, buffer, blocking, offset, size, to, n, waits, event))
COMMAND(clEnqueueWriteBuffer,
        (void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size, const void *from, uint32_t n,
         void *const *waits, void **event),
        (queue, buffer, blocking, offset, size, from, n, waits, event))
PLAIN(clFlush, (void *queue), (queue))
PLAIN(clGetEventProfilingInfo, (void *event, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (event, name, size, value_out, size_out))
PLAIN(clBuildProgram,
      (void *program, uint32_t n, void *const *devices, const char *options, void *notify, void *data),
      (program, n, devices, options, notify, data))
MAKER(clCreateBuffer, (void *context, uint64_t flags, size_t size, void *host, int32_t *error),
      (context, flags, size, host, error))
MAKER(clCreateKernel, (void *program, const char *kernel, int32_t *error), (program, kernel, error))
MAKER(clCreateCommandQueue, (void *context, void *device, uint64_t properties, int32_t *error),
      (context, device, properties, error))
MAKER(clCreateCommandQueueWithProperties, (void *context, void *device, const uint64_t *properties, int32_t *error),
      (context, device, properties, error))

#ifdef FAULTS_OF_HOST /* opencl_host_faults.c */
MAKER(clCreateContext,
      (const intptr_t *properties, uint32_t n, void *const *devices, void *notify, void *data, int32_t *error),
      (properties, n, devices, notify, data, error))
MAKER(clCreateProgramWithSource,
      (void *context, uint32_t n, const char **texts, const size_t *lengths, int32_t *error),
      (context, n, texts, lengths, error))
MAKER(clCreateProgramWithBinary,
      (void *context, uint32_t n, void *const *devices, const size_t *lengths, const unsigned char **binaries,
       int32_t *statuses, int32_t *error),
      (context, n, devices, lengths, binaries, statuses, error))
MAKER(clCreateSubBuffer, (void *buffer, uint64_t flags, uint32_t type, const void *part, int32_t *error),
      (buffer, flags, type, part, error))
MAKER(clCreateImage,
      (void *context, uint64_t flags, const void *format, const void *description, void *host, int32_t *error),
      (context, flags, format, description, host, error))
PLAIN(clGetPlatformIDs, (uint32_t most, void **platforms, uint32_t *count), (most, platforms, count))
PLAIN(clGetPlatformInfo, (void *platform, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (platform, name, size, value_out, size_out))
PLAIN(clGetDeviceIDs, (void *platform, uint64_t type, uint32_t most, void **devices, uint32_t *count),
      (platform, type, most, devices, count))
PLAIN(clGetProgramInfo, (void *program, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (program, name, size, value_out, size_out))
PLAIN(clGetProgramBuildInfo,
      (void *program, void *device, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (program, device, name, size, value_out, size_out))
PLAIN(clGetKernelInfo, (void *kernel, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (kernel, name, size, value_out, size_out))
PLAIN(clSetKernelArg, (void *kernel, uint32_t index, size_t size, const void *value_in), (kernel, index, size, value_in))
RELEASER(clReleaseContext)
RELEASER(clReleaseCommandQueue)
RELEASER(clReleaseProgram)
RELEASER(clReleaseKernel)
RELEASER(clReleaseMemObject)

void *clSVMAlloc(void *context, uint64_t flags, size_t size, uint32_t alignment) {
    int value = 0;
    if (strikes("clSVMAlloc", &value) == ERROR) return NULL;
    return count_object(((void *(*)(void *, uint64_t, size_t, uint32_t))real("clSVMAlloc"))(context, flags, size, alignment));
}

void clSVMFree(void *context, void *memory) {
    count_released();
    ((void (*)(void *, void *))real("clSVMFree"))(context, memory);
}
PLAIN(clGetDeviceInfo, (void *device, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (device, name, size, value_out, size_out))
PLAIN(clGetCommandQueueInfo, (void *queue, uint32_t name, size_t size, void *value_out, size_t *size_out),
      (queue, name, size, value_out, size_out))
#endif

int32_t clEnqueueUnmapMemObject(void *queue, void *memory, void *host, uint32_t n, void *const *waits, void **event) {
    int value = 0;
    const int kind = strikes("clEnqueueUnmapMemObject", &value);
    if (kind == ERROR) return value;
    int32_t (*unmap)(void *, void *, void *, uint32_t, void *const *, void **) = real("clEnqueueUnmapMemObject");
    const int32_t error = unmap(queue, memory, host, n, waits, event);
    if (!error) count_mapped(-1);
    if (!error && event) handed_out(*event, kind, value);
    return error;
}

void *clEnqueueMapBuffer(void *queue, void *buffer, uint32_t blocking, uint64_t flags, size_t offset, size_t size,
                         uint32_t n, void *const *waits, void **event, int32_t *error) {
    int value = 0;
    const int kind = strikes("clEnqueueMapBuffer", &value);
    if (kind == ERROR) {
        if (error) *error = value;
        return NULL;
    }
    if (blocking) wait_until_nothing_hangs();
    void *(*map)(void *, void *, uint32_t, uint64_t, size_t, size_t, uint32_t, void *const *, void **, int32_t *) =
        real("clEnqueueMapBuffer");
    void *host = map(queue, buffer, blocking, flags, offset, size, n, waits, event, error);
    if (host) count_mapped(1);
    if (host && event) handed_out(*event, kind, value);
    return host;
}

int32_t clGetEventInfo(void *event, uint32_t name, size_t size, void *value_out, size_t *size_out) {
    int value = 0;
    if (strikes("clGetEventInfo", &value) == ERROR) return value;
    pthread_mutex_lock(&lock);
    const int kind = name == CL_EXECUTION_STATUS ? kind_of(event, &value) : -1;
    pthread_mutex_unlock(&lock);
    if (kind < LOST) {
        int32_t (*info)(void *, uint32_t, size_t, void *, size_t *) = real("clGetEventInfo");
        const int32_t error = info(event, name, size, value_out, size_out);
        pthread_mutex_lock(&lock);
        if (!error && name == CL_EXECUTION_STATUS && *(int32_t *)value_out == CL_COMPLETE) replace_polled(NULL, event);
        pthread_mutex_unlock(&lock);
        return error;
    }
    *(int32_t *)value_out = kind == LOST ? value : CL_SUBMITTED;
    return 0;
}

int32_t clWaitForEvents(uint32_t n, void *const *events) {
    int value = 0, lost = 0;
    if (strikes("clWaitForEvents", &value) == ERROR) return value;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n; i++) {
        while (kind_of(events[i], &value) == HANGING) pthread_cond_wait(&cleared, &lock);
        lost |= kind_of(events[i], &value) == LOST;
    }
    pthread_mutex_unlock(&lock);
    const int32_t error = ((int32_t(*)(uint32_t, void *const *))real("clWaitForEvents"))(n, events);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n && !error; i++)
        while (replace_polled(events[i], NULL)) {
        }
    pthread_mutex_unlock(&lock);
    return error ? error : lost ? CL_EXEC_STATUS_ERROR : 0;
}

int32_t clFinish(void *queue) {
    int value = 0;
    if (strikes("clFinish", &value) == ERROR) return value;
    wait_until_nothing_hangs();
    return ((int32_t(*)(void *))real("clFinish"))(queue);
}

int32_t clReleaseEvent(void *event) {
    int value = 0;
    const int kind = strikes("clReleaseEvent", &value);
    pthread_mutex_lock(&lock);
    live--;
    unsynchronised += replace_polled(event, NULL);
    while (replace_polled(event, NULL)) {
    }
    for (int i = 0; i < MOST_EVENTS; i++)
        if (marked[i].event == event) marked[i].event = NULL;
    pthread_mutex_unlock(&lock);
    const int32_t error = ((int32_t(*)(void *))real("clReleaseEvent"))(event);
    return kind == ERROR ? value : error;
}
