/* Settings under which a file compiles a family of int8 again for weights within ±64, for x86-64 with AVX2.
 *
 * The kernels compute the same from the same operands, and take weights beyond ±64 for others. Variants whose instructions add
 * up four products of any weights have these names, too: they are as fast for all weights. */
#ifndef NNS_INT8_NARROW_H
#define NNS_INT8_NARROW_H

#define NNS_VARIANT _narrow
#define NNS_REQUIRES 0
#define INT8_NARROW 1

#include "compute.h"

#endif
