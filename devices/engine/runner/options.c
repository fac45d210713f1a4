#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "ranges.h"

#ifndef NNS_VERSION
#error "NNS_VERSION must be the version of nnstretch"
#endif

static const char usage[] =
    "Describes this machine, or times models against each other on it.\n"
    "\n"
    "usage: %s --probe\n"
    "       %s [options] MODEL.nnm...\n"
    "\n"
    "Prints one JSON object. Models run in turns, in an order drawn by the seed.\n"
    "\n"
    "  --probe             describe the machine\n"
    "  --seconds S         measuring time per model (default: 3)\n"
    "  --runs N            exactly N timed runs per model instead\n"
    "  --warmup S          untimed runs before, in seconds (default: 0.5)\n"
    "  --threads N         run on N cores (default: as compiled)\n"
    "  --cores LIST        run on these cores, as in 0-3,6\n"
    "  --seed N            of inputs and order (default: 0)\n"
    "  --input NAME=FILE   an input as raw little-endian numbers of its type, of every model; repeatable\n"
    "  --outputs FOLDER    write outputs as raw numbers, to FOLDER/MODEL-OUTPUT.bin, both numbered from 0\n"
    "  --timeline          add the begin and end of all steps of one run\n"
    "  --minutes M         run each model alone for M minutes, and report every second\n"
    "  --cool-down S       run each model alone, and wait S seconds between models\n"
    "  --cool-to C         run each model alone, once the CPU has at most C degrees Celsius, or after 10 minutes\n"
    "  --hottest C         the temperature of the CPU from which on the runner pauses or stops\n"
    "  --when-hot WHAT     pause (default; until the CPU is 5 degrees cooler) or stop\n"
    "  --list FILE         names of more models, one per line\n"
    "  --opencl LIBRARY    the OpenCL library to open (default: the usual names)\n"
    "  --device NAME       the OpenCL device, by number or a part of its name (default: as compiled)\n"
    "  --cache FOLDER      keep built OpenCL kernels here (default: build them for every model)\n"
    "  --trusted-sources   refuse OpenCL sources that the runner was not built with\n"
    "  --litert LIBRARY    the LiteRT library to open (default: NNSTRETCH_LITERT, or libLiteRt.so)\n"
    "  --accelerator NAME  LiteRT's cpu, builtin, gpu, npu, gpu+cpu or npu+cpu (default: as compiled)\n"
    "  --root FOLDER       read the description of the machine from FOLDER/sys and FOLDER/proc\n"
    "  --progress          report on the standard error\n"
    "  --version, --help\n"
    "\n"
    "exit status: 0 if every model ran, 1 if some failed, 2 if nothing could be done\n";

enum {
    PROBE = 256, SECONDS, RUNS, WARMUP, THREADS, CORES, SEED, INPUT, OUTPUTS, TIMELINE, MINUTES, COOL_DOWN, COOL_TO,
    HOTTEST, WHEN_HOT, LIST, OPENCL, DEVICE, CACHE, TRUSTED, LITERT, ACCELERATOR, ROOT, PROGRESS, VERSION, HELP,
};

static const struct option option_list[] = {
    {"probe", no_argument, NULL, PROBE},
    {"seconds", required_argument, NULL, SECONDS},
    {"runs", required_argument, NULL, RUNS},
    {"warmup", required_argument, NULL, WARMUP},
    {"threads", required_argument, NULL, THREADS},
    {"cores", required_argument, NULL, CORES},
    {"seed", required_argument, NULL, SEED},
    {"input", required_argument, NULL, INPUT},
    {"outputs", required_argument, NULL, OUTPUTS},
    {"timeline", no_argument, NULL, TIMELINE},
    {"minutes", required_argument, NULL, MINUTES},
    {"cool-down", required_argument, NULL, COOL_DOWN},
    {"cool-to", required_argument, NULL, COOL_TO},
    {"hottest", required_argument, NULL, HOTTEST},
    {"when-hot", required_argument, NULL, WHEN_HOT},
    {"list", required_argument, NULL, LIST},
    {"opencl", required_argument, NULL, OPENCL},
    {"device", required_argument, NULL, DEVICE},
    {"cache", required_argument, NULL, CACHE},
    {"trusted-sources", no_argument, NULL, TRUSTED},
    {"litert", required_argument, NULL, LITERT},
    {"accelerator", required_argument, NULL, ACCELERATOR},
    {"root", required_argument, NULL, ROOT},
    {"progress", no_argument, NULL, PROGRESS},
    {"version", no_argument, NULL, VERSION},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static const char *name_of(int option) {
    const struct option *at = option_list;
    while (at->val != option) at++;
    return at->name;
}

static int64_t whole(int option, int64_t low, int64_t high) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(optarg, &end, 10);
    if (errno || end == optarg || *end || value < low || value > high)
        nns_die("--%s %s: a whole number from %lld to %lld is wanted", name_of(option), optarg, (long long)low,
                (long long)high);
    return value;
}

static double real(int option, double low, double high) {
    char *end = NULL;
    errno = 0;
    const double value = strtod(optarg, &end);
    if (errno || end == optarg || *end || !(value >= low && value <= high))
        nns_die("--%s %s: a number from %g to %g is wanted", name_of(option), optarg, low, high);
    return value;
}

static void parse_cores(nns_options *options) {
    enum { MOST = NNS_MOST_OPTION_CORES };
    options->n_cores = nns_parse_ranges(optarg, ",+", MOST - 1, options->cores, MOST);
    if (options->n_cores < 0) nns_die("--cores %s: a list of cores such as 0-3,6 is wanted", optarg);
}

static void parse_input(nns_options *options) {
    char *equals = strchr(optarg, '=');
    if (!equals || equals == optarg || !equals[1]) nns_die("--input %s: NAME=FILE is wanted", optarg);
    if (options->n_inputs == NNS_MOST_INPUT_FILES) nns_die("more than %d inputs are given", NNS_MOST_INPUT_FILES);
    *equals = 0;
    for (int32_t i = 0; i < options->n_inputs; i++)
        if (!strcmp(options->inputs[i].name, optarg)) nns_die("--input %s is given twice", optarg);
    options->inputs[options->n_inputs++] = (nns_input_file){optarg, equals + 1};
}

static bool parse_when_hot(void) {
    const bool stops = !strcmp(optarg, "stop");
    if (!stops && strcmp(optarg, "pause")) nns_die("--when-hot %s: pause or stop is wanted", optarg);
    return stops;
}

static void parse_one(nns_options *options, int option, const char *program) {
    enum { DAY = 86400 };
    switch (option) {
    case PROBE: options->probe = true; break;
    case SECONDS: options->seconds = real(option, 0, DAY); break;
    case RUNS: options->runs = whole(option, 1, INT64_C(1000000000)); break;
    case WARMUP: options->warmup = real(option, 0, DAY); break;
    case THREADS: options->threads = (int32_t)whole(option, 1, NNS_MOST_OPTION_CORES); break;
    case CORES: parse_cores(options); break;
    case SEED: options->seed = (uint64_t)whole(option, 0, INT64_MAX); break;
    case INPUT: parse_input(options); break;
    case OUTPUTS: options->outputs = optarg; break;
    case TIMELINE: options->timeline = true; break;
    case MINUTES: options->minutes = real(option, 0.01, 7 * DAY / 60); break;
    case COOL_DOWN: options->cool_down = real(option, 0, DAY); break;
    case COOL_TO: options->cool_to = real(option, 0, 200); break;
    case HOTTEST: options->hottest = real(option, 0, 200); break;
    case WHEN_HOT: options->stops_when_hot = parse_when_hot(); break;
    case LIST: options->list = optarg; break;
    case OPENCL: options->opencl.library = optarg; break;
    case DEVICE: options->opencl.device = optarg; break;
    case CACHE: options->opencl.cache = optarg; break;
    case TRUSTED: options->opencl.trusted_sources = 1; break;
    case LITERT: options->litert.library = optarg; break;
    case ACCELERATOR: options->litert.accelerator = optarg; break;
    case ROOT: options->root = optarg; break;
    case PROGRESS: options->progress = true; break;
    case VERSION: puts("nns-bench " NNS_VERSION); exit(0);
    default: printf(usage, program, program); exit(0);
    }
}

static void add_models(nns_options *options, char **names, int32_t count) {
    char **models = realloc(options->models, ((size_t)options->n_models + (size_t)count + 1) * sizeof *models);
    if (!models) nns_die("no memory for the names of %d models", (int)(options->n_models + count));
    for (int32_t i = 0; i < count; i++) models[options->n_models++] = names[i];
    options->models = models;
}

static void read_list(nns_options *options) {
    FILE *file = fopen(options->list, "re");
    char *line = NULL;
    size_t size = 0;
    if (!file) nns_die("cannot open %s: %s", options->list, strerror(errno));
    while (getline(&line, &size, file) >= 0) {
        line[strcspn(line, "\r\n")] = 0;
        char *name = *line ? nns_copy_text(line) : NULL;
        if (name) add_models(options, &name, 1);
    }
    if (ferror(file)) nns_die("cannot read %s: %s", options->list, strerror(errno));
    free(line);
    fclose(file);
}

void nns_options_parse(nns_options *options, int count, char **words) {
    *options = (nns_options){.seconds = 3, .warmup = 0.5, .cool_to = NAN, .hottest = NAN, .root = ""};
    opterr = 0;
    const char *program = count ? words[0] : "nns-bench";
    for (int option; (option = getopt_long(count, words, ":", option_list, NULL)) != -1;) {
        const char *word = optind > 0 && optind <= count ? words[optind - 1] : "";
        if (option == ':') nns_die("%s needs an argument; see --help", word);
        if (option == '?') nns_die("unknown option %s; see --help", word);
        parse_one(options, option, program);
    }
    add_models(options, words + optind, count > optind ? count - optind : 0);
    if (options->list) read_list(options);
    if (options->probe && options->n_models) nns_die("--probe takes no models");
    if (!options->probe && !options->n_models) nns_die("no model is named; see --help");
    if (options->runs && options->minutes > 0) nns_die("--runs and --minutes exclude each other");
}
