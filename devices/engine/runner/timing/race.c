#include "race.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "fail.h"
#include "machine/memory.h"
#include "nns_engine.h"
#include "models/numbers.h"
#include "stop.h"
#include "threads/threads.h"

enum { MOST_TURN_MS = 100, LEAST_TURN_MS = 1, LEAST_ROUNDS = 10, LONGEST_WAIT_S = 600 };

static void stop(nns_race *race, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void stop(nns_race *race, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(race->stopped, sizeof race->stopped, format, arguments);
    va_end(arguments);
}

static bool is_stopped(nns_race *race) {
    if (!race->stopped[0] && nns_stop_signal()) stop(race, "%s", nns_stop_signal_name());
    return race->stopped[0];
}

static void report(nns_race *race, const char *what, const nns_entry *entry) {
    if (!race->turns.options->progress) return;
    int32_t over = 0;
    for (int32_t i = 0; i < race->n_entries; i++) over += race->entries[i].is_done || race->entries[i].error[0];
    fprintf(stderr, "%d of %d done, %s %s\n", (int)over, (int)race->n_entries, what, entry->file);
}

/* Reports at most twice a second. */
static void report_sometimes(nns_race *race, const nns_entry *entry) {
    enum { BETWEEN = 500000000 };
    if (nns_now() - race->reported < BETWEEN) return;
    race->reported = nns_now();
    report(race, "timing", entry);
}

/* Names the model in the line that a crash writes. */
static void name_in_crashes(const nns_entry *entry) {
    char text[NNS_ERROR_TEXT];
    snprintf(text, sizeof text, "while %s ran; leave this model out", entry->file);
    nns_crash_line(text);
}

/* ---- temperature ------------------------------------------------------------------------------------------ */

/* Waits until the CPU is at most so hot, ten minutes at most. Returns whether it is. */
static bool wait_until_cool(nns_race *race, double celsius) {
    const int64_t end = nns_now() + (int64_t)LONGEST_WAIT_S * 1000000000;
    race->turns.last = NULL;
    for (;;) {
        if (!(nns_hottest_cpu_zone(&race->turns.thermal, NULL) > celsius)) return true;
        if (is_stopped(race) || nns_now() > end) return false;
        nns_sleep(0.5);
    }
}

/* Pauses or stops above the thermal limit, as the options say. */
static void keep_limit(nns_race *race) {
    enum { BETWEEN = 100000000, COOLER = 5 };
    const nns_options *options = race->turns.options;
    int32_t zone = 0;
    if (isnan(options->hottest) || nns_now() - race->limit_read < BETWEEN) return;
    const double celsius = nns_hottest_cpu_zone(&race->turns.thermal, &zone);
    if (celsius >= options->hottest) {
        const nns_zone *hot = &race->turns.thermal.zones[zone];
        if (options->stops_when_hot)
            stop(race, "thermal limit: %s (%s) has %.1f degrees Celsius", hot->type, hot->name, celsius);
        else if (!wait_until_cool(race, options->hottest - COOLER) && !is_stopped(race))
            stop(race, "thermal limit: %s (%s) had %.1f degrees Celsius and did not cool down within %d minutes",
                 hot->type, hot->name, celsius, LONGEST_WAIT_S / 60);
    }
    race->limit_read = nns_now();
}

static void check_sensors(const nns_race *race) {
    const nns_options *options = race->turns.options;
    if (!isnan(nns_hottest_cpu_zone(&race->turns.thermal, NULL))) return;
    const char *option = !isnan(options->hottest) ? "--hottest" : !isnan(options->cool_to) ? "--cool-to" : NULL;
    if (option) nns_die("no thermal zone of a CPU can be read here; leave %s out", option);
}

/* ---- models in turns -------------------------------------------------------------------------------------- */

static bool is_running(const nns_entry *entry) { return entry->model && !entry->error[0] && !entry->is_done; }

static int64_t runs_left(const nns_race *race, const nns_entry *entry) {
    const int64_t runs = race->turns.options->runs;
    return runs ? runs - entry->samples.runs : INT64_MAX;
}

static double milliseconds_left(const nns_race *race, const nns_entry *entry) {
    const nns_options *options = race->turns.options;
    const double whole = options->minutes > 0 ? options->minutes * 60 : options->runs ? INFINITY : options->seconds;
    return whole * 1e3 - entry->timed_ms;
}

static bool has_enough(const nns_race *race, const nns_entry *entry) {
    return entry->samples.runs && (runs_left(race, entry) <= 0 || milliseconds_left(race, entry) <= 0);
}

/* One turn of a model; warms it up before its first one, and ends its turns after the last one. */
static void take_turn(nns_race *race, nns_entry *entry, nns_samples *second) {
    const nns_options *options = race->turns.options;
    if (race->turns.last != entry) name_in_crashes(entry);
    if (!entry->is_warm) nns_warm_up(&race->turns, entry);
    if (entry->error[0] || is_stopped(race)) return;
    double turn = options->runs ? MOST_TURN_MS : options->seconds * 1e3 / LEAST_ROUNDS;
    if (race->turns.is_alone || turn > MOST_TURN_MS) turn = MOST_TURN_MS;
    if (turn < LEAST_TURN_MS) turn = LEAST_TURN_MS;
    if (turn > milliseconds_left(race, entry)) turn = milliseconds_left(race, entry);
    int64_t most = runs_left(race, entry);
    const int64_t share = (options->runs + LEAST_ROUNDS - 1) / LEAST_ROUNDS;
    if (!race->turns.is_alone && options->runs && most > share) most = share;
    nns_take_turn(&race->turns, entry, turn, most, second);
    if (!entry->error[0] && has_enough(race, entry)) nns_end_turns(&race->turns, entry);
    if (race->is_trimming && (entry->is_done || !race->turns.is_alone)) nns_model_trim(entry->model);
}

/* Draws an order. */
static void shuffle(nns_race *race, nns_entry **list, int32_t count) {
    for (int32_t i = count - 1; i > 0; i--) {
        const uint64_t word = nns_word_at(~race->turns.options->seed, race->drawn++);
        const int32_t other = (int32_t)(word % (uint64_t)(i + 1));
        nns_entry *entry = list[i];
        list[i] = list[other];
        list[other] = entry;
    }
}

static void run_in_rounds(nns_race *race, nns_entry **list, int32_t count) {
    while (count && !is_stopped(race)) {
        shuffle(race, list, count);
        int32_t left = 0;
        for (int32_t i = 0; i < count; i++) {
            keep_limit(race);
            if (is_stopped(race)) return;
            report_sometimes(race, list[i]);
            take_turn(race, list[i], NULL);
            if (is_running(list[i])) list[left++] = list[i];
        }
        count = left;
    }
}

/* ---- one model after the other ---------------------------------------------------------------------------- */

static void add_second(const nns_race *race, nns_entry *entry, double s, nns_samples *second) {
    static const double half[] = {50};
    nns_second *more = realloc(entry->seconds, (size_t)(entry->n_seconds + 1) * sizeof *more);
    if (!more) nns_die("no memory for the records of %lld seconds", (long long)entry->n_seconds);
    entry->seconds = more;
    nns_second *record = &more[entry->n_seconds++];
    nns_samples_percentiles(second, half, &record->p50_ms, 1);
    record->s = s;
    record->khz = nns_clocks_mean(&entry->clocks);
    record->celsius = nns_hottest_cpu_zone(&race->turns.thermal, NULL);
    nns_samples_clear(second);
}

static void run_alone(nns_race *race, nns_entry *entry) {
    const bool is_sustained = race->turns.options->minutes > 0;
    nns_samples second = {0};
    int64_t begin = 0, recorded = 0;
    while (is_running(entry)) {
        keep_limit(race);
        if (is_stopped(race)) break;
        report_sometimes(race, entry);
        if (!begin && entry->is_warm) begin = recorded = nns_now();
        take_turn(race, entry, is_sustained ? &second : NULL);
        if (!begin) begin = recorded = nns_now() - (int64_t)(entry->timed_ms * 1e6);
        if (!is_sustained || (nns_now() - recorded < 1000000000 && is_running(entry)) || !second.runs) continue;
        recorded = nns_now();
        add_second(race, entry, (double)(recorded - begin) * 1e-9, &second);
    }
    nns_samples_free(&second);
}

static void run_one_by_one(nns_race *race, nns_entry **list, int32_t count) {
    const nns_options *options = race->turns.options;
    shuffle(race, list, count);
    for (int32_t i = 0; i < count && !is_stopped(race); i++) {
        if (i && options->cool_down > 0) {
            nns_sleep(options->cool_down);
            race->turns.last = NULL;
        }
        if (!isnan(options->cool_to)) wait_until_cool(race, options->cool_to);
        run_alone(race, list[i]);
    }
}

/* ---- batches ---------------------------------------------------------------------------------------------- */

static void trim_batch(nns_race *race, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++)
        if (race->entries[i].model) nns_model_trim(race->entries[i].model);
}

static void load(nns_race *race, nns_entry *entry, int32_t batch, nns_shared_arrays *arrays) {
    report(race, "loading", entry);
    name_in_crashes(entry);
    nns_entry_load(entry, race->turns.options, &race->turns.fs, arrays);
    entry->batch = batch;
    if (!entry->model) return;
    race->weights += nns_model_weight_bytes(entry->model);
    race->activations += nns_model_activation_bytes(entry->model);
}

/* Loads models from number `from` on. Returns the number of the first one that does not belong to the batch. */
static int32_t load_batch(nns_race *race, int32_t from, int32_t batch, nns_shared_arrays *arrays) {
    enum { WEIGHTS_SHARE = 2, ACTIVATIONS_SHARE = 8 };
    const int64_t found = nns_available_bytes(&race->turns.fs), available = found == NNS_UNKNOWN ? INT64_MAX : found;
    race->weights = race->activations = 0;
    race->is_trimming = false;
    for (int32_t i = from; i < race->n_entries && !is_stopped(race); i++) {
        load(race, &race->entries[i], batch, arrays);
        if (i > from && race->weights > available / WEIGHTS_SHARE) {
            nns_entry_free(&race->entries[i]);
            return i;
        }
        if (i == from || race->activations <= available / ACTIVATIONS_SHARE) continue;
        trim_batch(race, race->is_trimming ? i : from, i + 1);
        race->is_trimming = true;
    }
    return race->n_entries;
}

/* Ends the turns of models that a stop interrupted. */
static void end_batch(nns_race *race, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++) {
        nns_entry *entry = &race->entries[i];
        if (is_running(entry) && entry->samples.runs) nns_end_turns(&race->turns, entry);
        nns_entry_unload(entry);
    }
}

static void run_batch(nns_race *race, int32_t from, int32_t to) {
    nns_entry **list = nns_new((size_t)(to - from), sizeof(nns_entry *));
    int32_t count = 0;
    for (int32_t i = from; i < to; i++)
        if (is_running(&race->entries[i])) list[count++] = &race->entries[i];
    if (race->turns.is_alone)
        run_one_by_one(race, list, count);
    else
        run_in_rounds(race, list, count);
    free(list);
}

void nns_race_run(nns_race *race, const nns_options *options) {
    *race = (nns_race){.n_entries = options->n_models};
    race->entries = nns_new((size_t)race->n_entries, sizeof *race->entries);
    for (int32_t i = 0; i < race->n_entries; i++)
        race->entries[i] = (nns_entry){.file = options->models[i], .number = i, .batch = -1};
    nns_turns_open(&race->turns, options);
    race->turns.is_alone =
        options->minutes > 0 || options->cool_down > 0 || !isnan(options->cool_to) || race->n_entries == 1;
    check_sensors(race);
    for (int32_t from = 0, batch = 0; from < race->n_entries && !is_stopped(race); batch++) {
        nns_shared_arrays arrays = {0};
        const int32_t to = load_batch(race, from, batch, &arrays);
        run_batch(race, from, to);
        end_batch(race, from, to);
        nns_shared_arrays_free(&arrays);
        from = to;
    }
    is_stopped(race); /* by a signal during the last run */
    for (int32_t i = 0; i < race->n_entries; i++) {
        nns_entry *entry = &race->entries[i];
        if (!entry->error[0] && !entry->samples.runs)
            snprintf(entry->error, sizeof entry->error, "not timed: stopped by %s", race->stopped);
    }
}

void nns_race_free(nns_race *race) {
    for (int32_t i = 0; i < race->n_entries; i++) nns_entry_free(&race->entries[i]);
    free(race->entries);
}
