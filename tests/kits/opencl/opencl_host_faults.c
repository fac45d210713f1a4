/* opencl_faults.c with the functions that make and release objects, for the C host of OpenCL, and with those of command
 * buffers. */
#define FAULTS_OF_HOST
#include "opencl_faults.c"

/* ---- command buffers (cl_khr_command_buffer), of one driver ---- */

enum { N_EXTENSIONS = 5 };
static const char *const extension_names[N_EXTENSIONS] = {
    "clCreateCommandBufferKHR",  "clCommandNDRangeKernelKHR", "clFinalizeCommandBufferKHR",
    "clEnqueueCommandBufferKHR", "clReleaseCommandBufferKHR",
};
static void *real_extensions[N_EXTENSIONS];

static int number_of_extension(const char *name) {
    int i = 0;
    while (i < N_EXTENSIONS && strcmp(extension_names[i], name)) i++;
    return i;
}

static void *real_extension(const char *name) { return real_extensions[number_of_extension(name)]; }

static void *made_buffer(uint32_t n, void *const *queues, const uint64_t *properties, int32_t *error) {
    int value = 0;
    const int kind = strikes("clCreateCommandBufferKHR", &value);
    if (kind == ERROR) *error = value;
    if (kind == ERROR) return NULL;
    void *(*make)(uint32_t, void *const *, const uint64_t *, int32_t *) = real_extension("clCreateCommandBufferKHR");
    return count_object(make(n, queues, properties, error));
}

static int32_t recorded(void *buffer, void *queue, const uint64_t *properties, void *kernel, uint32_t dimensions,
                        const size_t *offset, const size_t *global, const size_t *local, uint32_t n, const uint32_t *points,
                        uint32_t *point, void **handle) {
    int value = 0;
    if (strikes("clCommandNDRangeKernelKHR", &value) == ERROR) return value;
    int32_t (*record)(void *, void *, const uint64_t *, void *, uint32_t, const size_t *, const size_t *, const size_t *,
                      uint32_t, const uint32_t *, uint32_t *, void **) = real_extension("clCommandNDRangeKernelKHR");
    return record(buffer, queue, properties, kernel, dimensions, offset, global, local, n, points, point, handle);
}

static int32_t finalized(void *buffer) {
    int value = 0;
    if (strikes("clFinalizeCommandBufferKHR", &value) == ERROR) return value;
    return ((int32_t(*)(void *))real_extension("clFinalizeCommandBufferKHR"))(buffer);
}

static int32_t enqueued(uint32_t n_queues, void **queues, void *buffer, uint32_t n, void *const *waits, void **event) {
    int value = 0;
    const int kind = strikes("clEnqueueCommandBufferKHR", &value);
    if (kind == ERROR) return value;
    int32_t (*enqueue)(uint32_t, void **, void *, uint32_t, void *const *, void **) =
        real_extension("clEnqueueCommandBufferKHR");
    const int32_t error = enqueue(n_queues, queues, buffer, n, waits, event);
    if (!error && event) handed_out(*event, kind, value);
    return error;
}

static int32_t released_buffer(void *buffer) {
    int value = 0;
    const int kind = strikes("clReleaseCommandBufferKHR", &value);
    pthread_mutex_lock(&lock);
    objects--;
    pthread_mutex_unlock(&lock);
    const int32_t error = ((int32_t(*)(void *))real_extension("clReleaseCommandBufferKHR"))(buffer);
    return kind == ERROR ? value : error;
}

void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name) {
    int value = 0;
    if (strikes("clGetExtensionFunctionAddressForPlatform", &value) == ERROR) return NULL;
    void *found = ((void *(*)(void *, const char *))real("clGetExtensionFunctionAddressForPlatform"))(platform, name);
    void *const ours[N_EXTENSIONS] = {(void *)made_buffer, (void *)recorded, (void *)finalized, (void *)enqueued,
                                      (void *)released_buffer};
    const int i = number_of_extension(name);
    if (!found || i == N_EXTENSIONS) return found;
    real_extensions[i] = found;
    return ours[i];
}
