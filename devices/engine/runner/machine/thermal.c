#include "thermal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define ZONE "/sys/class/thermal/%s/"

static bool names_cpu(const char *type) {
    static const char *const parts[] = {"cpu", "x86_pkg", "core", "cluster", "soc", "big", "little", "mid"};
    char lower[NNS_SYSFS_NAME];
    size_t length = 0;
    for (; type[length]; length++) lower[length] = (char)tolower((unsigned char)type[length]);
    lower[length] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(lower, parts[i])) return true;
    return false;
}

void nns_thermal_open(nns_thermal *thermal, const nns_sysfs *fs) {
    static nns_sysfs_name names[NNS_MOST_ZONES];
    *thermal = (nns_thermal){.fs = *fs};
    thermal->count = nns_sysfs_entries(fs, "/sys/class/thermal", "thermal_zone", names, NNS_MOST_ZONES);
    for (int32_t i = 0; i < thermal->count; i++) {
        nns_zone *zone = &thermal->zones[i];
        strcpy(zone->name, names[i]);
        if (!nns_sysfs_line(fs, zone->type, sizeof zone->type, ZONE "type", zone->name)) zone->type[0] = 0;
        zone->is_of_cpu = names_cpu(zone->type);
    }
}

double nns_zone_celsius(const nns_thermal *thermal, int32_t zone) {
    const int64_t millidegrees = nns_sysfs_number(&thermal->fs, ZONE "temp", thermal->zones[zone].name);
    return millidegrees == NNS_UNKNOWN ? NAN : (double)millidegrees / 1000;
}

double nns_hottest_cpu_zone(const nns_thermal *thermal, int32_t *zone) {
    double hottest = NAN;
    for (int32_t i = 0; i < thermal->count; i++) {
        if (!thermal->zones[i].is_of_cpu) continue;
        const double celsius = nns_zone_celsius(thermal, i);
        if (isnan(celsius) || celsius <= hottest) continue;
        hottest = celsius;
        if (zone) *zone = i;
    }
    return hottest;
}

void nns_thermal_write(const nns_thermal *thermal, nns_json *json) {
    nns_json_array(json, "thermal");
    for (int32_t i = 0; i < thermal->count; i++) {
        nns_json_object(json, NULL);
        nns_json_text(json, "zone", thermal->zones[i].name);
        nns_json_text(json, "type", thermal->zones[i].type[0] ? thermal->zones[i].type : NULL);
        nns_json_real(json, "c", nns_zone_celsius(thermal, i));
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
}
