#include "drivers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workers.h"

enum { MOST_PLATFORMS = 32, PATH_BYTES = 4096, NUMBER_BYTES = 16 };

static struct {
    pthread_mutex_t lock; /* held while the others change */
    bool loaded;
    pid_t process; /* that has loaded them */
    nns_ocl_device devices[NNS_OCL_MOST_DEVICES];
    int32_t n_devices;
    nns_ocl_threads workers;
    int32_t pinned[NNS_MAX_CORES];
    int32_t n_pinned;
} drivers = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* In the child of a fork: another thread of the parent may have held the lock. */
static void forget_parent(void) {
    drivers.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    drivers.workers.count = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_parent); }

/* ---- errors ----------------------------------------------------------------------------------------------- */

/* What an error means, and what to do about it. */
static const char *meaning(ocl_int code) {
    static const struct {
        ocl_int code;
        const char *text;
    } known[] = {
        {-2, " (device not available); check its driver, or use a model for CPU cores alone"},
        {-3, " (no compiler available); update the driver"},
        {-4, " (no memory for a buffer); use a smaller model or free memory"},
        {-5, " (out of resources); use a smaller model or free memory"},
        {-6, " (out of host memory); use a smaller model or free memory"},
        {-11, " (the build failed); update the driver"},
        {-46, " (no kernel of that name); compile the model again"},
        {-61, " (buffer size not supported); use a smaller model"},
    };
    for (int64_t i = 0; i < NNS_OCL_LENGTH(known); i++)
        if (known[i].code == code) return known[i].text;
    return "; update its driver, or compile the model again";
}

int32_t nns_ocl_fail(const nns_ocl_device *device, ocl_int code, nns_report *report, const char *format, ...) {
    char what[NNS_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return nns_fail(report, NNS_EOPENCL, "OpenCL device %d (%.40s) %.110s: error %d%s", (int)device->index, device->name,
                    what, (int)code, meaning(code));
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

static void strip(char *text) {
    size_t length = strlen(text), start = 0;
    while (length && is_space(text[length - 1])) length--;
    while (start < length && is_space(text[start])) start++;
    memmove(text, text + start, length - start);
    text[length - start] = 0;
}

/* A text of a device, or "" if the driver has none. */
static void read_text(ocl_handle device, ocl_uint name, char text[NNS_OCL_NAME]) {
    char whole[4096];
    size_t size = 0;
    if (nns_ocl.GetDeviceInfo(device, name, sizeof whole, whole, &size) || !size || size > sizeof whole) size = 1, *whole = 0;
    whole[size - 1] = 0;
    snprintf(text, NNS_OCL_NAME, "%.*s", NNS_OCL_NAME - 1, whole);
    strip(text);
}

/* A number of a device, or 0 if the driver has none. */
static uint64_t read_number(ocl_handle device, ocl_uint name, size_t size) {
    uint64_t value = 0;
    return nns_ocl.GetDeviceInfo(device, name, size, &value, NULL) ? 0 : value;
}

static bool has_word(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (!at[length] || at[length] == ' ')) return true;
    return false;
}

/* Whether a device has an extension. */
static bool has_extension(ocl_handle device, const char *name) {
    char whole[16384];
    size_t size = 0;
    if (nns_ocl.GetDeviceInfo(device, OCL_DEVICE_EXTENSIONS, sizeof whole, whole, &size) || !size || size > sizeof whole)
        return false;
    whole[size - 1] = 0;
    return has_word(whole, name);
}

/* Work items that run in lockstep; 0 if the driver does not say. */
static int64_t read_wave(ocl_handle id) {
    const uint64_t multiple = read_number(id, OCL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, sizeof(size_t));
    if (multiple) return (int64_t)multiple;
    if (has_extension(id, "cl_nv_device_attribute_query"))
        return (int64_t)read_number(id, OCL_DEVICE_WARP_SIZE_NV, sizeof(ocl_uint));
    if (has_extension(id, "cl_amd_device_attribute_query"))
        return (int64_t)read_number(id, OCL_DEVICE_WAVEFRONT_WIDTH_AMD, sizeof(ocl_uint));
    return 0;
}

/* Dot products of int8: by extensions of vendors, whose instructions they are, or by Khronos's, which says whether there are. */
static void describe_dot(ocl_handle id, nns_ocl_device *device) {
    enum { SIGNED, FORMS = 6 };
    ocl_uint accelerated[FORMS] = {0};
    if (has_extension(id, "cl_arm_integer_dot_product_int8") || has_extension(id, "cl_qcom_dot_product8")) {
        device->int8_dot = device->int8_dot_accelerated = true;
    } else if (has_extension(id, "cl_khr_integer_dot_product")) {
        device->int8_dot = true;
        device->int8_dot_accelerated =
            !nns_ocl.GetDeviceInfo(id, OCL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_8BIT_KHR, sizeof accelerated,
                                   accelerated, NULL) &&
            accelerated[SIGNED];
    }
}

static void describe_images(ocl_handle id, nns_ocl_device *device) {
    if (!nns_ocl.CreateImage || !(read_number(id, OCL_DEVICE_IMAGE_SUPPORT, sizeof(ocl_uint)) & 1)) return;
    device->image_width = (int64_t)read_number(id, OCL_DEVICE_IMAGE2D_MAX_WIDTH, sizeof(size_t));
    device->image_height = (int64_t)read_number(id, OCL_DEVICE_IMAGE2D_MAX_HEIGHT, sizeof(size_t));
    device->image_buffer = (int64_t)read_number(id, OCL_DEVICE_IMAGE_MAX_BUFFER_SIZE, sizeof(size_t));
}

static void describe(ocl_handle id, const char *platform, nns_ocl_device *device) {
    *device = (nns_ocl_device){.id = id, .index = drivers.n_devices};
    snprintf(device->platform, sizeof device->platform, "%.*s", NNS_OCL_NAME - 1, platform);
    read_text(id, OCL_DEVICE_NAME, device->name);
    read_text(id, OCL_DEVICE_VENDOR, device->vendor);
    read_text(id, OCL_DRIVER_VERSION, device->driver);
    read_text(id, OCL_DEVICE_VERSION, device->version);
    const uint64_t svm = read_number(id, OCL_DEVICE_SVM_CAPABILITIES, sizeof(uint64_t));
    device->compute_units = (int32_t)read_number(id, OCL_DEVICE_MAX_COMPUTE_UNITS, sizeof(ocl_uint));
    device->on_cpu = read_number(id, OCL_DEVICE_TYPE, sizeof(uint64_t)) & OCL_DEVICE_TYPE_CPU;
    device->unified = read_number(id, OCL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(ocl_uint)) & 1;
    device->fine_grained = svm & OCL_SVM_FINE_GRAIN_BUFFER && nns_ocl.SVMAlloc && nns_ocl.SVMFree;
    device->atomics = svm & OCL_SVM_ATOMICS;
    device->scalar = read_number(id, OCL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof(ocl_uint)) == 1;
    device->dot_products =
        strcmp(device->version, "OpenCL 3") >= 0 && has_extension(id, "cl_khr_integer_dot_product");
    if (read_number(id, OCL_DEVICE_LOCAL_MEM_TYPE, sizeof(ocl_uint)) == OCL_LOCAL_MEM_IS_LOCAL)
        device->local_memory = (int64_t)read_number(id, OCL_DEVICE_LOCAL_MEM_SIZE, sizeof(ocl_ulong));
    device->group_items = (int64_t)read_number(id, OCL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
    device->wave = device->on_cpu ? 0 : read_wave(id);
    device->half_arithmetic = has_extension(id, "cl_khr_fp16");
    device->allocation_bytes = (int64_t)read_number(id, OCL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(ocl_ulong));
    device->address_bits = (int32_t)read_number(id, OCL_DEVICE_ADDRESS_BITS, sizeof(ocl_uint));
    const int64_t alignment = (int64_t)read_number(id, OCL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(ocl_uint)) / 8; /* of bits */
    device->part_alignment = alignment > 0 ? alignment : 1;
    describe_dot(id, device);
    describe_images(id, device);
}

static void list_platform(ocl_handle platform) {
    ocl_handle ids[NNS_OCL_MOST_DEVICES];
    char name[NNS_OCL_NAME] = "";
    ocl_uint count = 0;
    if (nns_ocl.GetPlatformInfo(platform, OCL_PLATFORM_NAME, sizeof name, name, NULL)) *name = 0;
    name[sizeof name - 1] = 0;
    if (nns_ocl.GetDeviceIDs(platform, OCL_DEVICE_TYPE_ALL, NNS_OCL_MOST_DEVICES, ids, &count)) return;
    for (ocl_uint i = 0; i < count && i < NNS_OCL_MOST_DEVICES && drivers.n_devices < NNS_OCL_MOST_DEVICES; i++) {
        describe(ids[i], name, &drivers.devices[drivers.n_devices]);
        drivers.n_devices++;
    }
}

static int32_t list_devices(nns_report *report) {
    ocl_handle platforms[MOST_PLATFORMS];
    ocl_uint count = 0;
    drivers.n_devices = 0;
    const ocl_int code = nns_ocl.GetPlatformIDs(MOST_PLATFORMS, platforms, &count);
    for (ocl_uint i = 0; !code && i < count && i < MOST_PLATFORMS; i++) list_platform(platforms[i]);
    if (drivers.n_devices) return NNS_OK;
    return nns_fail(report, NNS_EOPENCL,
                    "no OpenCL driver with a device is found (clGetPlatformIDs: %d); install one (Debian, Ubuntu: apt-get "
                    "install pocl-opencl-icd), or use a model for CPU cores alone",
                    (int)code);
}

/* ---- loading ---------------------------------------------------------------------------------------------- */

/* Sets an environment variable for drivers that are loaded next, unless it is set. Returns whether it did. */
static bool offer(const char *name, const char *value) { return !getenv(name) && !setenv(name, value, 1); }

static int32_t usable_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Lists the devices on the given cores, which a driver's new threads inherit, and records these threads. */
static int32_t list_on(nns_ocl_cores cores, nns_report *report) {
    static nns_ocl_threads before;
    cpu_set_t affinity, wanted;
    CPU_ZERO(&wanted);
    for (int32_t i = 0; i < cores.count; i++) CPU_SET((size_t)cores.numbers[i], &wanted);
    const bool moved = cores.count && !sched_getaffinity(0, sizeof affinity, &affinity) &&
                       !sched_setaffinity(0, sizeof wanted, &wanted);
    nns_ocl_list_threads(&before);
    list_devices(report);
    nns_ocl_list_threads(&drivers.workers);
    nns_ocl_new_threads(&drivers.workers, &before);
    if (moved) sched_setaffinity(0, sizeof affinity, &affinity);
    return report->status;
}

static bool has_pocl(void) {
    for (int32_t i = 0; i < drivers.n_devices; i++)
        if (nns_ocl_is_pocl(&drivers.devices[i])) return true;
    return false;
}

static int32_t load(const nns_ocl_setup *setup, nns_report *report) {
    char threads[NUMBER_BYTES], folder[PATH_BYTES];
    TRY(nns_ocl_open_library(setup->library, report));
    snprintf(threads, sizeof threads, "%d", (int)(setup->cores.count ? setup->cores.count : usable_cores()));
    const bool counted = offer("POCL_MAX_PTHREAD_COUNT", threads);
    bool placed = false;
    if (setup->cache && snprintf(folder, sizeof folder, "%s/pocl", setup->cache) < PATH_BYTES)
        placed = (!mkdir(folder, 0777) || errno == EEXIST) && offer("POCL_CACHE_DIR", folder);
    list_on(setup->cores, report);
    if (counted) unsetenv("POCL_MAX_PTHREAD_COUNT");
    if (placed) unsetenv("POCL_CACHE_DIR");
    if (!has_pocl()) drivers.workers.count = 0; /* other drivers make threads for other work, too */
    return report->status;
}

int32_t nns_ocl_load_drivers(const nns_ocl_setup *setup, nns_report *report) {
    pthread_mutex_lock(&drivers.lock);
    if (nns_ocl_is_lost()) {
        nns_fail(report, NNS_EOPENCL,
                 "OpenCL drivers were loaded before this process was forked, and do not work in it; load the model in a "
                 "process that starts a new program, or use a model for CPU cores alone");
    } else if (!drivers.loaded) {
        load(setup, report);
        drivers.loaded = !report->status;
        if (drivers.loaded) drivers.process = getpid();
    }
    pthread_mutex_unlock(&drivers.lock);
    return report->status;
}

bool nns_ocl_is_lost(void) { return drivers.process && drivers.process != getpid(); }

int32_t nns_ocl_device_count(void) { return drivers.n_devices; }

const nns_ocl_device *nns_ocl_device_at(int32_t index) { return &drivers.devices[index]; }

bool nns_ocl_is_pocl(const nns_ocl_device *device) { return !strcmp(device->platform, "Portable Computing Language"); }

/* ---- threads ---------------------------------------------------------------------------------------------- */

int32_t nns_ocl_worker_count(void) { return drivers.workers.count; }

static bool is_pinned(nns_ocl_cores cores) {
    return drivers.n_pinned == cores.count &&
           !memcmp(drivers.pinned, cores.numbers, (size_t)cores.count * sizeof *cores.numbers);
}

void nns_ocl_pin_workers(nns_ocl_cores cores) {
    pthread_mutex_lock(&drivers.lock);
    if (cores.count > 0 && cores.count <= NNS_MAX_CORES && !is_pinned(cores)) {
        for (int32_t i = 0; i < drivers.workers.count; i++) {
            const bool own = drivers.workers.count >= cores.count;
            nns_ocl_bind_thread(drivers.workers.ids[i], own ? &cores.numbers[i % cores.count] : cores.numbers,
                                own ? 1 : cores.count);
        }
        memcpy(drivers.pinned, cores.numbers, (size_t)cores.count * sizeof *cores.numbers);
        drivers.n_pinned = cores.count;
    }
    pthread_mutex_unlock(&drivers.lock);
}
