/* The executable of `nnstretch compile --standalone`: runs a model and reports its latency. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "elements.h"
#include "fail.h"
#include "nnstretch.h"
#include "ranges.h"

enum { MOST_FILES = 64, MOST_CORES = 1024, PATH_MOST = 4096, ERROR_BYTES = 512, DEFAULT_RUNS = 10 };

typedef struct {
    const char *model;
    nns_model_options on;
    nns_opencl_options opencl;
    nns_litert_options litert;
    int32_t cores[MOST_CORES];
    int64_t runs;
    bool info;
    const char *outputs[MOST_FILES];
    int32_t n_outputs;
    char **inputs;
    int32_t n_inputs;
} arguments;

static const char usage[] =
    "Runs a model and reports its latency.\n"
    "\n"
    "usage: %s [options] [INPUT...]\n"
    "\n"
    "INPUT: one file per input of the model, .npy or raw little-endian numbers of its type; default: noise.\n"
    "\n"
    "  -m, --model FILE     the model (default: the name of this program with .nnm appended)\n"
    "  -o, --output FILE    write an output, .npy or raw; once per output, in their order\n"
    "  -t, --threads N      run on N cores (default: as compiled, or all available cores)\n"
    "  -c, --cores LIST     run on these cores, as in 0-3+6\n"
    "  -n, --repeat N       number of timed runs after the first (default: 10)\n"
    "  -i, --info           print the model's inputs, outputs and queues, and the CPU features that it uses\n"
    "      --opencl FILE    the OpenCL library (default: NNSTRETCH_OPENCL_LIBRARY, or the usual names)\n"
    "      --device NAME    the OpenCL device, by number or a part of its name (default: as compiled)\n"
    "      --cache FOLDER   keep built OpenCL kernels here (default: build them at each start)\n"
    "      --trusted-sources  refuse OpenCL sources that this program was not built with\n"
    "      --litert FILE    the LiteRT library (default: NNSTRETCH_LITERT, or libLiteRt.so)\n"
    "      --accelerator NAME  LiteRT's cpu, builtin, gpu, npu, gpu+cpu or npu+cpu (default: as compiled)\n"
    "  -h, --help           this text\n"
    "\n"
    "example: %s image.npy --output classes.npy --repeat 100\n";

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- arguments -------------------------------------------------------------------------------------------- */

static int64_t number(const char *text, const char *option, int64_t low, int64_t high) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        nns_die("%s %s: a number from %lld to %lld is wanted", option, text, (long long)low, (long long)high);
    return value;
}

static void parse_cores(arguments *a, const char *text) {
    a->on.n_cores = nns_parse_ranges(text, ",+", MOST_CORES - 1, a->cores, MOST_CORES);
    if (a->on.n_cores < 0) nns_die("--cores %s is no list of cores such as 0-3+6", text);
    a->on.cores = a->cores;
}

static void add_output(arguments *a, const char *path) {
    if (a->n_outputs == MOST_FILES) nns_die("more than %d outputs are named", MOST_FILES);
    a->outputs[a->n_outputs++] = path;
}

static void parse(arguments *a, int count, char **words) {
    enum { OPENCL = 256, DEVICE, CACHE, TRUSTED, LITERT, ACCELERATOR };
    static const struct option options[] = {
        {"opencl", required_argument, NULL, OPENCL},
        {"device", required_argument, NULL, DEVICE},
        {"cache", required_argument, NULL, CACHE},
        {"trusted-sources", no_argument, NULL, TRUSTED},
        {"litert", required_argument, NULL, LITERT},
        {"accelerator", required_argument, NULL, ACCELERATOR},
        {"model", required_argument, NULL, 'm'},  {"output", required_argument, NULL, 'o'},
        {"threads", required_argument, NULL, 't'}, {"cores", required_argument, NULL, 'c'},
        {"repeat", required_argument, NULL, 'n'}, {"info", no_argument, NULL, 'i'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    a->runs = DEFAULT_RUNS;
    for (int option; (option = getopt_long(count, words, "m:o:t:c:n:ih", options, NULL)) != -1;) {
        switch (option) {
        case 'm': a->model = optarg; break;
        case 'o': add_output(a, optarg); break;
        case 't': a->on.threads = (int32_t)number(optarg, "--threads", 1, MOST_CORES); break;
        case 'c': parse_cores(a, optarg); break;
        case 'n': a->runs = number(optarg, "--repeat", 0, 1000000); break;
        case 'i': a->info = true; break;
        case OPENCL: a->opencl.library = optarg; break;
        case DEVICE: a->opencl.device = optarg; break;
        case CACHE: a->opencl.cache = optarg; break;
        case TRUSTED: a->opencl.trusted_sources = 1; break;
        case LITERT: a->litert.library = optarg; break;
        case ACCELERATOR: a->litert.accelerator = optarg; break;
        case 'h': printf(usage, words[0], words[0]); exit(0);
        default: fprintf(stderr, "see %s --help\n", words[0]); exit(2);
        }
    }
    a->on.opencl = &a->opencl;
    a->on.litert = &a->litert;
    a->inputs = words + optind;
    a->n_inputs = count - optind;
}

/* The model beside this program. */
static const char *own_model(char *path) {
    static const char suffix[] = ".nnm";
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MOST - sizeof suffix);
    if (length < 0) nns_die("cannot find the path of this program; name the model with --model");
    memcpy(path + length, suffix, sizeof suffix);
    return path;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static void *new_array(const nns_tensor *tensor) {
    void *array = malloc((size_t)tensor->bytes);
    if (!array) nns_die("no memory for %lld numbers of %s", (long long)tensor->count, tensor->name);
    return array;
}

/* The same numbers on every machine (a linear congruential generator), of floating-point types from -1 to 1. */
static void fill_noise(const nns_tensor *tensor, void *array) {
    uint32_t state = 1;
    for (int64_t i = 0; i < tensor->count; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        const double value = (double)(state >> 8) * 0x1p-23 - 1;
        nns_set_element(tensor, array, i, nns_random_number(tensor, value, state >> 24));
    }
}

static nns_input *make_inputs(const arguments *a, const nns_model *model) {
    const int32_t count = nns_model_input_count(model);
    if (a->n_inputs && a->n_inputs != count)
        nns_die("%d input%s given, the model has %d (--info lists them)", (int)a->n_inputs,
                a->n_inputs == 1 ? " is" : "s are", (int)count);
    nns_input *inputs = calloc((size_t)count + 1, sizeof *inputs);
    if (!inputs) nns_die("no memory for %d inputs", (int)count);
    for (int32_t i = 0; i < count; i++) {
        const nns_tensor *tensor = nns_model_input(model, i);
        void *array = new_array(tensor);
        if (a->n_inputs)
            nns_array_read(a->inputs[i], tensor, array);
        else
            fill_noise(tensor, array);
        inputs[i] = (nns_input){array, tensor->bytes};
    }
    return inputs;
}

static nns_output *make_outputs(const arguments *a, const nns_model *model) {
    const int32_t count = nns_model_output_count(model);
    if (a->n_outputs > count)
        nns_die("%d files for outputs are named, the model has %d outputs", (int)a->n_outputs, (int)count);
    for (int32_t i = 0; i < a->n_outputs; i++) nns_array_check_writable(a->outputs[i]);
    nns_output *outputs = calloc((size_t)count + 1, sizeof *outputs);
    if (!outputs) nns_die("no memory for %d outputs", (int)count);
    for (int32_t i = 0; i < count; i++) {
        const nns_tensor *tensor = nns_model_output(model, i);
        outputs[i] = (nns_output){new_array(tensor), tensor->bytes};
    }
    return outputs;
}

static double run(nns_model *model, const nns_input *inputs, const nns_output *outputs) {
    char error[ERROR_BYTES];
    const double begin = milliseconds();
    if (nns_model_run(model, inputs, nns_model_input_count(model), outputs, nns_model_output_count(model), error,
                      sizeof error))
        nns_die("%s", error);
    return milliseconds() - begin;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_runs(nns_model *model, const nns_input *inputs, const nns_output *outputs, int64_t runs) {
    double *times = malloc((size_t)runs * sizeof *times);
    if (!times) nns_die("no memory for the times of %lld runs", (long long)runs);
    for (int64_t i = 0; i < runs; i++) times[i] = run(model, inputs, outputs);
    qsort(times, (size_t)runs, sizeof *times, ascending);
    const double median = (times[(runs - 1) / 2] + times[runs / 2]) / 2;
    printf("%lld more runs: median %.3f ms, p90 %.3f ms, min %.3f ms\n", (long long)runs, median,
           times[(runs * 9 + 9) / 10 - 1], times[0]);
    free(times);
}

/* ---- output ----------------------------------------------------------------------------------------------- */

static void print_queue(const nns_queue_info *queue, int32_t number) {
    printf("queue %d: %s", (int)number, queue->kind);
    if (queue->device) printf(" %s", queue->device);
    for (int32_t i = 0; i < queue->n_cores; i++)
        printf("%s%d", i ? "+" : queue->n_cores > 1 ? ", cores " : ", core ", (int)queue->cores[i]);
    putchar('\n');
}

static void print_tensor(const char *what, const nns_tensor *tensor) {
    char shape[NNS_SHAPE_TEXT];
    printf("%s %s: %s %s\n", what, tensor->name, nns_dtype_name(tensor->dtype), nns_shape_text(tensor, shape));
}

static void print_model(const nns_model *model) {
    const char *features = nns_model_features(model);
    printf("%s on %d thread%s, %s%s%s\n", nns_model_name(model), (int)nns_model_threads(model),
           nns_model_threads(model) == 1 ? "" : "s", nns_library_isa(), *features ? " + " : "", features);
    for (int32_t i = 0; i < nns_model_input_count(model); i++) print_tensor("input", nns_model_input(model, i));
    for (int32_t i = 0; i < nns_model_output_count(model); i++) print_tensor("output", nns_model_output(model, i));
    for (int32_t i = 0; i < nns_model_queue_count(model); i++) print_queue(nns_model_queue(model, i), i);
}

static void print_output(const nns_tensor *tensor, const void *array) {
    int64_t smallest = 0, largest = 0;
    for (int64_t i = 1; i < tensor->count; i++) {
        if (nns_element(tensor, array, i) < nns_element(tensor, array, smallest)) smallest = i;
        if (nns_element(tensor, array, i) > nns_element(tensor, array, largest)) largest = i;
    }
    const int digits = nns_is_floating(tensor) ? 6 : 17;
    printf("output %s: from %.*g at %lld to %.*g at %lld\n", tensor->name, digits,
           nns_element(tensor, array, smallest), (long long)smallest, digits, nns_element(tensor, array, largest),
           (long long)largest);
}

static void run_and_print(const arguments *a, nns_model *model, double loaded) {
    nns_input *inputs = make_inputs(a, model);
    nns_output *outputs = make_outputs(a, model);
    const double first = run(model, inputs, outputs);
    print_model(model);
    printf("loaded in %.3f ms, first run %.3f ms\n", loaded, first);
    if (a->runs) time_runs(model, inputs, outputs, a->runs);
    for (int32_t i = 0; i < nns_model_output_count(model); i++) {
        print_output(nns_model_output(model, i), outputs[i].data);
        if (i < a->n_outputs) nns_array_write(a->outputs[i], nns_model_output(model, i), outputs[i].data);
        free(outputs[i].data);
    }
    for (int32_t i = 0; i < nns_model_input_count(model); i++) free((void *)inputs[i].data);
    free(outputs);
    free(inputs);
}

int main(int count, char **words) {
    static arguments a;
    char path[PATH_MOST], error[ERROR_BYTES];
    parse(&a, count, words);
    nns_model *model = NULL;
    const double begin = milliseconds();
    if (nns_model_load(a.model ? a.model : own_model(path), &a.on, &model, error, sizeof error)) nns_die("%s", error);
    const int32_t threads = nns_model_threads(model);
    if (a.on.threads > threads)
        fprintf(stderr, "warning: --threads is %d, and %d %s used: there are no more cores for this model\n",
                (int)a.on.threads, (int)threads, threads == 1 ? "is" : "are");
    if (a.info)
        print_model(model);
    else
        run_and_print(&a, model, milliseconds() - begin);
    nns_model_free(model);
    if (fflush(stdout) || ferror(stdout)) nns_die("cannot write to the standard output: %s", strerror(errno));
    return 0;
}
