/* The engine's table of element types, for tests/devices/engine/test_dtypes.py. */
#include "dtypes.h"

int64_t dtype_size(int64_t dtype) { return nns_dtype_size(dtype); }
const char *dtype_name(int64_t dtype) { return nns_dtype_name(dtype); }
