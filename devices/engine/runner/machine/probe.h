/* The description of the machine. */
#ifndef NNS_PROBE_H
#define NNS_PROBE_H

#include "answer/json.h"
#include "opencl_list.h"
#include "sysfs.h"

/* The C library that this program is made for, "musl", "glibc" or "bionic", and the system, "linux-musl", "linux-gnu" or
 * "android". */
extern const char *const nns_libc, *const nns_system;

/* Writes one object. */
void nns_probe_write(const nns_sysfs *fs, const nns_opencl_list *opencl, nns_json *json, const char *key);

#endif
