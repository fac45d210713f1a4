#include "cpus.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

enum { MOST_CPUS = 4096 };

#define CPU "/sys/devices/system/cpu/cpu%d/"

/* CPUs by number. */
typedef struct {
    bool is_online[MOST_CPUS];
    int64_t implementer[MOST_CPUS], part[MOST_CPUS]; /* MIDR of ARM; NNS_UNKNOWN elsewhere */
    cpu_set_t *allowed;
    size_t allowed_bytes;
} cpu_table;

/* /proc/cpuinfo describes CPUs that are online only, and its lines of ARM are the same everywhere. */
static void read_cpuinfo(const nns_sysfs *fs, cpu_table *table) {
    char line[NNS_SYSFS_TEXT], path[NNS_SYSFS_PATH];
    if (snprintf(path, sizeof path, "%s/proc/cpuinfo", fs->root) >= (int)sizeof path) return;
    FILE *file = fopen(path, "re");
    for (long cpu = -1; file && fgets(line, sizeof line, file);) {
        const char *colon = strchr(line, ':');
        if (!colon) continue;
        if (!strncmp(line, "processor", 9)) cpu = strtol(colon + 1, NULL, 10);
        if (cpu < 0 || cpu >= MOST_CPUS) continue;
        if (!strncmp(line, "CPU implementer", 15)) table->implementer[cpu] = strtol(colon + 1, NULL, 0);
        if (!strncmp(line, "CPU part", 8)) table->part[cpu] = strtol(colon + 1, NULL, 0);
    }
    if (file) fclose(file);
}

/* The main ID register, which sysfs has on 64-bit ARM, for every CPU that has been online. */
static void read_identification(const nns_sysfs *fs, int32_t cpu, cpu_table *table) {
    const int64_t midr = nns_sysfs_number(fs, CPU "regs/identification/midr_el1", cpu);
    if (midr == NNS_UNKNOWN) return;
    table->implementer[cpu] = midr >> 24 & 0xff;
    table->part[cpu] = midr >> 4 & 0xfff;
}

static void read_allowed(cpu_table *table) {
    table->allowed = CPU_ALLOC(MOST_CPUS);
    table->allowed_bytes = CPU_ALLOC_SIZE(MOST_CPUS);
    if (!table->allowed) nns_die("no memory for the numbers of %d CPUs", MOST_CPUS);
    CPU_ZERO_S(table->allowed_bytes, table->allowed);
    sched_getaffinity(0, table->allowed_bytes, table->allowed);
}

/* The NUMA node, which is a link in the CPU's folder. */
static int64_t node_of(const nns_sysfs *fs, int32_t cpu) {
    char folder[NNS_SYSFS_PATH];
    nns_sysfs_name found;
    snprintf(folder, sizeof folder, CPU, cpu);
    nns_sysfs_name names[8];
    const int32_t count = nns_sysfs_entries(fs, folder, "node", names, 8);
    for (int32_t i = 0; i < count; i++) {
        char *end = NULL;
        const long node = strtol(strcpy(found, names[i]) + 4, &end, 10);
        if (end != found + 4 && !*end) return node;
    }
    return NNS_UNKNOWN;
}

static void write_siblings(const nns_sysfs *fs, int32_t cpu, nns_json *json) {
    enum { MOST = 64 };
    int32_t numbers[MOST];
    int32_t count = nns_sysfs_list(fs, numbers, MOST, CPU "topology/core_cpus_list", cpu);
    if (count < 0) count = nns_sysfs_list(fs, numbers, MOST, CPU "topology/thread_siblings_list", cpu);
    if (count < 0) {
        nns_json_null(json, "siblings");
        return;
    }
    nns_json_array(json, "siblings");
    for (int32_t i = 0; i < count; i++) nns_json_integer(json, NULL, numbers[i]);
    nns_json_end_array(json);
}

static void write_cpu(const nns_sysfs *fs, int32_t cpu, const cpu_table *table, nns_json *json) {
    char governor[NNS_SYSFS_TEXT];
    const bool is_governed = nns_sysfs_line(fs, governor, sizeof governor, CPU "cpufreq/scaling_governor", cpu);
    nns_json_object(json, NULL);
    nns_json_integer(json, "number", cpu);
    nns_json_bool(json, "online", table->is_online[cpu]);
    nns_json_bool(json, "allowed", CPU_ISSET_S((size_t)cpu, table->allowed_bytes, table->allowed));
    nns_json_integer(json, "min_khz", nns_sysfs_number(fs, CPU "cpufreq/cpuinfo_min_freq", cpu));
    nns_json_integer(json, "max_khz", nns_sysfs_number(fs, CPU "cpufreq/cpuinfo_max_freq", cpu));
    nns_json_integer(json, "khz", nns_sysfs_number(fs, CPU "cpufreq/scaling_cur_freq", cpu));
    nns_json_text(json, "governor", is_governed ? governor : NULL);
    nns_json_integer(json, "capacity", nns_sysfs_number(fs, CPU "cpu_capacity", cpu));
    nns_json_integer(json, "package", nns_sysfs_number(fs, CPU "topology/physical_package_id", cpu));
    nns_json_integer(json, "core", nns_sysfs_number(fs, CPU "topology/core_id", cpu));
    nns_json_integer(json, "node", node_of(fs, cpu));
    write_siblings(fs, cpu, json);
    nns_json_integer(json, "implementer", table->implementer[cpu]);
    nns_json_integer(json, "part", table->part[cpu]);
    nns_json_end_object(json);
}

void nns_cpus_write(const nns_sysfs *fs, nns_json *json) {
    int32_t *numbers = nns_new(MOST_CPUS, sizeof *numbers);
    cpu_table *table = nns_new(1, sizeof *table);
    for (int32_t i = 0; i < MOST_CPUS; i++) table->implementer[i] = table->part[i] = NNS_UNKNOWN;
    read_allowed(table);
    const int32_t online = nns_sysfs_list(fs, numbers, MOST_CPUS, "/sys/devices/system/cpu/online");
    for (int32_t i = 0; i < online; i++)
        if (numbers[i] < MOST_CPUS) table->is_online[numbers[i]] = true;
    read_cpuinfo(fs, table);
    const int32_t present = nns_sysfs_list(fs, numbers, MOST_CPUS, "/sys/devices/system/cpu/present");
    nns_json_array(json, "cpus");
    for (int32_t i = 0; i < present; i++) {
        if (numbers[i] >= MOST_CPUS) continue;
        read_identification(fs, numbers[i], table);
        write_cpu(fs, numbers[i], table, json);
    }
    nns_json_end_array(json);
    CPU_FREE(table->allowed);
    free(table);
    free(numbers);
}
