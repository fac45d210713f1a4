#include "energy.h"

#include <math.h>
#include <string.h>

#define ZONE "/sys/class/powercap/%s/"
#define SUPPLY "/sys/class/power_supply/%s/"

enum { MOST_ENTRIES = 64 };

/* ---- counters --------------------------------------------------------------------------------------------- */

/* Packages, and the memory within them. Other zones are parts of packages, or contain them (psys). */
static bool is_counted(const nns_sysfs *fs, const char *zone) {
    char name[NNS_SYSFS_TEXT];
    if (strncmp(zone, "intel-rapl:", 11) || !nns_sysfs_line(fs, name, sizeof name, ZONE "name", zone)) return false;
    return !strncmp(name, "package", 7) || !strcmp(name, "dram");
}

static void open_counters(nns_energy *energy) {
    nns_sysfs_name names[MOST_ENTRIES];
    const int32_t count = nns_sysfs_entries(&energy->fs, "/sys/class/powercap", "", names, MOST_ENTRIES);
    for (int32_t i = 0; i < count && energy->n_counters < NNS_MOST_COUNTERS; i++) {
        if (!is_counted(&energy->fs, names[i])) continue;
        if (nns_sysfs_number(&energy->fs, ZONE "energy_uj", names[i]) == NNS_UNKNOWN) continue;
        nns_energy_counter *counter = &energy->counters[energy->n_counters++];
        strcpy(counter->zone, names[i]);
        counter->range = nns_sysfs_number(&energy->fs, ZONE "max_energy_range_uj", names[i]);
    }
}

static int64_t read_counter(const nns_energy *energy, const nns_energy_counter *counter) {
    return nns_sysfs_number(&energy->fs, ZONE "energy_uj", counter->zone);
}

void nns_energy_begin(nns_energy *energy) {
    for (int32_t i = 0; i < energy->n_counters; i++)
        energy->counters[i].last = read_counter(energy, &energy->counters[i]);
}

double nns_energy_joules(nns_energy *energy) {
    double joules = energy->n_counters ? 0 : NAN;
    for (int32_t i = 0; i < energy->n_counters; i++) {
        nns_energy_counter *counter = &energy->counters[i];
        const int64_t now = read_counter(energy, counter);
        double microjoules = NAN;
        if (now != NNS_UNKNOWN && counter->last != NNS_UNKNOWN) {
            microjoules = (double)now - (double)counter->last;
            if (now < counter->last) microjoules += counter->range == NNS_UNKNOWN ? NAN : (double)counter->range;
        }
        joules += microjoules * 1e-6;
        counter->last = now;
    }
    return joules;
}

/* ---- batteries -------------------------------------------------------------------------------------------- */

/* The power of a supply in microwatts, positive; NNS_UNKNOWN if it shows none. Drivers disagree on the sign of currents. */
static int64_t microwatts(const nns_sysfs *fs, const char *supply) {
    const int64_t power = nns_sysfs_number(fs, SUPPLY "power_now", supply);
    if (power != NNS_UNKNOWN) return power < 0 ? -power : power;
    const int64_t current = nns_sysfs_number(fs, SUPPLY "current_now", supply);
    const int64_t voltage = nns_sysfs_number(fs, SUPPLY "voltage_now", supply);
    if (current == NNS_UNKNOWN || voltage == NNS_UNKNOWN) return NNS_UNKNOWN;
    return (int64_t)fabs((double)current * (double)voltage * 1e-6);
}

static bool is_battery(const nns_sysfs *fs, const char *supply) {
    char type[NNS_SYSFS_TEXT], scope[NNS_SYSFS_TEXT];
    if (!nns_sysfs_line(fs, type, sizeof type, SUPPLY "type", supply) || strcmp(type, "Battery")) return false;
    /* A battery of scope Device is that of a mouse or a headset. */
    return !nns_sysfs_line(fs, scope, sizeof scope, SUPPLY "scope", supply) || strcmp(scope, "Device") != 0;
}

static void open_battery(nns_energy *energy) {
    nns_sysfs_name names[MOST_ENTRIES];
    const int32_t count = nns_sysfs_entries(&energy->fs, "/sys/class/power_supply", "", names, MOST_ENTRIES);
    for (int32_t i = 0; i < count && !energy->battery[0]; i++)
        if (is_battery(&energy->fs, names[i]) && microwatts(&energy->fs, names[i]) != NNS_UNKNOWN)
            strcpy(energy->battery, names[i]);
}

double nns_battery_watts(const nns_energy *energy) {
    char status[NNS_SYSFS_TEXT];
    if (!energy->battery[0]) return NAN;
    if (!nns_sysfs_line(&energy->fs, status, sizeof status, SUPPLY "status", energy->battery)) return NAN;
    if (strcmp(status, "Discharging")) return NAN;
    const int64_t power = microwatts(&energy->fs, energy->battery);
    return power == NNS_UNKNOWN ? NAN : (double)power * 1e-6;
}

void nns_energy_open(nns_energy *energy, const nns_sysfs *fs) {
    *energy = (nns_energy){.fs = *fs};
    open_counters(energy);
    if (!energy->n_counters) open_battery(energy);
}

/* ---- what the machine offers ------------------------------------------------------------------------------ */

void nns_power_write(const nns_sysfs *fs, nns_json *json) {
    nns_sysfs_name names[MOST_ENTRIES];
    char text[NNS_SYSFS_TEXT];
    const int32_t count = nns_sysfs_entries(fs, "/sys/class/power_supply", "", names, MOST_ENTRIES);
    nns_json_array(json, "power");
    for (int32_t i = 0; i < count; i++) {
        nns_json_object(json, NULL);
        nns_json_text(json, "name", names[i]);
        nns_json_text(json, "type", nns_sysfs_line(fs, text, sizeof text, SUPPLY "type", names[i]) ? text : NULL);
        nns_json_text(json, "status", nns_sysfs_line(fs, text, sizeof text, SUPPLY "status", names[i]) ? text : NULL);
        nns_json_integer(json, "capacity", nns_sysfs_number(fs, SUPPLY "capacity", names[i]));
        nns_json_integer(json, "uw", microwatts(fs, names[i]));
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
}

void nns_energy_write(const nns_sysfs *fs, nns_json *json) {
    nns_sysfs_name names[MOST_ENTRIES];
    char text[NNS_SYSFS_TEXT];
    const int32_t count = nns_sysfs_entries(fs, "/sys/class/powercap", "", names, MOST_ENTRIES);
    nns_json_array(json, "energy");
    for (int32_t i = 0; i < count; i++) {
        if (!nns_sysfs_line(fs, text, sizeof text, ZONE "name", names[i])) continue; /* a kind of zones, no zone */
        nns_json_object(json, NULL);
        nns_json_text(json, "zone", names[i]);
        nns_json_text(json, "name", text);
        nns_json_integer(json, "uj", nns_sysfs_number(fs, ZONE "energy_uj", names[i]));
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
}
