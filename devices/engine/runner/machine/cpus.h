/* The CPUs of the machine, as the kernel describes them. */
#ifndef NNS_CPUS_H
#define NNS_CPUS_H

#include "answer/json.h"
#include "sysfs.h"

/* Writes one object per CPU, online or not. */
void nns_cpus_write(const nns_sysfs *fs, nns_json *json);

#endif
