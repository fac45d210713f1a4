/* The runner's command line. */
#ifndef NNS_OPTIONS_H
#define NNS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "nnstretch.h"

enum { NNS_MOST_INPUT_FILES = 64, NNS_MOST_OPTION_CORES = 1024 };

/* --input NAME=FILE. */
typedef struct {
    const char *name, *file;
} nns_input_file;

typedef struct {
    bool probe, progress, timeline;
    double seconds, warmup;
    int64_t runs;    /* 0: by `seconds` */
    double minutes;  /* of a sustained run; 0: none */
    double cool_down; /* seconds; 0: none */
    double cool_to;   /* degrees Celsius; NaN: none */
    double hottest;   /* degrees Celsius; NaN: none */
    bool stops_when_hot;
    int32_t threads; /* 0: as compiled */
    int32_t cores[NNS_MOST_OPTION_CORES], n_cores;
    uint64_t seed;
    nns_input_file inputs[NNS_MOST_INPUT_FILES];
    int32_t n_inputs;
    const char *outputs; /* folder or NULL */
    const char *list; /* file with names of models or NULL */
    nns_opencl_options opencl;
    nns_litert_options litert;
    const char *root; /* of /sys and /proc */
    char **models; /* of the command line, then of the list */
    int32_t n_models;
} nns_options;

/* Parses the command line; ends the runner with status 2 if it is wrong, and with 0 for --help and --version. */
void nns_options_parse(nns_options *options, int count, char **words);

#endif
