#include "turns.h"

#include <math.h>

#include "fail.h"
#include "nns_engine.h"
#include "stop.h"
#include "threads/threads.h"

void nns_turns_open(nns_turns *turns, const nns_options *options) {
    *turns = (nns_turns){.options = options, .fs = {options->root}};
    nns_thermal_open(&turns->thermal, &turns->fs);
    nns_energy_open(&turns->energy, &turns->fs);
}

static double milliseconds_since(int64_t begin) { return (double)(nns_now() - begin) * 1e-6; }

/* Runs for a time, at least once. Returns the number of runs. */
static int64_t run_untimed(nns_entry *entry, double milliseconds) {
    const int64_t begin = nns_now();
    int64_t runs = 0;
    do {
        if (nns_entry_run(entry) < 0) break;
        runs++;
    } while (milliseconds_since(begin) < milliseconds && !nns_stop_signal());
    return runs;
}

/* Reads the temperatures before (0) or after (1) a model's timed runs. */
static void read_temperatures(const nns_turns *turns, nns_entry *entry, int place) {
    if (!entry->celsius) entry->celsius = nns_new((size_t)turns->thermal.count, sizeof *entry->celsius);
    for (int32_t i = 0; i < turns->thermal.count; i++)
        entry->celsius[i][place] = nns_zone_celsius(&turns->thermal, i);
}

void nns_warm_up(nns_turns *turns, nns_entry *entry) {
    const double rest = turns->options->warmup * 1e3 - entry->first_ms;
    if (rest > 0) run_untimed(entry, rest);
    entry->is_warm = true;
    entry->joules = 0;
    nns_clocks_before(&entry->clocks);
    read_temperatures(turns, entry, 0);
    turns->last = entry;
}

static void time_runs(nns_entry *entry, double milliseconds, int64_t most, nns_samples *second) {
    const int64_t begin = nns_now();
    for (int64_t i = 0; i < most; i++) {
        const double one = nns_entry_run(entry);
        if (one < 0) return;
        if (!nns_samples_add(&entry->samples, one) || (second && !nns_samples_add(second, one)))
            nns_die("no memory for the durations of runs");
        entry->timed_ms += one;
        if (milliseconds_since(begin) >= milliseconds || nns_stop_signal()) return;
    }
}

/* Adds the energy of a turn. Batteries show a mean over seconds, which belongs to a model only if it runs alone. */
static void add_energy(nns_turns *turns, nns_entry *entry, double watts_before, double milliseconds, int64_t runs) {
    double joules = nns_energy_joules(&turns->energy);
    if (isnan(joules) && turns->is_alone)
        joules = (watts_before + nns_battery_watts(&turns->energy)) / 2 * milliseconds * 1e-3;
    entry->joules += joules;
    entry->joules_ms += milliseconds;
    entry->joules_runs += runs;
}

void nns_take_turn(nns_turns *turns, nns_entry *entry, double milliseconds, int64_t most, nns_samples *second) {
    enum { REFRESH_MS = 1 };
    nns_clocks_begin_turn(&entry->clocks);
    const double watts = turns->is_alone ? nns_battery_watts(&turns->energy) : NAN;
    nns_energy_begin(&turns->energy);
    const int64_t begin = nns_now(), runs_before = entry->samples.runs;
    const int64_t untimed = turns->last == entry ? 0 : run_untimed(entry, REFRESH_MS);
    if (!entry->error[0]) time_runs(entry, milliseconds, most, second);
    turns->last = entry;
    nns_clocks_end_turn(&entry->clocks);
    add_energy(turns, entry, watts, milliseconds_since(begin), untimed + entry->samples.runs - runs_before);
}

void nns_end_turns(nns_turns *turns, nns_entry *entry) {
    read_temperatures(turns, entry, 1);
    nns_entry_finish(entry, turns->options);
    entry->is_done = true;
}
