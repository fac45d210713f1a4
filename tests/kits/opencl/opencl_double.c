/* The few functions of OpenCL that the engine uses, on queues that are threads: what a sanitizer can look into, which a
 * driver that translates kernels at run time is not. Kernels are additions and semaphores. Commands begin after random delays,
 * and the device notes when one touches memory that is not its own. Command buffers are pending for a moment after their event
 * is complete, as those of some drivers are. A file that includes this one and has devices of its own defines DOUBLE_HAS_NO_DEVICE.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { CL_COMPLETE = 0, CL_QUEUED = 3, CL_PROFILING_INFO_NOT_AVAILABLE = -7 };
enum { CL_DEVICE_EXTENSIONS = 0x1030, CL_DEVICE_PLATFORM = 0x1031, CL_QUEUE_DEVICE = 0x1091, CL_INVALID_OPERATION = -59 };
enum { ADD, COPY, MAP, UNMAP, RECORDED };
enum { COPIED, MAPPED };
enum { FAILED = 2 };

typedef struct {
    float *host, *own; /* the same unless the device has a copy */
    int64_t floats;
    int sharing;
    int mapped; /* the queue's business */
} memory;

typedef struct {
    memory *x, *y, *z; /* an addition, or: */
    _Atomic int32_t *flags; /* a semaphore, with the numbers of its flags */
    int32_t *waits;
    int64_t n_waits;
} kernel;

typedef struct {
    _Atomic int32_t status, references;
} event;

enum { MOST_RECORDED = 64, STILL_PENDING_US = 500 };

typedef struct {
    const kernel *kernels[MOST_RECORDED];
    uint32_t count;
    int finalized;
    _Atomic int32_t pending, references;
    struct queue *to;
} command_buffer;

typedef struct command {
    int kind;
    const kernel *kernel;
    command_buffer *buffer;
    memory *memory;
    float *to;
    const float *from;
    event *event;
    struct command *next;
} command;

typedef struct queue {
    pthread_t thread;
    command *first, *last;
    int64_t waiting; /* commands that are not done */
    int failed;      /* a semaphore was opened by a failure: what follows computes nothing that counts, beside queues that go on */
    int stop;
    uint32_t lot;
} queue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic int64_t misuses, live_events, passed_semaphores, lent_launches;
static _Atomic int64_t live_buffers, enqueued_buffers, refused_buffers;

/* How often a command touched memory that its side did not own. */
int64_t double_misuses(void) { return atomic_load(&misuses); }
int64_t double_live_events(void) { return atomic_load(&live_events); }
int64_t double_live_buffers(void) { return atomic_load(&live_buffers); }

/* Command buffers that were enqueued, and those that were refused because they were pending. */
int64_t double_enqueued_buffers(void) { return atomic_load(&enqueued_buffers); }
int64_t double_refused_buffers(void) { return atomic_load(&refused_buffers); }

int64_t double_passed_semaphores(void) { return atomic_load(&passed_semaphores); }

/* Kernels that the thread of a lent queue has enqueued. */
int64_t double_lent_launches(void) { return atomic_load(&lent_launches); }

memory *double_memory(float *host, int64_t floats, int sharing) {
    memory *made = calloc(1, sizeof *made);
    made->host = host;
    made->sharing = sharing;
    made->own = sharing != COPIED ? host : calloc((size_t)floats, sizeof(float));
    made->floats = floats;
    return made;
}

void double_free_memory(memory *made) {
    if (made->own != made->host) free(made->own);
    free(made);
}

kernel *double_kernel(memory *x, memory *y, memory *z) {
    kernel *made = calloc(1, sizeof *made);
    *made = (kernel){.x = x, .y = y, .z = z};
    return made;
}

kernel *double_semaphore(int32_t *flags, const int32_t *waits, int64_t n_waits) {
    kernel *made = calloc(1, sizeof *made);
    *made = (kernel){.flags = (_Atomic int32_t *)flags, .n_waits = n_waits};
    made->waits = malloc((size_t)n_waits * sizeof *waits);
    memcpy(made->waits, waits, (size_t)n_waits * sizeof *waits);
    return made;
}

void double_free_kernel(kernel *made) {
    free(made->waits);
    free(made);
}

static void release(event *one) {
    if (!one || atomic_fetch_sub(&one->references, 1) > 1) return;
    free(one);
    atomic_fetch_sub(&live_events, 1);
}

static void check(int holds) {
    if (!holds) atomic_fetch_add(&misuses, 1);
}

/* Computes a kernel without operands, which opencl_stub.c has. */
void double_compute(const kernel *what) __attribute__((weak));

static int usable(const memory *one) { return one->sharing != MAPPED || !one->mapped; }

static void pass(queue *mine, const kernel *semaphore) {
    for (int64_t i = 0; i < semaphore->n_waits; i++) {
        int32_t flag = 0;
        while (!(flag = atomic_load_explicit(&semaphore->flags[semaphore->waits[i]], memory_order_acquire))) usleep(1);
        if (flag == FAILED) mine->failed = 1;
    }
    atomic_fetch_add(&passed_semaphores, 1);
}

static void execute(queue *mine, const command *todo) {
    const int computes = todo->kind == ADD || todo->kind == COPY;
    if (todo->kind == RECORDED) {
        for (uint32_t i = 0; i < todo->buffer->count; i++)
            execute(mine, &(command){.kind = ADD, .kernel = todo->buffer->kernels[i]});
    } else if (todo->kind == ADD && todo->kernel->flags) {
        pass(mine, todo->kernel);
    } else if (computes && mine->failed) {
        return;
    } else if (todo->kind == ADD && !todo->kernel->x) {
        double_compute(todo->kernel);
    } else if (todo->kind == ADD) {
        const kernel *k = todo->kernel;
        check(usable(k->x) && usable(k->y) && usable(k->z));
        for (int64_t i = 0; i < k->z->floats; i++) k->z->own[i] = k->x->own[i] + k->y->own[i];
    } else if (todo->kind == COPY) {
        memcpy(todo->to, todo->from, (size_t)todo->memory->floats * sizeof(float));
    } else {
        check(todo->memory->sharing == MAPPED && todo->memory->mapped == (todo->kind == UNMAP));
        todo->memory->mapped = todo->kind == MAP;
    }
}

static void delay(queue *mine) {
    mine->lot = mine->lot * 1664525 + 1013904223;
    if (mine->lot >> 30 == 0) usleep(mine->lot >> 16 & 127);
}

static void release_buffer(command_buffer *one) {
    if (atomic_fetch_sub(&one->references, 1) > 1) return;
    free(one);
    atomic_fetch_sub(&live_buffers, 1);
}

static void *work(void *argument) {
    queue *mine = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!mine->first && !mine->stop) pthread_cond_wait(&changed, &lock);
        if (!mine->first) break;
        command *todo = mine->first;
        command_buffer *buffer = todo->buffer;
        pthread_mutex_unlock(&lock);
        delay(mine);
        execute(mine, todo);
        delay(mine);
        pthread_mutex_lock(&lock);
        mine->first = todo->next;
        if (!mine->first) mine->last = NULL;
        mine->waiting--;
        if (todo->event) atomic_store_explicit(&todo->event->status, CL_COMPLETE, memory_order_release);
        release(todo->event);
        free(todo);
        pthread_cond_broadcast(&changed);
        if (!buffer) continue;
        pthread_mutex_unlock(&lock);
        delay(mine);
        if (mine->lot >> 16 & 1) usleep(STILL_PENDING_US);
        atomic_fetch_sub(&buffer->pending, 1);
        release_buffer(buffer);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

queue *double_queue(uint32_t seed) {
    queue *made = calloc(1, sizeof *made);
    made->lot = seed;
    pthread_create(&made->thread, NULL, work, made);
    return made;
}

void double_free_queue(queue *made) {
    pthread_mutex_lock(&lock);
    made->stop = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(made->thread, NULL);
    free(made);
}

/* Waits until the queue is empty. */
static void await_all(queue *to) {
    pthread_mutex_lock(&lock);
    while (to->waiting) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

int32_t clFinish(queue *to) {
    await_all(to);
    pthread_mutex_lock(&lock);
    to->failed = 0; /* not before: a thread may still enqueue what belongs to the failed run */
    pthread_mutex_unlock(&lock);
    return 0;
}

static int32_t enqueue(queue *to, command what, uint32_t blocking, event **out) {
    command *made = malloc(sizeof *made);
    *made = what;
    made->next = NULL;
    if (out) {
        made->event = malloc(sizeof *made->event);
        atomic_init(&made->event->status, CL_QUEUED);
        atomic_init(&made->event->references, 2);
        atomic_fetch_add(&live_events, 1);
        *out = made->event;
    }
    pthread_mutex_lock(&lock);
    if (to->last) to->last->next = made;
    else to->first = made;
    to->last = made;
    to->waiting++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (blocking) await_all(to);
    return 0;
}

static void count_launch(void) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (!strcmp(name, "nns-queue")) atomic_fetch_add(&lent_launches, 1);
}

int32_t clEnqueueNDRangeKernel(queue *to, const kernel *k, uint32_t dimensions, const size_t *offset,
                               const size_t *global, const size_t *local, uint32_t n, const void *waits, event **out) {
    (void)dimensions, (void)offset, (void)global, (void)local, (void)n, (void)waits;
    count_launch();
    return enqueue(to, (command){.kind = ADD, .kernel = k}, 0, out);
}

/* ---- command buffers -------------------------------------------------------------------------------------- */

static command_buffer *create_buffer(uint32_t n, queue *const *queues, const uint64_t *properties, int32_t *error) {
    check(n == 1 && !properties);
    command_buffer *made = calloc(1, sizeof *made);
    made->to = queues[0];
    made->references = 1;
    atomic_fetch_add(&live_buffers, 1);
    *error = 0;
    return made;
}

static int32_t record_kernel(command_buffer *into, queue *to, const uint64_t *properties, const kernel *k, uint32_t dimensions,
                             const size_t *offset, const size_t *global, const size_t *local, uint32_t n, const uint32_t *waits,
                             uint32_t *point, void **handle) {
    (void)properties, (void)dimensions, (void)offset, (void)global, (void)local;
    check(!to && !handle && !into->finalized && n == (into->count > 0) && (!n || waits[0] == into->count));
    if (into->count == MOST_RECORDED) return -5;
    into->kernels[into->count++] = k;
    *point = into->count;
    return 0;
}

static int32_t finalize_buffer(command_buffer *one) {
    check(!one->finalized);
    one->finalized = 1;
    return 0;
}

static int32_t enqueue_buffer(uint32_t n_queues, queue *const *queues, command_buffer *one, uint32_t n, const void *waits,
                              event **out) {
    (void)queues, (void)n, (void)waits;
    check(!n_queues && one->finalized);
    if (atomic_load(&one->pending)) atomic_fetch_add(&refused_buffers, 1);
    if (atomic_load(&one->pending)) return CL_INVALID_OPERATION;
    count_launch();
    atomic_fetch_add(&enqueued_buffers, 1);
    atomic_fetch_add(&one->pending, 1);
    atomic_fetch_add(&one->references, 1);
    return enqueue(one->to, (command){.kind = RECORDED, .buffer = one}, 0, out);
}

static int32_t release_by_host(command_buffer *one) {
    release_buffer(one);
    return 0;
}

void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name) {
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"clCreateCommandBufferKHR", (void *)create_buffer},   {"clCommandNDRangeKernelKHR", (void *)record_kernel},
        {"clFinalizeCommandBufferKHR", (void *)finalize_buffer}, {"clEnqueueCommandBufferKHR", (void *)enqueue_buffer},
        {"clReleaseCommandBufferKHR", (void *)release_by_host},
    };
    (void)platform;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].function;
    return NULL;
}

int32_t clGetCommandQueueInfo(queue *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)name, (void)size_out;
    check(name == CL_QUEUE_DEVICE && size == sizeof of);
    memcpy(value, &of, sizeof of);
    return 0;
}

#ifndef DOUBLE_HAS_NO_DEVICE
int32_t clGetDeviceInfo(void *device, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)size_out;
    static const char extensions[] = "cl_khr_icd cl_khr_command_buffer";
    if (name == CL_DEVICE_EXTENSIONS) memcpy(value, extensions, size < sizeof extensions ? size : sizeof extensions);
    else memcpy(value, &device, size);
    return 0;
}
#endif

/* ---- memory ----------------------------------------------------------------------------------------------- */

void *clEnqueueMapBuffer(queue *to, memory *what, uint32_t blocking, uint64_t flags, size_t offset, size_t size,
                         uint32_t n, const void *waits, event **out, int32_t *error) {
    (void)flags, (void)offset, (void)size, (void)n, (void)waits;
    *error = enqueue(to, (command){.kind = MAP, .memory = what}, blocking, out);
    return what->host;
}

int32_t clEnqueueUnmapMemObject(queue *to, memory *what, void *mapped, uint32_t n, const void *waits, event **out) {
    (void)mapped, (void)n, (void)waits;
    return enqueue(to, (command){.kind = UNMAP, .memory = what}, 0, out);
}

int32_t clEnqueueReadBuffer(queue *to, memory *what, uint32_t blocking, size_t offset, size_t size, void *host,
                            uint32_t n, const void *waits, event **out) {
    (void)offset, (void)size, (void)n, (void)waits;
    return enqueue(to, (command){.kind = COPY, .memory = what, .to = host, .from = what->own}, blocking, out);
}

int32_t clEnqueueWriteBuffer(queue *to, memory *what, uint32_t blocking, size_t offset, size_t size, const void *host,
                             uint32_t n, const void *waits, event **out) {
    (void)offset, (void)size, (void)n, (void)waits;
    return enqueue(to, (command){.kind = COPY, .memory = what, .to = what->own, .from = host}, blocking, out);
}

int32_t clFlush(queue *to) {
    (void)to;
    return 0;
}

int32_t clGetEventInfo(event *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)name, (void)size, (void)size_out;
    /* Relaxed: only a wait makes what the command wrote visible. */
    *(int32_t *)value = atomic_load_explicit(&of->status, memory_order_relaxed);
    return 0;
}

int32_t clGetEventProfilingInfo(event *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)of, (void)name, (void)size, (void)value, (void)size_out;
    return CL_PROFILING_INFO_NOT_AVAILABLE;
}

int32_t clWaitForEvents(uint32_t count, event *const *events) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count; i++)
        while (atomic_load_explicit(&events[i]->status, memory_order_acquire) != CL_COMPLETE)
            pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}

int32_t clReleaseEvent(event *of) {
    release(of);
    return 0;
}
