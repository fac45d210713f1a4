/* OpenCL drivers of this process: their devices, and the threads of a driver that runs kernels on CPU cores. They are loaded once.
 *
 * PoCL creates its threads when it is loaded; POCL_MAX_PTHREAD_COUNT is their number, here one per core of the first model's
 * OpenCL queues. A kernel wakes all of them, and no command can be restricted to some. So the threads that appear while drivers
 * load are recorded and bound to the cores of the model that runs next. If another part of the program has loaded PoCL before,
 * its threads are unknown and stay where they are. */
#ifndef NNS_OCL_DRIVERS_H
#define NNS_OCL_DRIVERS_H

#include "api.h"

enum { NNS_OCL_NAME = 128, NNS_OCL_MOST_DEVICES = 64 };

/* A device. */
typedef struct {
    ocl_handle id;
    int32_t index; /* among the devices of all drivers */
    char platform[NNS_OCL_NAME], vendor[NNS_OCL_NAME], name[NNS_OCL_NAME], driver[NNS_OCL_NAME], version[NNS_OCL_NAME];
    int32_t compute_units;
    bool on_cpu;       /* runs kernels on CPU cores */
    bool unified;      /* shares memory with the host */
    bool fine_grained; /* has fine-grained shared virtual memory */
    bool atomics;      /* running kernels see writes of the host to that memory */
    bool scalar;       /* computes work items side by side and splits vectors into their elements, as GPUs do */
    bool dot_products; /* its compiler takes OpenCL C 3.0 and has dot products of packed int8 */
    int64_t local_memory; /* bytes for a work group; 0 if it is global memory, which is no faster */
    int64_t group_items;  /* work items of a work group, at most */
    int64_t wave;         /* work items that run in lockstep; 0 if the driver does not say */
    bool half_arithmetic; /* computes with float16 */
    bool int8_dot, int8_dot_accelerated; /* has dot products of int8, and instructions for them */
    int64_t image_width, image_height, image_buffer; /* most pixels of images; 0 without images */
    int64_t part_alignment;                          /* parts of buffers begin at multiples of it, in bytes */
    int64_t allocation_bytes;                        /* of one allocation, at most */
    int32_t address_bits;
} nns_ocl_device;

/* Cores for drivers on the CPU. */
typedef struct {
    const int32_t *numbers;
    int32_t count;
} nns_ocl_cores;

/* What the first call of a process decides. */
typedef struct {
    const char *library; /* or NULL: nns_ocl_open_library */
    const char *cache;   /* folder in which PoCL keeps built kernels, as "pocl" inside it; or NULL: PoCL's own folder */
    nns_ocl_cores cores; /* none: all that the process may use */
} nns_ocl_setup;

/* Loads all drivers, unless that is done. Refuses the child of a fork if its parent has loaded them. */
int32_t nns_ocl_load_drivers(const nns_ocl_setup *setup, nns_report *report);

/* Of loaded drivers, in the order in which `opencl:INDEX` counts. */
int32_t nns_ocl_device_count(void);
const nns_ocl_device *nns_ocl_device_at(int32_t index);
bool nns_ocl_is_pocl(const nns_ocl_device *device);

/* Number of the threads that are known to run kernels on CPU cores. */
int32_t nns_ocl_worker_count(void);
/* Binds these threads to `cores`, one core per thread if there are enough of both. Cheap if nothing changes. */
void nns_ocl_pin_workers(nns_ocl_cores cores);

/* Whether this process is the child of a fork whose parent has loaded drivers: no OpenCL function may be called. */
bool nns_ocl_is_lost(void);

/* Reports an OpenCL error of a device: "OpenCL device INDEX (NAME) WHAT: code, meaning; what to do". */
int32_t nns_ocl_fail(const nns_ocl_device *device, ocl_int code, nns_report *report, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
