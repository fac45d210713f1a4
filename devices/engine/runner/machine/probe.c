#include "probe.h"

#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cpu/cpu_features.h"
#include "cpus.h"
#include "energy.h"
#include "memory.h"
#include "thermal.h"

#if defined(__BIONIC__)
const char *const nns_libc = "bionic", *const nns_system = "android";
#elif defined(__GLIBC__)
const char *const nns_libc = "glibc", *const nns_system = "linux-gnu";
#else
const char *const nns_libc = "musl", *const nns_system = "linux-musl";
#endif

static void write_features(nns_json *json) {
    nns_json_array(json, "features");
    for (int32_t bit = 0; nns_cpu_feature_name(bit); bit++)
        if (nns_cpu_features() >> bit & 1) nns_json_text(json, NULL, nns_cpu_feature_name(bit));
    nns_json_end_array(json);
}

/* The instruction sets that engines are built for, of this CPU's architecture, the best first. */
static const struct {
    int32_t level;
    const char *name;
} isas[] = {
#if defined(__x86_64__)
    {4, "x86-64-v4"}, {3, "x86-64-v3"}, {2, "x86-64-v2"},
#elif defined(__aarch64__)
    {1, "aarch64"},
#elif defined(__arm__)
    {1, "armv7"},
#else
    {1, "riscv64"},
#endif
};

static void write_isa_levels(nns_json *json) {
    nns_json_array(json, "isa_levels");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (!nns_features_missing(nns_features_of_level(isas[i].level))) nns_json_text(json, NULL, isas[i].name);
    nns_json_end_array(json);
}

void nns_probe_write(const nns_sysfs *fs, const nns_opencl_list *opencl, nns_json *json, const char *key) {
    static nns_thermal thermal;
    struct utsname name = {0};
    const bool is_named = !uname(&name);
    nns_thermal_open(&thermal, fs);
    nns_json_object(json, key);
    nns_json_text(json, "machine", is_named ? name.machine : NULL);
    nns_json_text(json, "system", is_named ? name.sysname : NULL);
    nns_json_text(json, "kernel", is_named ? name.release : NULL);
    nns_json_text(json, "libc", nns_libc);
    nns_json_integer(json, "page_bytes", sysconf(_SC_PAGESIZE));
    nns_json_integer(json, "memory_bytes", nns_memory_bytes(fs));
    nns_json_integer(json, "available_bytes", nns_available_bytes(fs));
    nns_cpus_write(fs, json);
    write_features(json);
    write_isa_levels(json);
    nns_thermal_write(&thermal, json);
    nns_power_write(fs, json);
    nns_energy_write(fs, json);
    nns_opencl_list_write(opencl, json);
    nns_json_end_object(json);
}
