/* Loads a model, runs it on numbers from a file, and prints the place of the largest output.
 *
 *     cc example.c -o example -L. -lnnstretch -Wl,-rpath,'$ORIGIN'
 *     ./example MODEL.nnm [INPUT [OUTPUT]]
 *
 * INPUT and OUTPUT are raw numbers of the model's input and output, in their types; zeros are fed without.
 */
#include <stdio.h>
#include <stdlib.h>

#include "nnstretch.h"

static int fail(const char *what) {
    fprintf(stderr, "error: %s\n", what);
    return 2;
}

/* A new array of zeros for an input or output. */
static void *new_array(const nns_tensor *tensor) { return calloc((size_t)tensor->bytes, 1); }

static int transfer(const char *path, void *values, const nns_tensor *tensor, int writing) {
    const size_t bytes = (size_t)tensor->bytes;
    FILE *file = fopen(path, writing ? "wb" : "rb");
    if (!file) return 0;
    const size_t done = writing ? fwrite(values, 1, bytes, file) : fread(values, 1, bytes, file);
    return (fclose(file) == 0) & (done == bytes);
}

/* A number of an array. Other types than these are read likewise. */
static double number(const nns_tensor *tensor, const void *values, int64_t i) {
    switch (tensor->dtype) {
    case NNS_FLOAT32: return ((const float *)values)[i];
    case NNS_INT8: return ((const int8_t *)values)[i];
    case NNS_UINT8: return ((const uint8_t *)values)[i];
    case NNS_INT32: return ((const int32_t *)values)[i];
    case NNS_INT64: return (double)((const int64_t *)values)[i];
    default: exit(fail("this example reads outputs of float32, int8, uint8, int32 and int64"));
    }
}

int main(int count, char **words) {
    char error[256];
    nns_model *model = NULL;
    if (count < 2) return fail("usage: example MODEL.nnm [INPUT [OUTPUT]]");
    if (nns_model_load(words[1], NULL, &model, error, sizeof error)) return fail(error);

    const nns_tensor *x = nns_model_input(model, 0), *y = nns_model_output(model, 0);
    if (!x || !y || nns_model_input_count(model) > 1 || nns_model_output_count(model) > 1)
        return fail("this example is for models with one input and one output");
    void *input = new_array(x), *output = new_array(y);
    if (!input || !output) return fail("no memory");
    if (count > 2 && !transfer(words[2], input, x, 0)) return fail("the input cannot be read or is too short");

    const nns_input inputs[] = {{input, x->bytes}};
    const nns_output outputs[] = {{output, y->bytes}};
    if (nns_model_run(model, inputs, 1, outputs, 1, error, sizeof error)) return fail(error);

    int64_t best = 0;
    for (int64_t i = 1; i < y->count; i++)
        if (number(y, output, i) > number(y, output, best)) best = i;
    printf("%s: output %s is largest at %lld, %g\n", nns_model_name(model), y->name, (long long)best,
           number(y, output, best));
    if (count > 3 && !transfer(words[3], output, y, 1)) return fail("the output cannot be written");

    nns_model_free(model);
    free(input);
    free(output);
    return 0;
}
