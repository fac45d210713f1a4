/* Runs a model that `nnstretch compile --standalone` made. C99 and C++.
 *
 *     char error[256];
 *     nns_model *model;
 *     if (nns_model_load("resnet50.nnm", NULL, &model, error, sizeof error)) …
 *     if (nns_model_run(model, inputs, outputs, error, sizeof error)) …
 *     nns_model_free(model);
 *
 * Functions that can fail return 0, or another number and one line in `error` that says what was found, what was wanted
 * and what to do. `error` may be NULL.
 */
#ifndef NNSTRETCH_H
#define NNSTRETCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_API __attribute__((visibility("default")))

/* A loaded model: its weights are mapped from the file, which must stay as it is until the model is freed. */
typedef struct nns_model nns_model;

/* Where a model runs. All zeros, or no options at all: on the cores that it was compiled for, or on others if this
 * process may not use these, as many as there are. */
typedef struct {
    int32_t threads;      /* 0: as many as `cores`, or as the model was compiled for; never more than there are cores */
    const int32_t *cores; /* numbers of the cores to use; NULL: those that this process may run on */
    int32_t n_cores;
} nns_model_options;

/* An input or output: float32 numbers in row-major order (images as NCHW). Strings and shapes belong to the model. */
typedef struct {
    const char *name;
    int32_t rank;
    const int64_t *shape; /* `rank` extents */
    int64_t count;        /* numbers in all */
} nns_tensor;

/* Maps a model and starts its threads. */
NNS_API int nns_model_load(const char *path, const nns_model_options *options, nns_model **model, char *error,
                           size_t error_size);
NNS_API void nns_model_free(nns_model *model); /* NULL is fine */

NNS_API const char *nns_model_name(const nns_model *model);
/* The CPU features beyond the instruction set that the model's kernels use here, such as "fma"; "" if there are none. One file
 * holds several variants of a kernel, and each machine takes the best that it can run. */
NNS_API const char *nns_model_features(const nns_model *model);
NNS_API int32_t nns_model_threads(const nns_model *model);
NNS_API int32_t nns_model_input_count(const nns_model *model);
NNS_API int32_t nns_model_output_count(const nns_model *model);
/* NULL if there is none of that number. */
NNS_API const nns_tensor *nns_model_input(const nns_model *model, int32_t index);
NNS_API const nns_tensor *nns_model_output(const nns_model *model, int32_t index);

/* Runs once: `inputs` and `outputs` hold one array per input and output, each of at least `count` numbers. Calls from
 * several threads take turns. The calling thread computes too, on the first of the model's cores. */
NNS_API int nns_model_run(nns_model *model, const float *const *inputs, float *const *outputs, char *error,
                          size_t error_size);

/* The instruction set that this library is built for, for example "aarch64". */
NNS_API const char *nns_library_isa(void);

#ifdef __cplusplus
}
#endif
#endif
