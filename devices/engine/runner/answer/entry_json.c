/* The object of an entry in the runner's answer. */
#include <math.h>

#include "models/entry.h"

static void write_samples(const nns_samples *samples, nns_json *json) {
    enum { MOST = 1000 };
    const int64_t count = samples->count < MOST ? samples->count : MOST;
    nns_json_array(json, "samples_ms");
    for (int64_t i = 0; i < count; i++)
        nns_json_real(json, NULL, (double)samples->kept[count > 1 ? i * (samples->count - 1) / (count - 1) : 0]);
    nns_json_end_array(json);
}

static void write_statistics(const nns_samples *samples, nns_json *json) {
    static const double percents[] = {50, 90, 99};
    double values[3];
    nns_samples_percentiles(samples, percents, values, 3);
    nns_json_integer(json, "runs", samples->runs);
    nns_json_real(json, "p50_ms", values[0]);
    nns_json_real(json, "p90_ms", values[1]);
    nns_json_real(json, "p99_ms", values[2]);
    nns_json_real(json, "min_ms", samples->runs ? samples->min : NAN);
    nns_json_real(json, "mean_ms", samples->sum / (double)samples->runs);
    write_samples(samples, json);
}

static void write_temperatures(const nns_entry *entry, const nns_thermal *thermal, nns_json *json) {
    nns_json_object(json, "temperatures_c");
    for (int32_t i = 0; entry->celsius && i < thermal->count; i++) {
        nns_json_array(json, thermal->zones[i].name);
        nns_json_real(json, NULL, entry->celsius[i][0]);
        nns_json_real(json, NULL, entry->celsius[i][1]);
        nns_json_end_array(json);
    }
    nns_json_end_object(json);
}

static double joules_per_run(const nns_entry *entry) {
    enum { LEAST_MS = 1000 };
    return entry->joules_ms >= LEAST_MS ? entry->joules / (double)entry->joules_runs : NAN;
}

static void write_seconds(const nns_entry *entry, nns_json *json) {
    nns_json_array(json, "sustained");
    for (int64_t i = 0; i < entry->n_seconds; i++) {
        nns_json_object(json, NULL);
        nns_json_real(json, "s", entry->seconds[i].s);
        nns_json_real(json, "p50_ms", entry->seconds[i].p50_ms);
        nns_json_integer(json, "khz", entry->seconds[i].khz);
        nns_json_real(json, "temperature_c", entry->seconds[i].celsius);
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
}

void nns_entry_write(const nns_entry *entry, const nns_thermal *thermal, nns_json *json) {
    nns_json_object(json, NULL);
    nns_json_text(json, "file", entry->file);
    if (entry->description)
        nns_json_members(json, entry->description);
    else
        nns_json_null(json, "name");
    if (entry->error[0]) {
        nns_json_text(json, "error", entry->error);
        nns_json_end_object(json);
        return;
    }
    nns_json_real(json, "load_ms", entry->load_ms);
    nns_json_real(json, "first_ms", entry->first_ms);
    write_statistics(&entry->samples, json);
    nns_json_bool(json, "repeatable", entry->is_repeatable);
    nns_json_integer(json, "batch", entry->batch);
    nns_json_integer(json, "peak_memory_bytes", entry->peak_memory_bytes);
    nns_clocks_write(&entry->clocks, json);
    write_temperatures(entry, thermal, json);
    nns_json_real(json, "energy_j", joules_per_run(entry));
    if (entry->timeline) nns_json_members(json, entry->timeline);
    if (entry->seconds) write_seconds(entry, json);
    nns_json_end_object(json);
}
