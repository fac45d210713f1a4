#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

/* Names of all devices, for errors. */
static int32_t fail_choice(nns_report *report, const char *what) {
    char names[NNS_TEXT / 2] = "";
    size_t used = 0;
    for (int32_t i = 0; i < nns_ocl_device_count() && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%d = %.40s", i ? ", " : "", (int)i,
                                 nns_ocl_device_at(i)->name);
    return nns_fail(report, NNS_EOPENCL, "there is no OpenCL device %.40s; this machine has %s", what, names);
}

static int32_t choose_wanted(const char *wanted, const nns_ocl_device **device, nns_report *report) {
    const int32_t count = nns_ocl_device_count();
    char *end = NULL;
    const long number = strtol(wanted, &end, 10);
    if (isdigit((unsigned char)*wanted) && !*end) {
        if (number >= count) return fail_choice(report, wanted);
        *device = nns_ocl_device_at((int32_t)number);
        return NNS_OK;
    }
    for (int32_t i = 0; i < count; i++) {
        *device = nns_ocl_device_at(i);
        if (strstr((*device)->name, wanted) || strstr((*device)->platform, wanted)) return NNS_OK;
    }
    *device = NULL;
    return fail_choice(report, wanted);
}

static bool has_name(const nns_ocl_device *device, const nns_ocl_queue *queue, bool and_platform) {
    return !strcmp(device->name, queue->name) && (!and_platform || !strcmp(device->platform, queue->platform));
}

/* The device of the plan's number, if it has the plan's name; else one of that name and platform, or of that name; else that of the
 * number. */
int32_t nns_ocl_choose(const nns_ocl_queue *queue, const char *wanted, const nns_ocl_device **device,
                       nns_report *report) {
    const int32_t count = nns_ocl_device_count();
    if (wanted && *wanted) return choose_wanted(wanted, device, report);
    *device = queue->index < count ? nns_ocl_device_at(queue->index) : NULL;
    if (*device && (!*queue->name || has_name(*device, queue, true))) return NNS_OK;
    for (int32_t strict = 1; strict >= 0; strict--)
        for (int32_t i = 0; *queue->name && i < count; i++)
            if (has_name(nns_ocl_device_at(i), queue, strict)) {
                *device = nns_ocl_device_at(i);
                return NNS_OK;
            }
    char number[16];
    snprintf(number, sizeof number, "%d", (int)queue->index);
    return *device ? NNS_OK : fail_choice(report, number);
}
