/* Runs a model that `nnstretch compile --standalone` made. C99 and C++.
 *
 *     char error[256];
 *     nns_model *model;
 *     if (nns_model_load("resnet50.nnm", NULL, &model, error, sizeof error)) …
 *     if (nns_model_run(model, inputs, outputs, error, sizeof error)) …
 *     nns_model_free(model);
 *
 * Functions that can fail return 0 on success. Otherwise `error`, which may be NULL, receives one line that
 * says what was found, what was expected and what to do.
 */
#ifndef NNSTRETCH_H
#define NNSTRETCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_API __attribute__((visibility("default")))

/* A loaded model. Its weights are mapped from the file, which must not change until the model is freed. */
typedef struct nns_model nns_model;

/* The cores of a model. Zeros or a NULL pointer select the cores that it was compiled for; if this process may
 * not use all of them, other cores. */
typedef struct {
    int32_t threads;      /* 0: one per core of `cores`, or as compiled; at most one per core */
    const int32_t *cores; /* numbers of the cores to use; NULL: the cores that this process may use */
    int32_t n_cores;
} nns_model_options;

/* An input or output: float32 numbers in row-major order (images: NCHW). The model owns strings and shapes. */
typedef struct {
    const char *name;
    int32_t rank;
    const int64_t *shape; /* `rank` extents */
    int64_t count;        /* product of the extents */
} nns_tensor;

/* Loads a model and starts its threads. Fails if this CPU lacks a feature that the library's instruction set
 * includes. */
NNS_API int nns_model_load(const char *path, const nns_model_options *options, nns_model **model, char *error,
                           size_t error_size);
NNS_API void nns_model_free(nns_model *model); /* NULL is fine */

NNS_API const char *nns_model_name(const nns_model *model);
/* The CPU features beyond the instruction set that the model's kernels use on this CPU, separated by commas,
 * for example "fma"; "" if there are none. The library holds several variants of some kernels and chooses the
 * best that the CPU can run. */
NNS_API const char *nns_model_features(const nns_model *model);
NNS_API int32_t nns_model_threads(const nns_model *model);
NNS_API int32_t nns_model_input_count(const nns_model *model);
NNS_API int32_t nns_model_output_count(const nns_model *model);
/* NULL if the index is out of range. */
NNS_API const nns_tensor *nns_model_input(const nns_model *model, int32_t index);
NNS_API const nns_tensor *nns_model_output(const nns_model *model, int32_t index);

/* Runs the model once. `inputs` and `outputs` hold one array per input and output, each of at least `count` numbers.
 * Concurrent calls for one model take turns. The calling thread computes, too, on the model's first core. */
NNS_API int nns_model_run(nns_model *model, const float *const *inputs, float *const *outputs, char *error,
                          size_t error_size);

/* The instruction set that this library is built for, for example "aarch64". */
NNS_API const char *nns_library_isa(void);

#ifdef __cplusplus
}
#endif
#endif
