/* The functions of nnstretch.h: loads a model file as a program of the engine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/cpu_features.h"
#include "model.h"
#include "program/reader.h"

#ifndef NNS_ISA
#error "NNS_ISA must be the name of the instruction set, NNS_ISA_LEVEL its level (x86-64-v2: 2, aarch64: 1)"
#endif

enum { HUGE_PAGE = 2 << 20 };

/* Allocates zeroed memory for activations, in huge pages if available: each run touches all of it. */
static int32_t make_arena(nns_model *model, nns_report *report) {
    const size_t bytes = (size_t)model->image.arena_bytes;
    if (!bytes) return NNS_OK;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return nns_fail(report, NNS_EMEMORY, "no memory for the model's %lld bytes of activations: %s",
                        (long long)bytes, strerror(errno));
    model->arena = memory;
    if (bytes >= HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE);
    return NNS_OK;
}

static int32_t make_program(nns_model *model, nns_report *report) {
    const nns_image *image = &model->image;
    const int64_t n_tensors = image->n_inputs + image->n_outputs, first_slot = n_tensors + 2;
    void *queues[NNS_MAX_QUEUES] = {NULL};
    nns_region *regions = nns_new_array(report, first_slot + image->devices.n_slots, sizeof *regions);
    if (!regions) return report->status;
    regions[n_tensors].host = model->arena;
    /* Mapped read-only; nns_image_make refuses steps that write to it. */
    memcpy(&regions[n_tensors + 1].host, &model->file.constants, sizeof(void *));
    nns_bindings bindings = {.regions = regions};
    if (model->devices) nns_ocl_host_bind(model->devices, &bindings, regions + first_slot, queues);
    if (model->calls) {
        bindings.call = nns_litert_host_call;
        bindings.call_context = model->calls;
    }
    report->status =
        nns_program_create(image->image, image->words, &bindings, &model->program, report->text, sizeof report->text);
    free(regions);
    if (!report->status && model->devices) nns_ocl_host_record(model->devices, model->program);
    return report->status;
}

static int32_t open_devices(nns_model *model, const nns_model_options *options, nns_report *report) {
    const nns_ocl_plan *devices = &model->image.devices;
    if (!devices->n_queues) return NNS_OK;
    return nns_ocl_host_create(devices, options ? options->opencl : NULL, &model->devices, report);
}

static int32_t open_calls(nns_model *model, const nns_model_options *options, nns_report *report) {
    const nns_litert_plan *calls = &model->image.calls;
    if (!calls->n_queues) return NNS_OK;
    return nns_litert_host_create(calls, options ? options->litert : NULL, &model->calls, report);
}

static void name_features(nns_model *model) {
    size_t used = 0;
    for (int32_t bit = 0; nns_cpu_feature_name(bit) && used < NNS_FEATURES_TEXT; bit++)
        if (model->image.features >> bit & 1)
            used += (size_t)snprintf(model->features + used, NNS_FEATURES_TEXT - used, used ? ",%s" : "%s",
                                     nns_cpu_feature_name(bit));
}

static int32_t load(nns_model *model, const char *path, const nns_model_options *options, nns_report *report) {
    const char *missing = nns_features_missing(nns_features_of_level(NNS_ISA_LEVEL));
    if (missing)
        return nns_fail(report, NNS_EINVALID, "this CPU lacks %s, which %s has; compile the model for another --target",
                        missing, nns_library_isa());
    if (!path) return nns_fail(report, NNS_EINVALID, "no model file is named");
    if (nns_file_open(path, &model->file, report)) return report->status;
    if (nns_image_make(&model->file, options, &model->image, report)) return report->status;
    name_features(model);
    if (make_arena(model, report)) return report->status;
    if (open_devices(model, options, report)) return report->status;
    if (open_calls(model, options, report)) return report->status;
    if (make_program(model, report)) return report->status;
    return nns_model_describe(model, report);
}

int nns_model_load(const char *path, const nns_model_options *options, nns_model **model, char *error,
                   size_t error_size) {
    nns_report report = {0};
    *model = NULL;
    nns_model *made = calloc(1, sizeof *made);
    if (!made) {
        nns_fail(&report, NNS_EMEMORY, "no memory for a model");
    } else if (load(made, path, options, &report)) {
        nns_model_free(made);
    } else {
        *model = made;
    }
    return nns_answer(&report, error, (int64_t)error_size);
}

/* Loads with options that end after `known` bytes. */
static int load_knowing(size_t known, const char *path, const nns_model_options *options, nns_model **model, char *error,
                        size_t error_size) {
    nns_model_options all = {0};
    if (options) memcpy(&all, options, known);
    return nns_model_load(path, &all, model, error, error_size);
}

/* The function of older headers, whose options end with `n_cores`. */
NNS_API int load_on_cores(const char *path, const nns_model_options *options, nns_model **model, char *error,
                          size_t error_size) __asm__("nns_model_load");

int load_on_cores(const char *path, const nns_model_options *options, nns_model **model, char *error,
                  size_t error_size) {
    const size_t known = offsetof(nns_model_options, n_cores) + sizeof options->n_cores;
    return load_knowing(known, path, options, model, error, error_size);
}

/* The function of later headers, whose options end with `opencl`. */
NNS_API int load_on_devices(const char *path, const nns_model_options *options, nns_model **model, char *error,
                            size_t error_size) __asm__("nns_model_load_on");

int load_on_devices(const char *path, const nns_model_options *options, nns_model **model, char *error,
                    size_t error_size) {
    const size_t known = offsetof(nns_model_options, opencl) + sizeof options->opencl;
    return load_knowing(known, path, options, model, error, error_size);
}

void nns_model_free(nns_model *model) {
    if (!model) return;
    free(model->queues);
    free(model->steps);
    nns_program_destroy(model->program);
    nns_ocl_host_free(model->devices);
    nns_litert_host_free(model->calls);
    if (model->arena) munmap(model->arena, (size_t)model->image.arena_bytes);
    nns_image_free(&model->image);
    nns_file_close(&model->file);
    free(model);
}

/* Checks the size of one input or output of a run. */
static int32_t check_size(const char *what, const nns_tensor *tensor, int64_t bytes, nns_report *report) {
    if (bytes == tensor->bytes) return NNS_OK;
    return nns_fail(report, NNS_EINVALID, "%s %.60s has %lld bytes and needs %lld: %lld %s numbers", what, tensor->name,
                    (long long)bytes, (long long)tensor->bytes, (long long)tensor->count,
                    nns_dtype_name(tensor->dtype));
}

static int32_t check_sizes(const nns_image *image, const nns_feeds *feeds, nns_report *report) {
    if (feeds->n_inputs != image->n_inputs || feeds->n_outputs != image->n_outputs)
        return nns_fail(report, NNS_EINVALID,
                        "the run has %lld inputs and %lld outputs, the model has %d inputs and %d outputs",
                        (long long)feeds->n_inputs, (long long)feeds->n_outputs, (int)image->n_inputs,
                        (int)image->n_outputs);
    const nns_tensor *tensor = image->tensors;
    for (int32_t i = 0; feeds->inputs && i < image->n_inputs; i++)
        TRY(check_size("input", tensor++, feeds->inputs[i].bytes, report));
    for (int32_t i = 0; feeds->outputs && i < image->n_outputs; i++)
        TRY(check_size("output", tensor++, feeds->outputs[i].bytes, report));
    return NNS_OK;
}

static int run(nns_model *model, const nns_feeds *feeds, nns_trace *trace, char *error, size_t error_size) {
    nns_report report = {0};
    if (check_sizes(&model->image, feeds, &report)) return nns_answer(&report, error, (int64_t)error_size);
    if (model->devices) nns_ocl_host_activate(model->devices);
    report.status = nns_program_run(model->program, feeds, trace, report.text, sizeof report.text);
    if (report.status == NNS_ECALL && model->calls) nns_litert_host_failure(model->calls, &report);
    return nns_answer(&report, error, (int64_t)error_size);
}

int nns_model_run(nns_model *model, const nns_input *inputs, int32_t n_inputs, const nns_output *outputs,
                  int32_t n_outputs, char *error, size_t error_size) {
    const nns_feeds feeds = {inputs, outputs, n_inputs, n_outputs};
    return run(model, &feeds, NULL, error, error_size);
}

int nns_model_run_traced(nns_model *model, const nns_input *inputs, int32_t n_inputs, const nns_output *outputs,
                         int32_t n_outputs, nns_span *whole, nns_span *steps, char *error, size_t error_size) {
    const nns_feeds feeds = {inputs, outputs, n_inputs, n_outputs};
    nns_report report = {0};
    int64_t *times = nns_new_array(&report, 2 * ((int64_t)model->n_steps + model->n_subgraphs), sizeof *times);
    if (!times) return nns_answer(&report, error, (int64_t)error_size);
    nns_trace trace = {.steps = times, .waits = times + 2 * (size_t)model->n_steps};
    const int status = run(model, &feeds, &trace, error, error_size);
    *whole = (nns_span){trace.begin, trace.end};
    for (int32_t i = 0; i < model->n_steps; i++) steps[i] = (nns_span){times[2 * i], times[2 * i + 1]};
    free(times);
    return status;
}

void nns_model_trim(nns_model *model) {
    /* Every run writes activations before it reads them. */
    if (model->arena) madvise(model->arena, (size_t)model->image.arena_bytes, MADV_DONTNEED);
}

const char *nns_library_isa(void) { return NNS_ISA; }
