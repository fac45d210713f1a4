/* The memory of this process and of the machine. */
#ifndef NNS_MEMORY_H
#define NNS_MEMORY_H

#include <stdbool.h>

#include "sysfs.h"

/* Bytes in memory now, and the most since the process began or since the last reset; NNS_UNKNOWN if the kernel does not say. */
int64_t nns_resident_bytes(void);
int64_t nns_peak_resident_bytes(void);

/* Makes the present number of bytes the peak. Returns false where this is not allowed. */
bool nns_reset_peak(void);

/* Bytes of the machine that programs can take without swapping; NNS_UNKNOWN if the kernel does not say. */
int64_t nns_available_bytes(const nns_sysfs *fs);
int64_t nns_memory_bytes(const nns_sysfs *fs);

#endif
