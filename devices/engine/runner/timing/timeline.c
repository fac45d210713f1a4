/* The timeline of an entry. */
#include <stdlib.h>
#include <string.h>

#include "models/entry.h"
#include "fail.h"

static bool has_opencl(const nns_model *model) {
    for (int32_t i = 0; i < nns_model_queue_count(model); i++)
        if (!strcmp(nns_model_queue(model, i)->kind, "opencl")) return true;
    return false;
}

/* The model with queues that say when a device ran each step. The timed model has none: profiling takes time. */
static nns_model *load_profiled(nns_entry *entry, const nns_options *options) {
    nns_opencl_options opencl = options->opencl;
    opencl.profiling = 1;
    const nns_model_options on = nns_entry_model_options(options, &opencl);
    nns_model *model = NULL;
    nns_model_load(entry->file, &on, &model, entry->error, sizeof entry->error);
    return model;
}

static void write_timeline(nns_entry *entry, nns_span whole, const nns_span *steps) {
    size_t size = 0;
    nns_json json = nns_json_open_text(&entry->timeline, &size);
    nns_json_array(&json, "timeline");
    for (int32_t i = 0; i < nns_model_step_count(entry->model); i++) {
        const nns_step_info *step = nns_model_step(entry->model, i);
        nns_json_object(&json, NULL);
        nns_json_text(&json, "step", step->kernel);
        nns_json_integer(&json, "queue", step->queue);
        nns_json_integer(&json, "begin", steps[i].begin - whole.begin);
        nns_json_integer(&json, "end", steps[i].end - whole.begin);
        nns_json_end_object(&json);
    }
    nns_json_end_array(&json);
    nns_json_close_text(&json);
}

void nns_entry_trace(nns_entry *entry, const nns_options *options) {
    const int32_t n_inputs = nns_model_input_count(entry->model), n_outputs = nns_model_output_count(entry->model);
    nns_span whole, *steps = nns_new((size_t)nns_model_step_count(entry->model), sizeof *steps);
    const bool is_profiled = has_opencl(entry->model);
    nns_model *model = is_profiled ? load_profiled(entry, options) : entry->model;
    if (is_profiled && model) /* the first run of a device takes longer */
        nns_model_run(model, entry->inputs, n_inputs, entry->outputs, n_outputs, entry->error, sizeof entry->error);
    if (model && !entry->error[0] &&
        !nns_model_run_traced(model, entry->inputs, n_inputs, entry->outputs, n_outputs, &whole, steps, entry->error,
                              sizeof entry->error))
        write_timeline(entry, whole, steps);
    if (is_profiled) nns_model_free(model);
    free(steps);
}
