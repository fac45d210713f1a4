#include "tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

/* ---- shared arrays ---------------------------------------------------------------------------------------- */

typedef struct nns_shared_array {
    struct nns_shared_array *next;
    bool is_output;
    int32_t index;
    int64_t count;
    const char *file; /* of an input; NULL: seeded numbers */
    float *numbers;
} nns_shared_array;

static bool is_same(const nns_shared_array *array, const nns_shared_array *key) {
    return array->is_output == key->is_output && array->index == key->index && array->count == key->count &&
           array->file == key->file;
}

static float *find(const nns_shared_arrays *arrays, const nns_shared_array *key) {
    for (const nns_shared_array *array = arrays->first; array; array = array->next)
        if (is_same(array, key)) return array->numbers;
    return NULL;
}

/* Adds an array, whose memory is not initialised. */
static float *add(nns_shared_arrays *arrays, const nns_shared_array *key, char *error, size_t error_size) {
    nns_shared_array *made = malloc(sizeof *made);
    float *numbers = malloc((size_t)key->count * sizeof *numbers + 1);
    if (!made || !numbers) {
        snprintf(error, error_size, "no memory for %lld numbers", (long long)key->count);
        free(made);
        free(numbers);
        return NULL;
    }
    *made = *key;
    made->numbers = numbers;
    made->next = arrays->first;
    arrays->first = made;
    return numbers;
}

static void drop_first(nns_shared_arrays *arrays) {
    nns_shared_array *array = arrays->first;
    arrays->first = array->next;
    free(array->numbers);
    free(array);
}

void nns_shared_arrays_free(nns_shared_arrays *arrays) {
    while (arrays->first) drop_first(arrays);
}

static bool read_file(const char *path, const nns_tensor *tensor, float *numbers, char *error, size_t error_size) {
    FILE *file = fopen(path, "rbe");
    if (!file) {
        snprintf(error, error_size, "cannot open %s: %s", path, strerror(errno));
        return false;
    }
    const size_t got = fread(numbers, sizeof *numbers, (size_t)tensor->count, file);
    const bool is_whole = got == (size_t)tensor->count && fgetc(file) == EOF && !ferror(file);
    if (!is_whole)
        snprintf(error, error_size, "%s does not hold exactly the %lld float32 numbers of input %s", path,
                 (long long)tensor->count, tensor->name);
    fclose(file);
    return is_whole;
}

const float *nns_shared_input(nns_shared_arrays *arrays, const nns_options *options, const nns_tensor *tensor,
                              int32_t index, char *error, size_t error_size) {
    nns_shared_array key = {.index = index, .count = tensor->count};
    for (int32_t i = 0; i < options->n_inputs; i++)
        if (!strcmp(options->inputs[i].name, tensor->name)) key.file = options->inputs[i].file;
    float *numbers = find(arrays, &key);
    if (numbers || !(numbers = add(arrays, &key, error, error_size))) return numbers;
    if (!key.file) {
        nns_fill_normal(numbers, tensor->count, options->seed, (uint64_t)index);
    } else if (!read_file(key.file, tensor, numbers, error, error_size)) {
        drop_first(arrays);
        return NULL;
    }
    return numbers;
}

float *nns_shared_output(nns_shared_arrays *arrays, const nns_tensor *tensor, int32_t index, char *error,
                         size_t error_size) {
    const nns_shared_array key = {.is_output = true, .index = index, .count = tensor->count};
    float *numbers = find(arrays, &key);
    return numbers ? numbers : add(arrays, &key, error, error_size);
}

/* ---- summaries and files ---------------------------------------------------------------------------------- */

uint32_t nns_array_crc32(const float *array, int64_t count) {
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? UINT32_C(0xedb88320) : 0);
    }
    const unsigned char *bytes = (const unsigned char *)array;
    for (int64_t i = 0; i < count * (int64_t)sizeof *array; i++) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    return ~crc;
}

void nns_tensor_write(nns_json *json, const nns_tensor *tensor, const float *array) {
    bool is_finite = true;
    float min = INFINITY, max = -INFINITY;
    for (int64_t i = 0; i < tensor->count; i++) {
        is_finite &= isfinite(array[i]) != 0;
        min = array[i] < min ? array[i] : min;
        max = array[i] > max ? array[i] : max;
    }
    nns_json_object(json, NULL);
    nns_json_text(json, "name", tensor->name);
    nns_json_array(json, "shape");
    for (int32_t i = 0; i < tensor->rank; i++) nns_json_integer(json, NULL, tensor->shape[i]);
    nns_json_end_array(json);
    nns_json_integer(json, "crc32", nns_array_crc32(array, tensor->count));
    nns_json_real(json, "min", is_finite ? (double)min : NAN);
    nns_json_real(json, "max", is_finite ? (double)max : NAN);
    nns_json_bool(json, "finite", is_finite);
    nns_json_end_object(json);
}

bool nns_save_output(const char *folder, int32_t model, int32_t output, const float *array, int64_t count, char *error,
                     size_t error_size) {
    enum { PATH = 4096 };
    char path[PATH];
    if (snprintf(path, sizeof path, "%s/%d-%d.bin", folder, (int)model, (int)output) >= PATH) {
        snprintf(error, error_size, "the name of the folder for outputs is too long");
        return false;
    }
    FILE *file = fopen(path, "wbe");
    const bool is_written = file && fwrite(array, sizeof *array, (size_t)count, file) == (size_t)count;
    const int why = errno;
    const bool is_closed = !file || !fclose(file);
    if (is_written && is_closed) return true;
    snprintf(error, error_size, "cannot write %s: %s", path, strerror(is_written ? errno : why));
    return false;
}
