#include "tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "elements.h"
#include "numbers.h"

/* ---- shared arrays ---------------------------------------------------------------------------------------- */

typedef struct nns_shared_array {
    struct nns_shared_array *next;
    bool is_output;
    int32_t index, dtype;
    int64_t bytes;
    const char *file; /* of an input; NULL: seeded numbers */
    void *numbers;
} nns_shared_array;

static bool is_same(const nns_shared_array *array, const nns_shared_array *key) {
    return array->is_output == key->is_output && array->index == key->index && array->dtype == key->dtype &&
           array->bytes == key->bytes && array->file == key->file;
}

static void *find(const nns_shared_arrays *arrays, const nns_shared_array *key) {
    for (const nns_shared_array *array = arrays->first; array; array = array->next)
        if (is_same(array, key)) return array->numbers;
    return NULL;
}

/* Adds an array, whose memory is not initialised. */
static void *add(nns_shared_arrays *arrays, const nns_shared_array *key, char *error, size_t error_size) {
    nns_shared_array *made = malloc(sizeof *made);
    void *numbers = malloc((size_t)key->bytes + 1);
    if (!made || !numbers) {
        snprintf(error, error_size, "no memory for %lld bytes of numbers", (long long)key->bytes);
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

static bool read_file(const char *path, const nns_tensor *tensor, void *numbers, char *error, size_t error_size) {
    FILE *file = fopen(path, "rbe");
    if (!file) {
        snprintf(error, error_size, "cannot open %s: %s", path, strerror(errno));
        return false;
    }
    const size_t got = fread(numbers, 1, (size_t)tensor->bytes, file);
    const bool is_whole = got == (size_t)tensor->bytes && fgetc(file) == EOF && !ferror(file);
    if (!is_whole)
        snprintf(error, error_size, "%s does not hold exactly the %lld %s numbers of input %s", path,
                 (long long)tensor->count, nns_dtype_name(tensor->dtype), tensor->name);
    fclose(file);
    return is_whole;
}

const void *nns_shared_input(nns_shared_arrays *arrays, const nns_options *options, const nns_tensor *tensor,
                             int32_t index, char *error, size_t error_size) {
    nns_shared_array key = {.index = index, .dtype = tensor->dtype, .bytes = tensor->bytes};
    for (int32_t i = 0; i < options->n_inputs; i++)
        if (!strcmp(options->inputs[i].name, tensor->name)) key.file = options->inputs[i].file;
    void *numbers = find(arrays, &key);
    if (numbers || !(numbers = add(arrays, &key, error, error_size))) return numbers;
    if (!key.file) {
        nns_fill_random(tensor, numbers, options->seed, (uint64_t)index);
    } else if (!read_file(key.file, tensor, numbers, error, error_size)) {
        drop_first(arrays);
        return NULL;
    }
    return numbers;
}

void *nns_shared_output(nns_shared_arrays *arrays, const nns_tensor *tensor, int32_t index, char *error,
                        size_t error_size) {
    const nns_shared_array key = {.is_output = true, .index = index, .dtype = tensor->dtype, .bytes = tensor->bytes};
    void *numbers = find(arrays, &key);
    return numbers ? numbers : add(arrays, &key, error, error_size);
}

/* ---- summaries and files ---------------------------------------------------------------------------------- */

uint32_t nns_array_crc32(const void *array, int64_t bytes) {
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? UINT32_C(0xedb88320) : 0);
    }
    const unsigned char *at = array;
    for (int64_t i = 0; i < bytes; i++) crc = crc >> 8 ^ table[(crc ^ at[i]) & 0xff];
    return ~crc;
}

/* Writes one of the numbers of a tensor. */
static void write_number(nns_json *json, const char *key, const nns_tensor *tensor, double value) {
    if (nns_is_floating(tensor))
        nns_json_real(json, key, value);
    else
        nns_json_whole(json, key, value);
}

void nns_tensor_write(nns_json *json, const nns_tensor *tensor, const void *array) {
    bool is_finite = true;
    double min = INFINITY, max = -INFINITY;
    for (int64_t i = 0; i < tensor->count; i++) {
        const double value = nns_element(tensor, array, i);
        is_finite &= isfinite(value) != 0;
        min = value < min ? value : min;
        max = value > max ? value : max;
    }
    nns_json_object(json, NULL);
    nns_json_text(json, "name", tensor->name);
    nns_json_text(json, "type", nns_dtype_name(tensor->dtype));
    nns_json_array(json, "shape");
    for (int32_t i = 0; i < tensor->rank; i++) nns_json_integer(json, NULL, tensor->shape[i]);
    nns_json_end_array(json);
    nns_json_integer(json, "crc32", nns_array_crc32(array, tensor->bytes));
    write_number(json, "min", tensor, is_finite ? min : NAN);
    write_number(json, "max", tensor, is_finite ? max : NAN);
    nns_json_bool(json, "finite", is_finite);
    nns_json_end_object(json);
}

bool nns_save_output(const char *folder, int32_t model, int32_t output, const nns_output *array, char *error,
                     size_t error_size) {
    enum { PATH = 4096 };
    char path[PATH];
    if (snprintf(path, sizeof path, "%s/%d-%d.bin", folder, (int)model, (int)output) >= PATH) {
        snprintf(error, error_size, "the name of the folder for outputs is too long");
        return false;
    }
    FILE *file = fopen(path, "wbe");
    const size_t bytes = (size_t)array->bytes;
    const bool is_written = file && fwrite(array->data, 1, bytes, file) == bytes;
    const int why = errno;
    const bool is_closed = !file || !fclose(file);
    if (is_written && is_closed) return true;
    snprintf(error, error_size, "cannot write %s: %s", path, strerror(is_written ? errno : why));
    return false;
}
