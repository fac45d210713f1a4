#include "clocks.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"

#define CPU "/sys/devices/system/cpu/cpu%d/"
#define COOLING "/sys/class/thermal/%s/"

/* ---- what the kernel shows -------------------------------------------------------------------------------- */

/* A governor that holds a low clock on purpose; drivers of Intel and AMD call one that does not powersave, too. */
static bool holds_clock(const nns_sysfs *fs, int32_t core) {
    char governor[NNS_SYSFS_TEXT], driver[NNS_SYSFS_TEXT];
    if (!nns_sysfs_line(fs, governor, sizeof governor, CPU "cpufreq/scaling_governor", core)) return false;
    if (!strcmp(governor, "userspace")) return true;
    if (strcmp(governor, "powersave")) return false;
    if (!nns_sysfs_line(fs, driver, sizeof driver, CPU "cpufreq/scaling_driver", core)) return true;
    return strcmp(driver, "intel_pstate") && strcmp(driver, "amd-pstate-epp");
}

static int64_t full_clock(const nns_sysfs *fs, int32_t core) {
    if (holds_clock(fs, core)) return NNS_UNKNOWN;
    const int64_t base = nns_sysfs_number(fs, CPU "cpufreq/base_frequency", core);
    return base != NNS_UNKNOWN ? base : nns_sysfs_number(fs, CPU "cpufreq/cpuinfo_max_freq", core);
}

static void find_cooling_devices(nns_clocks *clocks) {
    nns_sysfs_name names[NNS_MOST_COOLING_DEVICES];
    char type[NNS_SYSFS_TEXT];
    const int32_t count =
        nns_sysfs_entries(&clocks->fs, "/sys/class/thermal", "cooling_device", names, NNS_MOST_COOLING_DEVICES);
    for (int32_t i = 0; i < count; i++) {
        if (!nns_sysfs_line(&clocks->fs, type, sizeof type, COOLING "type", names[i])) continue;
        if (!strstr(type, "cpufreq") && strncmp(type, "cpu", 3) && strcmp(type, "Processor")) continue;
        strcpy(clocks->cooling[clocks->n_cooling++], names[i]);
    }
}

void nns_clocks_open(nns_clocks *clocks, const nns_sysfs *fs, const int32_t *cores, int32_t n_cores) {
    *clocks = (nns_clocks){.fs = *fs, .cores = nns_new((size_t)n_cores, sizeof *clocks->cores), .n_cores = n_cores};
    for (int32_t i = 0; i < n_cores; i++)
        clocks->cores[i] = (nns_core_clock){.number = cores[i],
                                            .full_khz = full_clock(fs, cores[i]),
                                            .before = NNS_UNKNOWN,
                                            .after = NNS_UNKNOWN,
                                            .throttle_count = NNS_UNKNOWN};
    find_cooling_devices(clocks);
}

void nns_clocks_free(nns_clocks *clocks) {
    free(clocks->cores);
    *clocks = (nns_clocks){0};
}

static int64_t clock_of(const nns_clocks *clocks, int32_t core) {
    return nns_sysfs_number(&clocks->fs, CPU "cpufreq/scaling_cur_freq", core);
}

/* How often an x86 CPU has throttled itself; NNS_UNKNOWN elsewhere. */
static int64_t throttle_count(const nns_clocks *clocks, int32_t core) {
    const int64_t own = nns_sysfs_number(&clocks->fs, CPU "thermal_throttle/core_throttle_count", core);
    const int64_t package = nns_sysfs_number(&clocks->fs, CPU "thermal_throttle/package_throttle_count", core);
    if (own == NNS_UNKNOWN) return package;
    return package == NNS_UNKNOWN ? own : own + package;
}

/* ---- turns ------------------------------------------------------------------------------------------------ */

void nns_clocks_before(nns_clocks *clocks) {
    for (int32_t i = 0; i < clocks->n_cores; i++) clocks->cores[i].before = clock_of(clocks, clocks->cores[i].number);
}

void nns_clocks_begin_turn(nns_clocks *clocks) {
    for (int32_t i = 0; i < clocks->n_cores; i++)
        clocks->cores[i].throttle_count = throttle_count(clocks, clocks->cores[i].number);
}

static void read_core(nns_clocks *clocks, nns_core_clock *core) {
    core->after = clock_of(clocks, core->number);
    if (core->after != NNS_UNKNOWN && core->full_khz != NNS_UNKNOWN) {
        clocks->is_known = true;
        clocks->readings++;
        clocks->slow_readings += core->after * 10 < core->full_khz * 9;
    }
    const int64_t limit = nns_sysfs_number(&clocks->fs, CPU "cpufreq/scaling_max_freq", core->number);
    const int64_t most = nns_sysfs_number(&clocks->fs, CPU "cpufreq/cpuinfo_max_freq", core->number);
    if (limit != NNS_UNKNOWN && most != NNS_UNKNOWN) {
        clocks->is_known = true;
        clocks->is_limited |= limit < most;
    }
    const int64_t count = throttle_count(clocks, core->number);
    if (count != NNS_UNKNOWN && core->throttle_count != NNS_UNKNOWN) {
        clocks->is_known = true;
        clocks->is_limited |= count > core->throttle_count;
    }
}

void nns_clocks_end_turn(nns_clocks *clocks) {
    for (int32_t i = 0; i < clocks->n_cores; i++) read_core(clocks, &clocks->cores[i]);
    for (int32_t i = 0; i < clocks->n_cooling; i++) {
        const int64_t state = nns_sysfs_number(&clocks->fs, COOLING "cur_state", clocks->cooling[i]);
        if (state == NNS_UNKNOWN) continue;
        clocks->is_known = true;
        clocks->is_limited |= state > 0;
    }
}

int64_t nns_clocks_mean(const nns_clocks *clocks) {
    int64_t sum = 0, count = 0;
    for (int32_t i = 0; i < clocks->n_cores; i++) {
        if (clocks->cores[i].after == NNS_UNKNOWN) continue;
        sum += clocks->cores[i].after;
        count++;
    }
    return count ? sum / count : NNS_UNKNOWN;
}

void nns_clocks_write(const nns_clocks *clocks, nns_json *json) {
    nns_json_object(json, "clocks_khz");
    for (int32_t i = 0; i < clocks->n_cores; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", (int)clocks->cores[i].number);
        nns_json_array(json, number);
        nns_json_integer(json, NULL, clocks->cores[i].before);
        nns_json_integer(json, NULL, clocks->cores[i].after);
        nns_json_end_array(json);
    }
    nns_json_end_object(json);
    if (clocks->is_known)
        nns_json_bool(json, "throttled", clocks->is_limited || clocks->slow_readings * 4 > clocks->readings);
    else
        nns_json_null(json, "throttled");
}
