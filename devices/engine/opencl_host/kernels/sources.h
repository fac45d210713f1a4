/* What is known of the sources of kernels before a driver sees them. */
#ifndef NNS_OCL_SOURCES_H
#define NNS_OCL_SOURCES_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a text is that of a kernel file that this library was built with. */
bool nns_ocl_is_trusted(const char *text);

/* The number of integers in the argument struct of a kernel, which not all drivers check; -1 if the source does not follow the
 * convention of common.cl. devices/opencl/sources.py has the same function. */
int64_t nns_ocl_kernel_integers(const char *text, const char *kernel);

#endif
