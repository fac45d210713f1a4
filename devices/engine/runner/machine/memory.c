#include "memory.h"

#include <stdio.h>

#include "answer/json.h"

static int64_t kilobytes(const nns_sysfs *fs, const char *path, const char *key) {
    const int64_t found = nns_sysfs_keyed_number(fs, path, key);
    return found == NNS_UNKNOWN ? NNS_UNKNOWN : found * 1024;
}

static const nns_sysfs own = {""};

int64_t nns_resident_bytes(void) { return kilobytes(&own, "/proc/self/status", "VmRSS:"); }

int64_t nns_peak_resident_bytes(void) { return kilobytes(&own, "/proc/self/status", "VmHWM:"); }

bool nns_reset_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (!file) return false;
    const bool is_written = fputs("5", file) >= 0;
    return !fclose(file) && is_written;
}

int64_t nns_available_bytes(const nns_sysfs *fs) { return kilobytes(fs, "/proc/meminfo", "MemAvailable:"); }

int64_t nns_memory_bytes(const nns_sysfs *fs) { return kilobytes(fs, "/proc/meminfo", "MemTotal:"); }
