/* A driver of OpenCL for the C host: opencl_double.c with devices, memory, programs and kernels, which sanitizers can look into.
 *
 * A kernel reads a number of each of its buffers and writes one to the last. The environment says what the device is: STUB_SHARING
 * is copied, mapped or coherent; STUB_TYPE is cpu or gpu; STUB_PLATFORM is a name, STUB_EXTENSIONS a list of them. When the process ends normally, it ends with status 66 if
 * memory was touched out of turn, and with 67 if objects were not released.
 *
 * A file that includes this one may define STUB_FAILS(name), whether a call of a function fails, and STUB_REPORTS as 0, so that the
 * process ends as it would without the stub.
 */
#define DOUBLE_HAS_NO_DEVICE
#include "opencl_double.c"

#include <ctype.h>
#include <stdio.h>

#ifndef STUB_FAILS
#define STUB_FAILS(name) 0
#endif
#ifndef STUB_REPORTS
#define STUB_REPORTS 1
#endif

enum {
    OUT_OF_RESOURCES = -5,
    MOST_ARGUMENTS = 32,
    MOST_BYTES = 1 << 28,
    BAD_NAME = -46,
    BAD_INDEX = -49,
    BAD_SIZE = -61,
    BAD_VALUE = -30,
    USE_HOST = 1 << 3,
    ALLOC_HOST = 1 << 4,
    COPY_HOST = 1 << 5,
    CPU = 1 << 1,
    GPU = 1 << 2,
    FINE_AND_ATOMICS = 1 << 1 | 1 << 3,
};

static _Atomic int64_t objects;
static _Atomic int32_t seeds;

static void *made(void *object) {
    if (object) atomic_fetch_add(&objects, 1);
    return object;
}

static int32_t released(void) {
    atomic_fetch_sub(&objects, 1);
    return 0;
}

__attribute__((destructor)) static void report(void) {
    if (!STUB_REPORTS) return;
    if (double_misuses()) fprintf(stderr, "%ld commands touched memory out of turn\n", (long)double_misuses());
    if (double_misuses()) _exit(66);
    const int64_t events = double_live_events(), made = atomic_load(&objects) + double_live_buffers();
    if (made || events) fprintf(stderr, "%ld objects and %ld events are left\n", (long)made, (long)events);
    if (made || events) _exit(67);
}

static const char *setting(const char *name, const char *usual) { return getenv(name) ? getenv(name) : usual; }

static int32_t answer(const void *data, size_t bytes, size_t size, void *value, size_t *size_out) {
    if (size_out) *size_out = bytes;
    if (value && size < bytes) return BAD_VALUE;
    if (value) memcpy(value, data, bytes);
    return 0;
}

static int32_t answer_text(const char *text, size_t size, void *value, size_t *size_out) {
    return answer(text, strlen(text) + 1, size, value, size_out);
}

/* ---- platform and device ---------------------------------------------------------------------------------- */

static int platform, device;

int32_t clGetPlatformIDs(uint32_t most, void **platforms, uint32_t *count) {
    if (most && platforms) platforms[0] = &platform;
    *count = 1;
    return 0;
}

int32_t clGetPlatformInfo(void *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)of, (void)name;
    if (STUB_FAILS("clGetPlatformInfo")) return OUT_OF_RESOURCES;
    return answer_text(setting("STUB_PLATFORM", "Stub"), size, value, size_out);
}

int32_t clGetDeviceIDs(void *of, uint64_t type, uint32_t most, void **devices, uint32_t *count) {
    (void)of, (void)type;
    if (most && devices) devices[0] = &device;
    *count = 1;
    return 0;
}

int32_t clGetDeviceInfo(void *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)of;
    if (STUB_FAILS("clGetDeviceInfo")) return OUT_OF_RESOURCES;
    const char *sharing = setting("STUB_SHARING", "mapped");
    const uint64_t type = strcmp(setting("STUB_TYPE", "cpu"), "gpu") ? CPU : GPU;
    const uint64_t svm = strcmp(sharing, "coherent") ? 0 : FINE_AND_ATOMICS;
    const uint32_t unified = strcmp(sharing, "copied") != 0, units = 2;
    switch (name) {
    case 0x1000: return answer(&type, sizeof type, size, value, size_out);
    case 0x1002: return answer(&units, sizeof units, size, value, size_out);
    case 0x1035: return answer(&unified, sizeof unified, size, value, size_out);
    case 0x1053: return answer(&svm, sizeof svm, size, value, size_out);
    case CL_DEVICE_EXTENSIONS: return answer_text(setting("STUB_EXTENSIONS", "  stub  "), size, value, size_out);
    case CL_DEVICE_PLATFORM: return answer(&(void *){&platform}, sizeof(void *), size, value, size_out);
    default: return answer_text("  stub  ", size, value, size_out);
    }
}

/* ---- contexts, queues, memory ----------------------------------------------------------------------------- */

void *clCreateContext(const intptr_t *properties, uint32_t n, void *const *devices, void *notify, void *data, int32_t *error) {
    (void)properties, (void)n, (void)devices, (void)notify, (void)data;
    *error = 0;
    return made(malloc(1));
}

int32_t clReleaseContext(void *context) {
    free(context);
    return released();
}

void *clCreateCommandQueue(void *context, void *of, uint64_t properties, int32_t *error) {
    (void)context, (void)of, (void)properties;
    *error = 0;
    return made(double_queue((uint32_t)atomic_fetch_add(&seeds, 1)));
}

int32_t clReleaseCommandQueue(queue *one) {
    clFinish(one);
    double_free_queue(one);
    return released();
}

/* Memory of the stub; `allocation` is the host's side where the driver has made that. */
typedef struct {
    memory base;
    float *allocation;
} buffer;

void *clCreateBuffer(void *context, uint64_t flags, size_t size, void *host, int32_t *error) {
    (void)context;
    *error = size && size <= MOST_BYTES ? 0 : BAD_SIZE;
    if (*error) return NULL;
    const int64_t floats = (int64_t)(size / sizeof(float));
    buffer *one = calloc(1, sizeof *one);
    one->base.floats = floats;
    one->base.sharing = flags & (USE_HOST | ALLOC_HOST) ? MAPPED : COPIED;
    if (flags & USE_HOST) one->base.own = one->base.host = host;
    else one->base.own = one->base.host = one->allocation = calloc(1, size);
    if (flags & COPY_HOST) memcpy(one->base.own, host, size);
    return made(one);
}

/* Parts are made of coherent memory alone. */
void *clCreateSubBuffer(buffer *whole, uint64_t flags, uint32_t type, const size_t *part, int32_t *error) {
    (void)flags, (void)type;
    *error = part[1] && part[0] + part[1] <= (size_t)whole->base.floats * sizeof(float) ? 0 : BAD_VALUE;
    if (*error) return NULL;
    buffer *one = calloc(1, sizeof *one);
    one->base.own = one->base.host = whole->base.host + part[0] / sizeof(float);
    one->base.floats = (int64_t)(part[1] / sizeof(float));
    one->base.sharing = MAPPED + 1;
    return made(one);
}

int32_t clReleaseMemObject(buffer *one) {
    free(one->allocation);
    free(one);
    return released();
}

void *clSVMAlloc(void *context, uint64_t flags, size_t size, uint32_t alignment) {
    (void)context, (void)flags;
    const size_t whole = (size + alignment - 1) / alignment * alignment;
    return size <= MOST_BYTES ? made(aligned_alloc(alignment, whole)) : NULL;
}

void clSVMFree(void *context, void *one) {
    (void)context;
    free(one);
    released();
}

/* ---- programs and kernels --------------------------------------------------------------------------------- */

void *clCreateProgramWithSource(void *context, uint32_t n, const char **texts, const size_t *lengths, int32_t *error) {
    (void)context, (void)n;
    *error = 0;
    char *text = calloc(lengths[0] + 1, 1);
    memcpy(text, texts[0], lengths[0]);
    return made(text);
}

void *clCreateProgramWithBinary(void *context, uint32_t n, void *const *devices, const size_t *lengths,
                                const unsigned char **binaries, int32_t *statuses, int32_t *error) {
    (void)devices;
    *statuses = 0;
    *error = STUB_FAILS("clCreateProgramWithBinary") ? OUT_OF_RESOURCES : 0;
    if (*error) return NULL;
    const char *text = (const char *)binaries[0];
    fprintf(stderr, "stub: a binary\n");
    return clCreateProgramWithSource(context, n, &text, lengths, error);
}

int32_t clBuildProgram(void *program, uint32_t n, void *const *devices, const char *options, void *notify, void *data) {
    (void)program, (void)n, (void)devices, (void)options, (void)notify, (void)data;
    return STUB_FAILS("clBuildProgram") ? OUT_OF_RESOURCES : 0;
}

int32_t clGetProgramInfo(const char *program, uint32_t name, size_t size, void *value, size_t *size_out) {
    if (STUB_FAILS("clGetProgramInfo")) return OUT_OF_RESOURCES;
    const size_t bytes = strlen(program);
    if (name == 0x1165) return answer(&bytes, sizeof bytes, size, value, size_out);
    memcpy(*(unsigned char **)value, program, bytes);
    return 0;
}

int32_t clGetProgramBuildInfo(void *program, void *of, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)program, (void)of, (void)name;
    if (STUB_FAILS("clGetProgramBuildInfo")) return OUT_OF_RESOURCES;
    return answer_text("the log of the stub", size, value, size_out);
}

int32_t clReleaseProgram(void *program) {
    free(program);
    return released();
}

typedef struct {
    kernel base; /* semaphores */
    int is_semaphore;
    uint32_t n_arguments; /* the struct included */
    buffer *arguments[MOST_ARGUMENTS];
    int32_t offsets[MOST_ARGUMENTS];
} stub_kernel;

void *clCreateKernel(const char *program, const char *name, int32_t *error) {
    char start[128];
    snprintf(start, sizeof start, "kernel void %.64s(", name);
    const char *at = strstr(program, start);
    *error = at ? 0 : BAD_NAME;
    if (!at) return NULL;
    stub_kernel *one = calloc(1, sizeof *one);
    one->n_arguments = 1;
    for (at += strlen(start); *at && *at != ')'; at++) one->n_arguments += *at == ',';
    one->is_semaphore = !strcmp(name, "semaphore");
    return made(one);
}

int32_t clGetKernelInfo(const stub_kernel *one, uint32_t name, size_t size, void *value, size_t *size_out) {
    (void)name;
    return answer(&one->n_arguments, sizeof one->n_arguments, size, value, size_out);
}

int32_t clSetKernelArg(stub_kernel *one, uint32_t index, size_t size, const void *value) {
    if (index >= one->n_arguments || index >= MOST_ARGUMENTS) return BAD_INDEX;
    if (index + 1 < one->n_arguments) {
        memcpy(&one->arguments[index], value, sizeof one->arguments[index]);
        return size == sizeof(void *) ? 0 : BAD_VALUE;
    }
    memcpy(one->offsets, value, size < sizeof one->offsets ? size : sizeof one->offsets);
    if (!one->is_semaphore) return 0;
    one->base.flags = (_Atomic int32_t *)(void *)(one->arguments[0]->base.host + one->offsets[0]);
    one->base.waits = (int32_t *)(void *)(one->arguments[1]->base.host + one->offsets[1]);
    one->base.n_waits = one->offsets[2];
    return 0;
}

int32_t clReleaseKernel(stub_kernel *one) {
    free(one);
    return released();
}

static float *number_of(const stub_kernel *one, uint32_t index) {
    const buffer *argument = one->arguments[index];
    if (!argument || one->offsets[index] < 0 || one->offsets[index] >= argument->base.floats) return NULL;
    check(usable(&argument->base));
    return argument->base.own + one->offsets[index];
}

void double_compute(const kernel *what) {
    const stub_kernel *one = (const stub_kernel *)what;
    float sum = 1;
    if (one->n_arguments < 2) return;
    const uint32_t last = one->n_arguments - 2;
    for (uint32_t i = 0; i < last && i < MOST_ARGUMENTS; i++) {
        const float *number = number_of(one, i);
        if (number) sum += *number;
    }
    float *to = last < MOST_ARGUMENTS ? number_of(one, last) : NULL;
    if (to) *to = sum;
}
