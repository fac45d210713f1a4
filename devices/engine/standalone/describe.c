/* The description of a loaded model: its tensors, queues and steps. */
#include <stdlib.h>

#include "model.h"
#include "program/program.h"
#include "program/reader.h"

static void describe_queue(const nns_model *model, int32_t index, nns_queue_info *info) {
    const nns_queue *queue = &model->program->queues[index];
    const char *device = nns_ocl_host_device(model->devices, index);
    const char *accelerator = nns_litert_host_device(model->calls, index);
    const char *kind = device ? "opencl" : accelerator ? "litert" : "cpu";
    *info = (nns_queue_info){kind, queue->cores, queue->n_cores, device ? device : accelerator};
}

static const char *name_of_step(const nns_model *model, const nns_step *step) {
    switch (step->kind) {
    case NNS_STEP_OPENCL: return model->image.devices.launches[step->id].kernel;
    case NNS_STEP_CALL: return model->image.calls.calls[step->id].name;
    default: return step->kernel->name;
    }
}

static void describe_steps(const nns_model *model, const nns_subgraph *subgraph, nns_step_info *steps) {
    for (int64_t i = subgraph->first; i < subgraph->end; i++) {
        const nns_step *step = &model->program->steps[i];
        steps[i] = (nns_step_info){.kernel = name_of_step(model, step), .queue = subgraph->queue};
    }
}

int32_t nns_model_describe(nns_model *model, nns_report *report) {
    const nns_program *program = model->program;
    model->n_queues = (int32_t)program->n_queues;
    model->n_steps = (int32_t)program->n_steps;
    model->n_subgraphs = (int32_t)program->n_subgraphs;
    model->queues = nns_new_array(report, program->n_queues, sizeof *model->queues);
    model->steps = nns_new_array(report, program->n_steps, sizeof *model->steps);
    if (report->status) return report->status;
    for (int32_t i = 0; i < model->n_queues; i++) describe_queue(model, i, &model->queues[i]);
    for (int64_t i = 0; i < program->n_subgraphs; i++) describe_steps(model, &program->subgraphs[i], model->steps);
    return NNS_OK;
}

const char *nns_model_name(const nns_model *model) { return model->image.name; }

int32_t nns_model_threads(const nns_model *model) { return model->image.threads; }

const char *nns_model_features(const nns_model *model) { return model->features; }

int64_t nns_model_weight_bytes(const nns_model *model) { return (int64_t)model->file.map_bytes; }

int64_t nns_model_activation_bytes(const nns_model *model) { return model->image.arena_bytes; }

int32_t nns_model_input_count(const nns_model *model) { return model->image.n_inputs; }

int32_t nns_model_output_count(const nns_model *model) { return model->image.n_outputs; }

const nns_tensor *nns_model_input(const nns_model *model, int32_t index) {
    return index >= 0 && index < model->image.n_inputs ? &model->image.tensors[index] : NULL;
}

const nns_tensor *nns_model_output(const nns_model *model, int32_t index) {
    const nns_image *image = &model->image;
    return index >= 0 && index < image->n_outputs ? &image->tensors[image->n_inputs + index] : NULL;
}

int32_t nns_model_queue_count(const nns_model *model) { return model->n_queues; }

const nns_queue_info *nns_model_queue(const nns_model *model, int32_t index) {
    return index >= 0 && index < model->n_queues ? &model->queues[index] : NULL;
}

int32_t nns_model_step_count(const nns_model *model) { return model->n_steps; }

const nns_step_info *nns_model_step(const nns_model *model, int32_t index) {
    return index >= 0 && index < model->n_steps ? &model->steps[index] : NULL;
}
