/* Thermal zones. */
#ifndef NNS_THERMAL_H
#define NNS_THERMAL_H

#include "answer/json.h"
#include "sysfs.h"

enum { NNS_MOST_ZONES = 256 };

typedef struct {
    nns_sysfs_name name; /* thermal_zone0 */
    char type[NNS_SYSFS_NAME];
    bool is_of_cpu;
} nns_zone;

typedef struct {
    nns_sysfs fs;
    nns_zone zones[NNS_MOST_ZONES];
    int32_t count;
} nns_thermal;

/* Lists the zones. A zone is one of a CPU if its type names one, as in cpu-0-1, cpu_thermal, x86_pkg_temp, soc and
 * big. */
void nns_thermal_open(nns_thermal *thermal, const nns_sysfs *fs);

/* The temperature of a zone in degrees Celsius; NaN if it cannot be read. */
double nns_zone_celsius(const nns_thermal *thermal, int32_t zone);

/* The temperature of the hottest zone of a CPU, and which one that is; NaN without such zones. `zone` may be NULL. */
double nns_hottest_cpu_zone(const nns_thermal *thermal, int32_t *zone);

/* Writes all zones with their temperatures now. */
void nns_thermal_write(const nns_thermal *thermal, nns_json *json);

#endif
