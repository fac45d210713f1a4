/* The types of elements, by their numbers. */
#include <stddef.h>

#include "nnstretch.h"

typedef struct {
    const char *name;
    int64_t bytes;
} dtype;

static const dtype dtypes[] = {
    [NNS_FLOAT32] = {"float32", 4}, [NNS_FLOAT16] = {"float16", 2}, [NNS_BFLOAT16] = {"bfloat16", 2},
    [NNS_FLOAT64] = {"float64", 8}, [NNS_INT8] = {"int8", 1},       [NNS_UINT8] = {"uint8", 1},
    [NNS_INT16] = {"int16", 2},     [NNS_UINT16] = {"uint16", 2},   [NNS_INT32] = {"int32", 4},
    [NNS_UINT32] = {"uint32", 4},   [NNS_INT64] = {"int64", 8},     [NNS_UINT64] = {"uint64", 8},
    [NNS_BOOL] = {"bool", 1},
};

/* The row of a type; that of no type for other numbers. */
static const dtype *row(int32_t number) {
    const int32_t count = sizeof dtypes / sizeof *dtypes;
    return &dtypes[number > 0 && number < count ? number : 0];
}

const char *nns_dtype_name(int32_t number) { return row(number)->name; }

int64_t nns_dtype_bytes(int32_t number) { return row(number)->bytes; }
