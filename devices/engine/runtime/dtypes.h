/* Element types of tensors: the mirror of nnstretch/graph/dtypes.py, which a test compares with this table. */
#ifndef NNS_DTYPES_H
#define NNS_DTYPES_H

#include <stdint.h>

/* X(enumerator, code, bytes of one element, name) */
#define NNS_DTYPES(X) \
    X(NNS_FLOAT32, 1, 4, "float32") \
    X(NNS_FLOAT16, 2, 2, "float16") \
    X(NNS_BFLOAT16, 3, 2, "bfloat16") \
    X(NNS_FLOAT64, 4, 8, "float64") \
    X(NNS_INT8, 5, 1, "int8") \
    X(NNS_UINT8, 6, 1, "uint8") \
    X(NNS_INT16, 7, 2, "int16") \
    X(NNS_UINT16, 8, 2, "uint16") \
    X(NNS_INT32, 9, 4, "int32") \
    X(NNS_UINT32, 10, 4, "uint32") \
    X(NNS_INT64, 11, 8, "int64") \
    X(NNS_UINT64, 12, 8, "uint64") \
    X(NNS_BOOL, 13, 1, "bool")

#define NNS_DTYPE_ENUMERATOR(enumerator, code, bytes, name) enumerator = code,
typedef enum { NNS_DTYPES(NNS_DTYPE_ENUMERATOR) } nns_dtype;
#undef NNS_DTYPE_ENUMERATOR

/* Bytes of one element; 0 for a code that no type has. */
static inline int64_t nns_dtype_size(int64_t dtype) {
    switch (dtype) {
#define NNS_DTYPE_SIZE(enumerator, code, bytes, name) \
    case enumerator: return bytes;
        NNS_DTYPES(NNS_DTYPE_SIZE)
#undef NNS_DTYPE_SIZE
    default: return 0;
    }
}

/* Name of a type; NULL for a code that no type has. */
static inline const char *nns_dtype_name(int64_t dtype) {
    switch (dtype) {
#define NNS_DTYPE_NAME(enumerator, code, bytes, name) \
    case enumerator: return name;
        NNS_DTYPES(NNS_DTYPE_NAME)
#undef NNS_DTYPE_NAME
    default: return (const char *)0;
    }
}

#endif
