/* The OpenCL functions that make devices ready: names, types and numbers as the OpenCL 1.2 specification has them, and those of
 * shared virtual memory from OpenCL 2.0. Handles are opaque pointers, so that no OpenCL headers are needed to build.
 * runtime/run/opencl.h has the functions that run queues. */
#ifndef NNS_OCL_API_H
#define NNS_OCL_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define NNS_OCL_LENGTH(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

typedef int32_t ocl_int;
typedef uint32_t ocl_uint;
typedef uint64_t ocl_ulong;
typedef void *ocl_handle;

#define OCL_DEVICE_TYPE_ALL UINT64_C(0xFFFFFFFF)

enum {
    OCL_DEVICE_NOT_FOUND = -1,
    OCL_INVALID_VALUE = -30,

    OCL_DEVICE_TYPE_CPU = 1 << 1,
    OCL_DEVICE_TYPE = 0x1000,
    OCL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    OCL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    OCL_DEVICE_ADDRESS_BITS = 0x100D,
    OCL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    OCL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011,
    OCL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012,
    OCL_DEVICE_IMAGE_SUPPORT = 0x1016,
    OCL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
    OCL_DEVICE_LOCAL_MEM_TYPE = 0x1022,
    OCL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    OCL_DEVICE_NAME = 0x102B,
    OCL_DEVICE_VENDOR = 0x102C,
    OCL_DRIVER_VERSION = 0x102D,
    OCL_DEVICE_VERSION = 0x102F,
    OCL_DEVICE_EXTENSIONS = 0x1030,
    OCL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    OCL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A,
    OCL_DEVICE_IMAGE_MAX_BUFFER_SIZE = 0x1040,
    OCL_DEVICE_SVM_CAPABILITIES = 0x1053,
    OCL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x1067,                   /* of OpenCL 3.0 */
    OCL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_8BIT_KHR = 0x1074,
    OCL_DEVICE_WARP_SIZE_NV = 0x4003,
    OCL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043,
    OCL_PLATFORM_NAME = 0x0902,
    OCL_LOCAL_MEM_IS_LOCAL = 1, /* a type of local memory */

    OCL_SVM_FINE_GRAIN_BUFFER = 1 << 1, /* of the capabilities */
    OCL_SVM_ATOMICS = 1 << 3,
    OCL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10, /* of an allocation */

    OCL_MEM_READ_WRITE = 1 << 0,
    OCL_MEM_READ_ONLY = 1 << 2,
    OCL_MEM_USE_HOST_PTR = 1 << 3,
    OCL_MEM_ALLOC_HOST_PTR = 1 << 4,
    OCL_MEM_COPY_HOST_PTR = 1 << 5,
    OCL_BUFFER_CREATE_TYPE_REGION = 0x1220,
    OCL_RGBA = 0x10B5, /* an order of channels, and types of them */
    OCL_HALF_FLOAT = 0x10DD,
    OCL_FLOAT = 0x10DE,
    OCL_MEM_OBJECT_IMAGE1D_BUFFER = 0x10F6,
    OCL_MAP_READ_WRITE = 3,

    OCL_QUEUE_PROFILING_ENABLE = 1 << 1,
    OCL_PROGRAM_BINARY_SIZES = 0x1165,
    OCL_PROGRAM_BINARIES = 0x1166,
    OCL_PROGRAM_BUILD_LOG = 0x1183,
    OCL_KERNEL_NUM_ARGS = 0x1191,
};

typedef struct {
    size_t origin, size;
} ocl_part;

typedef struct {
    ocl_uint order, type; /* of channels */
} ocl_image_format;

typedef struct {
    ocl_uint type;
    size_t width, height, depth, array_size, row_pitch, slice_pitch;
    ocl_uint n_mip_levels, n_samples;
    ocl_handle buffer;
} ocl_image_desc;

/* F(result, name without "cl", parameters) */
#define NNS_OCL_FUNCTIONS(F)                                                                                          \
    F(ocl_int, GetPlatformIDs, (ocl_uint most, ocl_handle * platforms, ocl_uint * count))                             \
    F(ocl_int, GetPlatformInfo, (ocl_handle platform, ocl_uint name, size_t size, void *value, size_t *size_out))     \
    F(ocl_int, GetDeviceIDs,                                                                                          \
      (ocl_handle platform, ocl_ulong type, ocl_uint most, ocl_handle * devices, ocl_uint * count))                   \
    F(ocl_int, GetDeviceInfo, (ocl_handle device, ocl_uint name, size_t size, void *value, size_t *size_out))         \
    F(ocl_handle, CreateContext,                                                                                      \
      (const intptr_t *properties, ocl_uint count, const ocl_handle *devices, void *notify, void *data,               \
       ocl_int *error))                                                                                               \
    F(ocl_int, ReleaseContext, (ocl_handle context))                                                                  \
    F(ocl_handle, CreateCommandQueue,                                                                                 \
      (ocl_handle context, ocl_handle device, ocl_ulong properties, ocl_int *error))                                  \
    F(ocl_int, ReleaseCommandQueue, (ocl_handle queue))                                                               \
    F(ocl_handle, CreateProgramWithSource,                                                                            \
      (ocl_handle context, ocl_uint count, const char **texts, const size_t *lengths, ocl_int *error))                \
    F(ocl_handle, CreateProgramWithBinary,                                                                            \
      (ocl_handle context, ocl_uint count, const ocl_handle *devices, const size_t *lengths,                          \
       const unsigned char **binaries, ocl_int *statuses, ocl_int *error))                                            \
    F(ocl_int, BuildProgram,                                                                                          \
      (ocl_handle program, ocl_uint count, const ocl_handle *devices, const char *options, void *notify, void *data)) \
    F(ocl_int, GetProgramInfo, (ocl_handle program, ocl_uint name, size_t size, void *value, size_t *size_out))       \
    F(ocl_int, GetProgramBuildInfo,                                                                                   \
      (ocl_handle program, ocl_handle device, ocl_uint name, size_t size, void *value, size_t *size_out))             \
    F(ocl_int, ReleaseProgram, (ocl_handle program))                                                                  \
    F(ocl_handle, CreateKernel, (ocl_handle program, const char *name, ocl_int *error))                               \
    F(ocl_int, GetKernelInfo, (ocl_handle kernel, ocl_uint name, size_t size, void *value, size_t *size_out))         \
    F(ocl_int, SetKernelArg, (ocl_handle kernel, ocl_uint index, size_t size, const void *value))                     \
    F(ocl_int, ReleaseKernel, (ocl_handle kernel))                                                                    \
    F(ocl_handle, CreateBuffer, (ocl_handle context, ocl_ulong flags, size_t size, void *host, ocl_int *error))       \
    F(ocl_handle, CreateSubBuffer,                                                                                    \
      (ocl_handle buffer, ocl_ulong flags, ocl_uint type, const void *part, ocl_int *error))                          \
    F(ocl_int, ReleaseMemObject, (ocl_handle memory))                                                                 \
    F(void *, EnqueueMapBuffer,                                                                                       \
      (ocl_handle queue, ocl_handle buffer, ocl_uint blocking, ocl_ulong flags, size_t offset, size_t size,           \
       ocl_uint n_waits, const ocl_handle *waits, ocl_handle *event, ocl_int *error))                                 \
    F(ocl_int, EnqueueUnmapMemObject,                                                                                 \
      (ocl_handle queue, ocl_handle memory, void *mapped, ocl_uint n_waits, const ocl_handle *waits,                  \
       ocl_handle *event))                                                                                            \
    F(ocl_int, Finish, (ocl_handle queue))

/* Functions that older drivers' libraries lack. */
#define NNS_OCL_OPTIONAL_FUNCTIONS(F)                                                                 \
    F(ocl_handle, CreateImage,                                                                        \
      (ocl_handle context, ocl_ulong flags, const ocl_image_format *format,                           \
       const ocl_image_desc *description, void *host, ocl_int *error))                                \
    F(void *, SVMAlloc, (ocl_handle context, ocl_ulong flags, size_t size, ocl_uint alignment))       \
    F(void, SVMFree, (ocl_handle context, void *memory))

#define NNS_OCL_POINTER(result, name, parameters) result(*name) parameters;
typedef struct {
    NNS_OCL_FUNCTIONS(NNS_OCL_POINTER)
    NNS_OCL_OPTIONAL_FUNCTIONS(NNS_OCL_POINTER)
} nns_ocl_functions;

/* Filled by nns_ocl_open_library. */
extern nns_ocl_functions nns_ocl;

/* Opens an OpenCL library and fills `nns_ocl`, here and in the engine. `path` is tried first if it is not NULL, and alone;
 * otherwise the environment variable NNSTRETCH_OPENCL_LIBRARY, also alone; otherwise the usual names, those of Android included. */
int32_t nns_ocl_open_library(const char *path, nns_report *report);

#endif
