/* The kernels that this CPU can run, by number. */
#ifndef NNS_REGISTRY_H
#define NNS_REGISTRY_H

#include "kernel.h"

/* The kernel with that number, or NULL if there is none. */
const nns_kernel *nns_kernel_at(int64_t id);

#endif
