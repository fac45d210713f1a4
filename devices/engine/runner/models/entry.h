/* One model of the command line: while it is loaded, and what is known of it afterwards. */
#ifndef NNS_ENTRY_H
#define NNS_ENTRY_H

#include "machine/clocks.h"
#include "nnstretch.h"
#include "timing/samples.h"
#include "tensors.h"
#include "machine/thermal.h"

enum { NNS_ERROR_TEXT = 512 };

/* What one second of a sustained run showed. */
typedef struct {
    double s; /* since its begin */
    double p50_ms, celsius;
    int64_t khz;
} nns_second;

typedef struct {
    const char *file;
    int32_t number;             /* on the command line, from 0 */
    char error[NNS_ERROR_TEXT]; /* "" until something fails; then the model is no longer run */
    int32_t batch;              /* models of one batch are in memory at the same time; -1 before it was loaded */

    nns_model *model; /* NULL before it is loaded and after it is freed */
    nns_input *inputs;
    nns_output *outputs;
    uint32_t first_crc;

    /* Parts of the JSON, made while the model is loaded; NULL if it was not. */
    char *description, *timeline;
    double load_ms, first_ms;
    int64_t peak_memory_bytes;

    bool is_warm, is_done, is_repeatable;
    nns_samples samples;
    double timed_ms;
    nns_clocks clocks;
    double (*celsius)[2]; /* before and after, by zone */
    double joules, joules_ms; /* of the runs `joules_runs`; NaN if unknown */
    int64_t joules_runs;
    nns_second *seconds;
    int64_t n_seconds;
} nns_entry;

/* Loads the model, runs it once, and describes inputs and outputs. On failure the entry has an error and no model. */
void nns_entry_load(nns_entry *entry, const nns_options *options, const nns_sysfs *fs, nns_shared_arrays *arrays);

/* Runs the model once. Returns the milliseconds; on failure the entry has an error, and the result is negative. */
double nns_entry_run(nns_entry *entry);

/* How models are loaded on this command line. */
nns_model_options nns_entry_model_options(const nns_options *options, const nns_opencl_options *opencl);

/* Runs the model once more and makes the entry's timeline. */
void nns_entry_trace(nns_entry *entry, const nns_options *options);

/* The last run, after all timed ones: compares the outputs with those of the first, and makes the timeline if that is asked
 * for. */
void nns_entry_finish(nns_entry *entry, const nns_options *options);

/* Frees the model; what is known of it remains. */
void nns_entry_unload(nns_entry *entry);

/* Frees everything. */
void nns_entry_free(nns_entry *entry);

/* Writes the entry's object. `thermal` names the zones. */
void nns_entry_write(const nns_entry *entry, const nns_thermal *thermal, nns_json *json);

#endif
