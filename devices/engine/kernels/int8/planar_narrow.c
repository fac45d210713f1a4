/* The kernels of planar_int8.c for weights within ±64. */
#include "int8/narrow.h"

#if defined(__AVX2__)
#include "int8/planar_int8.c"
#endif
