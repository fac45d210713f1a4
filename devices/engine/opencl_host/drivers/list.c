/* The list of OpenCL devices for programs: nns_opencl_devices of nnstretch.h. */
#include <string.h>

#include "drivers.h"
#include "nnstretch.h"

int nns_opencl_devices(const nns_opencl_options *options, nns_opencl_device *devices, int32_t most, int32_t *count,
                       char *error, size_t error_size) {
    nns_report report = {0};
    const nns_ocl_setup setup = {.library = options ? options->library : NULL, .cache = options ? options->cache : NULL};
    *count = 0;
    if (nns_ocl_load_drivers(&setup, &report) == NNS_OK) *count = nns_ocl_device_count();
    for (int32_t i = 0; i < *count && i < most; i++) {
        const nns_ocl_device *from = nns_ocl_device_at(i);
        nns_opencl_device *to = &devices[i];
        memcpy(to->platform, from->platform, sizeof to->platform);
        memcpy(to->name, from->name, sizeof to->name);
        memcpy(to->version, from->version, sizeof to->version);
        memcpy(to->driver, from->driver, sizeof to->driver);
        to->on_cpu = from->on_cpu;
    }
    return nns_answer(&report, error, (int64_t)error_size);
}
