/* Runs a model that `nnstretch compile --standalone` made. C99 and C++.
 *
 *     char error[256];
 *     nns_model *model;
 *     if (nns_model_load("resnet50.nnm", NULL, &model, error, sizeof error)) …
 *     const nns_input x[] = {{image, sizeof image}};
 *     const nns_output y[] = {{classes, sizeof classes}};
 *     if (nns_model_run(model, x, 1, y, 1, error, sizeof error)) …
 *     nns_model_free(model);
 *
 * Functions that can fail return 0 on success. Otherwise `error`, which may be NULL, receives one line that
 * says what was found, what was expected and what to do.
 */
#ifndef NNSTRETCH_H
#define NNSTRETCH_H

#include <stddef.h>
#include <stdint.h>

#include "nns_arrays.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_API __attribute__((visibility("default")))

/* A loaded model. Its weights are mapped from the file, which must not change until the model is freed. The child of a
 * fork may free a model of its parent, and loads its own to run it. */
typedef struct nns_model nns_model;

/* How a model with OpenCL queues finds its devices. The first model of a process that has such queues decides on the
 * library, and on the threads of a driver that runs kernels on CPU cores. */
typedef struct {
    const char *library; /* the OpenCL library; NULL: that of the environment variable NNSTRETCH_OPENCL_LIBRARY, else the
                          * usual names, such as libOpenCL.so.1 and those of Android */
    const char *cache;   /* a folder in which built kernels are kept; NULL: they are built at each load */
    const char *device;  /* a device's number, or a part of its name or platform; NULL: the one that the model was compiled
                          * for, by number, then by name */
    int32_t trusted_sources; /* 1: refuse sources of kernels that this library was not built with; also if the
                              * environment variable NNSTRETCH_TRUSTED_SOURCES is 1. They are programs: they run with the
                              * rights of this process, and their memory accesses are not checked. */
    int32_t profiling;       /* 1: traced runs have the times at which a device ran its steps, which slows it down;
                              * 0: the times at which they were launched */
} nns_opencl_options;

/* How a model with LiteRT queues finds LiteRT. */
typedef struct {
    const char *library;     /* the LiteRT library, version 2.1.6 or later; NULL: that of the environment variable NNSTRETCH_LITERT,
                              * else libLiteRt.so. Accelerators' libraries are looked for beside it, too, if it has a folder. */
    const char *accelerator; /* of all queues; NULL: as compiled. "cpu", "builtin" (the CPU without XNNPACK), "gpu" or "npu", which
                              * have to take all layers, or "gpu+cpu" or "npu+cpu", where the CPU computes the others. */
} nns_litert_options;

/* The cores and devices of a model. Zeros or NULL pointers select the cores that it was compiled for; if this process may
 * not use all of them, other cores. */
typedef struct {
    int32_t threads;      /* 0: one per core of `cores`, or as compiled; at most one per core */
    const int32_t *cores; /* numbers of the cores to use; NULL: the cores that this process may use */
    int32_t n_cores;
    const nns_opencl_options *opencl; /* of a model with OpenCL queues; or NULL */
    const nns_litert_options *litert; /* of a model with LiteRT queues; or NULL */
} nns_model_options;

/* Types of elements. Model files have these numbers, too. */
typedef enum {
    NNS_FLOAT32 = 1,
    NNS_FLOAT16 = 2,  /* its bits, as uint16_t */
    NNS_BFLOAT16 = 3, /* its bits, as uint16_t: the upper half of a float32 */
    NNS_FLOAT64 = 4,
    NNS_INT8 = 5,
    NNS_UINT8 = 6,
    NNS_INT16 = 7,
    NNS_UINT16 = 8,
    NNS_INT32 = 9,
    NNS_UINT32 = 10,
    NNS_INT64 = 11,
    NNS_UINT64 = 12,
    NNS_BOOL = 13, /* a byte, 0 or 1 */
} nns_dtype;

/* An input or output: numbers in row-major order (images: NCHW), aligned as their type. The model owns strings and shapes.
 * Programs that were compiled with an older header, whose structure ends with `count`, read what they know. */
typedef struct {
    const char *name;
    int32_t rank;
    const int64_t *shape; /* `rank` extents */
    int64_t count;        /* product of the extents */
    int32_t dtype;        /* of the elements: an nns_dtype */
    int64_t bytes;        /* of the whole array */
} nns_tensor;

/* A queue: a group of CPU cores with a thread each, an OpenCL device, or LiteRT with an accelerator. The model owns strings and
 * lists. */
typedef struct {
    const char *kind;     /* "cpu", "opencl" or "litert" */
    const int32_t *cores; /* in use; those that the model was compiled for, unless options or affinity say otherwise */
    int32_t n_cores;
    const char *device; /* name of the OpenCL device, or LiteRT's accelerator, such as "gpu"; NULL for "cpu" */
} nns_queue_info;

/* A step: one call of a kernel, or of LiteRT. */
typedef struct {
    const char *kernel; /* its name; of a call the names of its layers */
    int32_t queue;      /* index of the queue */
} nns_step_info;

/* Begin and end in nanoseconds of CLOCK_MONOTONIC. */
typedef struct {
    int64_t begin, end;
} nns_span;

/* Loads a model and starts its threads. Fails if this CPU lacks a feature that the library's instruction set
 * includes. A model with OpenCL queues needs an OpenCL library with a device; a program that is linked statically cannot open one.
 * A model with LiteRT queues needs a LiteRT library in the same way.
 * Load the model after a fork, not before it. The symbol has a name of its own: `nns_model_load` and `nns_model_load_on` serve
 * programs that were compiled with older headers, whose options end with `n_cores` and with `opencl`. */
NNS_API int nns_model_load(const char *path, const nns_model_options *options, nns_model **model, char *error,
                           size_t error_size) __asm__("nns_model_load_with");
NNS_API void nns_model_free(nns_model *model); /* NULL is fine */

NNS_API const char *nns_model_name(const nns_model *model);
/* The CPU features beyond the instruction set that the model's kernels use on this CPU, separated by commas,
 * for example "fma"; "" if there are none. The library holds several variants of some kernels and chooses the
 * best that the CPU can run. */
NNS_API const char *nns_model_features(const nns_model *model);
NNS_API int32_t nns_model_threads(const nns_model *model);
NNS_API int32_t nns_model_input_count(const nns_model *model);
NNS_API int32_t nns_model_output_count(const nns_model *model);
NNS_API int32_t nns_model_queue_count(const nns_model *model);
NNS_API int32_t nns_model_step_count(const nns_model *model);
/* Bytes of memory that the model takes: weights, which are mapped from the file, and activations. */
NNS_API int64_t nns_model_weight_bytes(const nns_model *model);
NNS_API int64_t nns_model_activation_bytes(const nns_model *model);
/* NULL if the index is out of range. */
NNS_API const nns_tensor *nns_model_input(const nns_model *model, int32_t index);
NNS_API const nns_tensor *nns_model_output(const nns_model *model, int32_t index);
NNS_API const nns_queue_info *nns_model_queue(const nns_model *model, int32_t index);
NNS_API const nns_step_info *nns_model_step(const nns_model *model, int32_t index);

/* Runs the model once. Fails if the numbers of inputs and outputs are not the model's, or if one of them has not exactly
 * the `bytes` of its nns_tensor. Concurrent calls for one model take turns. The calling thread
 * computes, too, on the model's first core. The symbol has a name of its own: programs that were compiled with an older header, whose
 * function took no sizes, do not find it and end when they start. Compile them again. */
NNS_API int nns_model_run(nns_model *model, const nns_input *inputs, int32_t n_inputs, const nns_output *outputs,
                          int32_t n_outputs, char *error, size_t error_size) __asm__("nns_model_run_sized");

/* Runs the model once as nns_model_run does, and writes when it ran: `whole` receives begin and end of the run, `steps` those of
 * each of its nns_model_step_count steps. A traced run takes somewhat longer. */
NNS_API int nns_model_run_traced(nns_model *model, const nns_input *inputs, int32_t n_inputs, const nns_output *outputs,
                                 int32_t n_outputs, nns_span *whole, nns_span *steps, char *error, size_t error_size);

/* Gives the memory of activations back to the system until the next run, which takes longer. No run may be in progress. */
NNS_API void nns_model_trim(nns_model *model);

/* An OpenCL device of this machine. */
typedef struct {
    char platform[128], name[128], version[128], driver[128];
    int32_t on_cpu; /* whether it runs kernels on CPU cores */
} nns_opencl_device;

/* Lists the first `most` OpenCL devices and writes the number of all to `count`. `options` may be NULL. Loads all drivers. */
NNS_API int nns_opencl_devices(const nns_opencl_options *options, nns_opencl_device *devices, int32_t most,
                               int32_t *count, char *error, size_t error_size);

/* The name of an nns_dtype, for example "float32", and the bytes of one element; NULL and 0 for other numbers. */
NNS_API const char *nns_dtype_name(int32_t dtype);
NNS_API int64_t nns_dtype_bytes(int32_t dtype);

/* The instruction set that this library is built for, for example "aarch64". */
NNS_API const char *nns_library_isa(void);

#ifdef __cplusplus
}
#endif
#endif
