/* The functions of nnstretch.h: loads a model file as a program of the engine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu_features.h"
#include "file.h"
#include "image.h"
#include "nns_engine.h"
#include "nnstretch.h"

#ifndef NNS_ISA
#error "NNS_ISA must be the name of the instruction set, NNS_ISA_LEVEL its level (x86-64-v2: 2, aarch64: 1)"
#endif

enum { HUGE_PAGE = 2 << 20, FEATURES_TEXT = 256 };

struct nns_model {
    nns_file file;
    nns_image image;
    nns_program *program;
    void *arena; /* NULL if the model needs none */
    char features[FEATURES_TEXT];
};

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
    const int64_t n_tensors = image->n_inputs + image->n_outputs;
    nns_region *regions = calloc((size_t)n_tensors + 2, sizeof *regions);
    if (!regions) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    regions[n_tensors].host = model->arena;
    /* Mapped read-only; nns_image_make refuses steps that write to it. */
    memcpy(&regions[n_tensors + 1].host, &model->file.constants, sizeof(void *));
    const nns_bindings bindings = {.regions = regions};
    report->status =
        nns_program_create(image->image, image->words, &bindings, &model->program, report->text, sizeof report->text);
    free(regions);
    return report->status;
}

static void name_features(nns_model *model) {
    size_t used = 0;
    for (int32_t bit = 0; nns_cpu_feature_name(bit) && used < FEATURES_TEXT; bit++)
        if (model->image.features >> bit & 1)
            used += (size_t)snprintf(model->features + used, FEATURES_TEXT - used, used ? ",%s" : "%s",
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
    return make_program(model, report);
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

void nns_model_free(nns_model *model) {
    if (!model) return;
    nns_program_destroy(model->program);
    if (model->arena) munmap(model->arena, (size_t)model->image.arena_bytes);
    nns_image_free(&model->image);
    nns_file_close(&model->file);
    free(model);
}

const char *nns_library_isa(void) { return NNS_ISA; }

const char *nns_model_name(const nns_model *model) { return model->image.name; }

int32_t nns_model_threads(const nns_model *model) { return model->image.threads; }

const char *nns_model_features(const nns_model *model) { return model->features; }

int32_t nns_model_input_count(const nns_model *model) { return model->image.n_inputs; }

int32_t nns_model_output_count(const nns_model *model) { return model->image.n_outputs; }

const nns_tensor *nns_model_input(const nns_model *model, int32_t index) {
    return index >= 0 && index < model->image.n_inputs ? &model->image.tensors[index] : NULL;
}

const nns_tensor *nns_model_output(const nns_model *model, int32_t index) {
    const nns_image *image = &model->image;
    return index >= 0 && index < image->n_outputs ? &image->tensors[image->n_inputs + index] : NULL;
}

int nns_model_run(nns_model *model, const float *const *inputs, float *const *outputs, char *error,
                  size_t error_size) {
    return nns_program_run(model->program, (const void *const *)inputs, (void *const *)outputs, NULL, error,
                           (int64_t)error_size);
}
