/* The energy that the machine takes: counters of powercap (RAPL), or the current and voltage of a battery. */
#ifndef NNS_ENERGY_H
#define NNS_ENERGY_H

#include "answer/json.h"
#include "sysfs.h"

enum { NNS_MOST_COUNTERS = 32 };

/* A counter of microjoules that starts again from 0 after `range`. */
typedef struct {
    nns_sysfs_name zone; /* intel-rapl:0 */
    int64_t range;
    int64_t last; /* the value at the last reading */
} nns_energy_counter;

/* Adds up energy over intervals. */
typedef struct {
    nns_sysfs fs;
    nns_energy_counter counters[NNS_MOST_COUNTERS]; /* of packages and of memory */
    int32_t n_counters;
    nns_sysfs_name battery; /* "" if there are counters, or no battery that shows its power */
} nns_energy;

void nns_energy_open(nns_energy *energy, const nns_sysfs *fs);

/* Begins an interval of counters. */
void nns_energy_begin(nns_energy *energy);

/* The joules that the counters have seen since nns_energy_begin or the last call; NaN without counters. An interval must be
 * shorter than a counter takes to start again twice, which is minutes. */
double nns_energy_joules(nns_energy *energy);

/* The watts that are drawn from the battery now; NaN if there is none, if it is not discharging, or if counters are there. */
double nns_battery_watts(const nns_energy *energy);

/* Write what the machine offers: power supplies, and energy counters. */
void nns_power_write(const nns_sysfs *fs, nns_json *json);
void nns_energy_write(const nns_sysfs *fs, nns_json *json);

#endif
