#include "entry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "machine/memory.h"
#include "threads/threads.h"

static double milliseconds(int64_t begin, int64_t end) { return (double)(end - begin) * 1e-6; }

/* ---- loading ---------------------------------------------------------------------------------------------- */

static bool has_input(const nns_model *model, const char *name) {
    for (int32_t i = 0; i < nns_model_input_count(model); i++)
        if (!strcmp(nns_model_input(model, i)->name, name)) return true;
    return false;
}

static bool make_arrays(nns_entry *entry, const nns_options *options, nns_shared_arrays *arrays) {
    const int32_t n_inputs = nns_model_input_count(entry->model), n_outputs = nns_model_output_count(entry->model);
    for (int32_t i = 0; i < options->n_inputs; i++) {
        if (has_input(entry->model, options->inputs[i].name)) continue;
        snprintf(entry->error, sizeof entry->error, "the model has no input %s", options->inputs[i].name);
        return false;
    }
    entry->inputs = nns_new((size_t)n_inputs, sizeof *entry->inputs);
    entry->outputs = nns_new((size_t)n_outputs, sizeof *entry->outputs);
    for (int32_t i = 0; i < n_inputs; i++) {
        const nns_tensor *tensor = nns_model_input(entry->model, i);
        const void *array = nns_shared_input(arrays, options, tensor, i, entry->error, sizeof entry->error);
        if (!array) return false;
        entry->inputs[i] = (nns_input){array, tensor->bytes};
    }
    for (int32_t i = 0; i < n_outputs; i++) {
        const nns_tensor *tensor = nns_model_output(entry->model, i);
        void *array = nns_shared_output(arrays, tensor, i, entry->error, sizeof entry->error);
        if (!array) return false;
        entry->outputs[i] = (nns_output){array, tensor->bytes};
    }
    return true;
}

static void open_clocks(nns_entry *entry, const nns_sysfs *fs) {
    int32_t count = 0;
    for (int32_t i = 0; i < nns_model_queue_count(entry->model); i++)
        count += nns_model_queue(entry->model, i)->n_cores;
    int32_t *cores = nns_new((size_t)count, sizeof *cores);
    count = 0;
    for (int32_t i = 0; i < nns_model_queue_count(entry->model); i++) {
        const nns_queue_info *queue = nns_model_queue(entry->model, i);
        for (int32_t k = 0; k < queue->n_cores; k++) {
            bool is_listed = false;
            for (int32_t j = 0; j < count; j++) is_listed |= cores[j] == queue->cores[k];
            if (!is_listed) cores[count++] = queue->cores[k];
        }
    }
    nns_clocks_open(&entry->clocks, fs, cores, count);
    free(cores);
}

static uint32_t crc_of_outputs(const nns_entry *entry) {
    uint32_t crc = 0;
    for (int32_t i = 0; i < nns_model_output_count(entry->model); i++)
        crc = crc * 31 + nns_array_crc32(entry->outputs[i].data, entry->outputs[i].bytes);
    return crc;
}

static void write_features(const nns_entry *entry, nns_json *json) {
    char *features = nns_copy_text(nns_model_features(entry->model)), *state = NULL;
    nns_json_array(json, "features");
    for (char *name = strtok_r(features, ",", &state); name; name = strtok_r(NULL, ",", &state))
        nns_json_text(json, NULL, name);
    nns_json_end_array(json);
    free(features);
}

static void write_queues(const nns_entry *entry, nns_json *json) {
    nns_json_array(json, "queues");
    for (int32_t i = 0; i < nns_model_queue_count(entry->model); i++) {
        const nns_queue_info *queue = nns_model_queue(entry->model, i);
        nns_json_object(json, NULL);
        nns_json_text(json, "kind", queue->kind);
        nns_json_array(json, "cores");
        for (int32_t k = 0; k < queue->n_cores; k++) nns_json_integer(json, NULL, queue->cores[k]);
        nns_json_end_array(json);
        nns_json_text(json, "device", queue->device);
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
}

static void describe(nns_entry *entry) {
    size_t size = 0;
    nns_json json = nns_json_open_text(&entry->description, &size);
    nns_json_text(&json, "name", nns_model_name(entry->model));
    nns_json_integer(&json, "threads", nns_model_threads(entry->model));
    write_features(entry, &json);
    write_queues(entry, &json);
    nns_json_array(&json, "inputs");
    for (int32_t i = 0; i < nns_model_input_count(entry->model); i++)
        nns_tensor_write(&json, nns_model_input(entry->model, i), entry->inputs[i].data);
    nns_json_end_array(&json);
    nns_json_array(&json, "outputs");
    for (int32_t i = 0; i < nns_model_output_count(entry->model); i++)
        nns_tensor_write(&json, nns_model_output(entry->model, i), entry->outputs[i].data);
    nns_json_end_array(&json);
    nns_json_close_text(&json);
}

static bool save_outputs(nns_entry *entry, const nns_options *options) {
    for (int32_t i = 0; options->outputs && i < nns_model_output_count(entry->model); i++)
        if (!nns_save_output(options->outputs, entry->number, i, &entry->outputs[i], entry->error, sizeof entry->error))
            return false;
    return true;
}

nns_model_options nns_entry_model_options(const nns_options *options, const nns_opencl_options *opencl) {
    return (nns_model_options){
        .threads = options->threads,
        .cores = options->n_cores ? options->cores : NULL,
        .n_cores = options->n_cores,
        .opencl = opencl,
        .litert = &options->litert,
    };
}

static bool load(nns_entry *entry, const nns_options *options, const nns_sysfs *fs, nns_shared_arrays *arrays) {
    const nns_model_options on = nns_entry_model_options(options, &options->opencl);
    const int64_t begin = nns_now();
    if (nns_model_load(entry->file, &on, &entry->model, entry->error, sizeof entry->error)) return false;
    entry->load_ms = milliseconds(begin, nns_now());
    if (!make_arrays(entry, options, arrays)) return false;
    open_clocks(entry, fs);
    entry->first_ms = nns_entry_run(entry);
    if (entry->error[0]) return false;
    entry->first_crc = crc_of_outputs(entry);
    describe(entry);
    return save_outputs(entry, options);
}

void nns_entry_load(nns_entry *entry, const nns_options *options, const nns_sysfs *fs, nns_shared_arrays *arrays) {
    static int64_t at_begin = NNS_UNKNOWN;
    const int64_t before = nns_resident_bytes();
    const bool is_first = at_begin == NNS_UNKNOWN;
    if (is_first) at_begin = before;
    const bool is_reset = nns_reset_peak() || is_first;
    entry->joules = NAN;
    entry->peak_memory_bytes = NNS_UNKNOWN;
    if (!load(entry, options, fs, arrays)) {
        nns_entry_unload(entry);
        return;
    }
    const int64_t peak = nns_peak_resident_bytes();
    if (is_reset && peak != NNS_UNKNOWN && before != NNS_UNKNOWN)
        entry->peak_memory_bytes = peak - (before - at_begin);
}

void nns_entry_unload(nns_entry *entry) {
    nns_model_free(entry->model);
    entry->model = NULL;
    free(entry->inputs);
    free(entry->outputs);
    entry->inputs = NULL;
    entry->outputs = NULL;
}

void nns_entry_free(nns_entry *entry) {
    nns_entry_unload(entry);
    nns_samples_free(&entry->samples);
    nns_clocks_free(&entry->clocks);
    free(entry->description);
    free(entry->timeline);
    free(entry->celsius);
    free(entry->seconds);
    entry->description = entry->timeline = NULL;
    entry->celsius = NULL;
    entry->seconds = NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

double nns_entry_run(nns_entry *entry) {
    const int64_t begin = nns_now();
    const int status = nns_model_run(entry->model, entry->inputs, nns_model_input_count(entry->model), entry->outputs,
                                     nns_model_output_count(entry->model), entry->error, sizeof entry->error);
    const int64_t end = nns_now();
    return status ? -1 : milliseconds(begin, end);
}

void nns_entry_finish(nns_entry *entry, const nns_options *options) {
    if (options->timeline)
        nns_entry_trace(entry, options);
    else
        nns_entry_run(entry);
    entry->is_repeatable = !entry->error[0] && crc_of_outputs(entry) == entry->first_crc;
}
