/* The inputs and outputs of models. */
#ifndef NNS_TENSORS_H
#define NNS_TENSORS_H

#include "answer/json.h"
#include "nnstretch.h"
#include "options.h"

/* Arrays by their place, type and size. All models whose input (or output) of one number has one type and size share its array,
 * since models run one after the other. */
typedef struct {
    struct nns_shared_array *first;
} nns_shared_arrays;

/* The input number `index` of a model: seeded numbers, or those of a file. Returns NULL and fills `error` on failure. */
const void *nns_shared_input(nns_shared_arrays *arrays, const nns_options *options, const nns_tensor *tensor,
                             int32_t index, char *error, size_t error_size);

/* Memory for the output number `index` of a model; NULL and `error` on failure. */
void *nns_shared_output(nns_shared_arrays *arrays, const nns_tensor *tensor, int32_t index, char *error,
                        size_t error_size);

void nns_shared_arrays_free(nns_shared_arrays *arrays);

/* CRC-32 of zlib over an array. */
uint32_t nns_array_crc32(const void *array, int64_t bytes);

/* Writes one object: name, type, shape and a summary of the numbers. */
void nns_tensor_write(nns_json *json, const nns_tensor *tensor, const void *array);

/* Writes an output to FOLDER/MODEL-OUTPUT.bin. Returns false and fills `error` on failure. */
bool nns_save_output(const char *folder, int32_t model, int32_t output, const nns_output *array, char *error,
                     size_t error_size);

#endif
