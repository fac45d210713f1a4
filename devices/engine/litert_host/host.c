#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "program/reader.h"
#include "threads/threads.h"

enum { MOST_FOLDER = 4096, MOST_OPTIONS = 5, MOST_SETTINGS = 64 };

static const struct {
    const char *name;
    int32_t set;
    const char *cpu; /* settings of the CPU accelerator */
} accelerators[] = {
    [NNS_LITERT_CPU] = {"cpu", LITERT_CPU, ""},
    [NNS_LITERT_BUILTIN] = {"builtin", LITERT_CPU, "kernel_mode = \"builtin\"\n"},
    [NNS_LITERT_GPU] = {"gpu", LITERT_GPU, ""},
    [NNS_LITERT_NPU] = {"npu", LITERT_NPU, ""},
    [NNS_LITERT_GPU_CPU] = {"gpu+cpu", LITERT_GPU | LITERT_CPU, ""},
    [NNS_LITERT_NPU_CPU] = {"npu+cpu", LITERT_NPU | LITERT_CPU, ""},
};

struct nns_litert_host {
    const nns_litert_plan *plan;
    nns_litert litert;
    char folder[MOST_FOLDER]; /* of the library; "" if its path has none */
    int32_t accelerators[NNS_MAX_QUEUES];
    nns_litert_work *works; /* of the plan's calls */
    pid_t process;
    pthread_mutex_t lock; /* of `failure` */
    nns_report failure;   /* of a call, the most recent one */
};

void nns_litert_plan_free(nns_litert_plan *plan) {
    for (int64_t i = 0; plan->calls && i < plan->n_calls; i++) free(plan->calls[i].tensors);
    free(plan->calls);
    *plan = (nns_litert_plan){0};
}

/* ---- accelerators ----------------------------------------------------------------------------------------- */

/* Decides what computes each queue: what the options say, or the plan. */
static int32_t choose(nns_litert_host *host, const char *wanted, nns_report *report) {
    int32_t chosen = NNS_LITERT_ACCELERATORS;
    for (int32_t i = 0; wanted && i < NNS_LITERT_ACCELERATORS; i++)
        if (!strcmp(wanted, accelerators[i].name)) chosen = i;
    if (wanted && chosen == NNS_LITERT_ACCELERATORS)
        return nns_fail(report, NNS_EINVALID, "LiteRT has no accelerator %.40s; name cpu, builtin, gpu, npu, gpu+cpu or npu+cpu",
                        wanted);
    for (int64_t i = 0; i < host->plan->n_queues; i++)
        host->accelerators[i] = wanted ? chosen : host->plan->queues[i].accelerator;
    return NNS_OK;
}

static int32_t wanted_set(const nns_litert_host *host) {
    int32_t set = 0;
    for (int64_t i = 0; i < host->plan->n_queues; i++) set |= accelerators[host->accelerators[i]].set;
    return set;
}

#define ASK(host, name, ...)                                                                                            \
    do {                                                                                                                \
        const int32_t code_ = (host)->litert.functions.name(__VA_ARGS__);                                               \
        if (code_) return nns_litert_fail("list its accelerators", NULL, "LiteRt" #name, code_, report);                      \
    } while (0)

/* Checks that the library has the wanted accelerators: without one, LiteRT would leave all layers to the CPU. */
static int32_t check_accelerators(const nns_litert_host *host, nns_report *report) {
    size_t count = 0;
    int32_t found = 0;
    ASK(host, GetNumAccelerators, host->litert.environment, &count);
    for (size_t i = 0; i < count; i++) {
        litert_handle accelerator = NULL;
        int32_t set = 0;
        ASK(host, GetAccelerator, host->litert.environment, i, &accelerator);
        ASK(host, GetAcceleratorHardwareSupport, accelerator, &set);
        found |= set;
    }
    for (int64_t i = 0; i < host->plan->n_queues; i++) {
        const int32_t accelerator = host->accelerators[i];
        if (accelerators[accelerator].set & ~found)
            return nns_fail(report, NNS_EINVALID,
                            "LiteRT finds no accelerator %s on this machine; put its library beside LiteRT's, or name another "
                            "accelerator, such as cpu",
                            accelerators[accelerator].name);
    }
    return NNS_OK;
}

/* ---- the environment -------------------------------------------------------------------------------------- */

static void find_folder(nns_litert_host *host, const char *library) {
    const char *slash = strrchr(library, '/');
    if (slash && slash - library < MOST_FOLDER) memcpy(host->folder, library, (size_t)(slash - library));
}

static litert_option text_option(int32_t option, const char *text) {
    litert_option made = {.option = option, .value = {.type = LITERT_TEXT}};
    made.value.text = text;
    return made;
}

static litert_option integer_option(int32_t option, int64_t integer) {
    litert_option made = {.option = option, .value = {.type = LITERT_INTEGER}};
    made.value.integer = integer;
    return made;
}

static int32_t make_environment(nns_litert_host *host, nns_report *report) {
    const int32_t set = wanted_set(host);
    litert_option options[MOST_OPTIONS] = {
        integer_option(LITERT_LEAST_SEVERITY, LITERT_SILENT),
        integer_option(LITERT_LOADED_ACCELERATORS, set),
    };
    int32_t count = 2;
    if (*host->folder) options[count++] = text_option(LITERT_RUNTIME_FOLDER, host->folder);
    if (*host->folder && set & LITERT_NPU) {
        options[count++] = text_option(LITERT_DISPATCH_FOLDER, host->folder);
        options[count++] = text_option(LITERT_COMPILER_PLUGIN_FOLDER, host->folder);
    }
    const int32_t code = host->litert.functions.CreateEnvironment(count, options, &host->litert.environment);
    return code ? nns_litert_fail("begin", NULL, "LiteRtCreateEnvironment", code, report) : NNS_OK;
}

/* ---- all together ----------------------------------------------------------------------------------------- */

/* Makes a call ready on the cores of its queue, which LiteRT's threads inherit. */
static int32_t make_work(nns_litert_host *host, int64_t index, nns_report *report) {
    const nns_litert_call *call = &host->plan->calls[index];
    const nns_litert_queue *queue = &host->plan->queues[call->queue];
    const int32_t accelerator = host->accelerators[call->queue];
    char cpu[MOST_SETTINGS];
    cpu_set_t before;
    bool moved = false;
    snprintf(cpu, sizeof cpu, "num_threads = %d\n%s", (int)(queue->n_cores ? queue->n_cores : 1),
             accelerators[accelerator].cpu);
    host->works[index].plan = call;
    if (queue->n_cores) TRY(nns_thread_pin(queue->cores, queue->n_cores, &before, &moved, report));
    nns_litert_make_work(&host->litert, &host->works[index], accelerators[accelerator].set, cpu, report);
    if (moved) nns_thread_restore(&before);
    return report->status;
}

static int32_t fill(nns_litert_host *host, const nns_litert_options *options, nns_report *report) {
    const char *library = NULL;
    TRY(choose(host, options ? options->accelerator : NULL, report));
    host->works = nns_new_array(report, host->plan->n_calls, sizeof *host->works);
    if (!host->works) return report->status;
    TRY(nns_litert_open_library(options ? options->library : NULL, &host->litert.functions, &library, report));
    find_folder(host, library);
    TRY(make_environment(host, report));
    TRY(check_accelerators(host, report));
    for (int64_t i = 0; i < host->plan->n_calls; i++) TRY(make_work(host, i, report));
    return NNS_OK;
}

int32_t nns_litert_host_create(const nns_litert_plan *plan, const nns_litert_options *options, nns_litert_host **host,
                               nns_report *report) {
    *host = NULL;
    nns_litert_host *made = calloc(1, sizeof *made);
    if (!made) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    made->plan = plan;
    made->process = getpid();
    pthread_mutex_init(&made->lock, NULL);
    if (fill(made, options, report) == NNS_OK)
        *host = made;
    else
        nns_litert_host_free(made);
    return report->status;
}

void nns_litert_host_free(nns_litert_host *host) {
    if (!host) return;
    if (host->process == getpid()) {
        for (int64_t i = 0; host->works && i < host->plan->n_calls; i++)
            if (host->works[i].plan) nns_litert_free_work(&host->litert, &host->works[i]);
        if (host->litert.environment) host->litert.functions.DestroyEnvironment(host->litert.environment);
        pthread_mutex_destroy(&host->lock);
    }
    free(host->works);
    free(host);
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

int32_t nns_litert_host_call(void *context, int64_t id, const void *const *reads, void *const *writes) {
    nns_litert_host *host = context;
    nns_report report = {0};
    nns_litert_run_work(&host->litert, &host->works[id], reads, writes, &report);
    if (report.status) {
        pthread_mutex_lock(&host->lock);
        host->failure = report;
        pthread_mutex_unlock(&host->lock);
    }
    return report.status;
}

void nns_litert_host_failure(nns_litert_host *host, nns_report *report) {
    pthread_mutex_lock(&host->lock);
    if (host->failure.status) *report = host->failure;
    pthread_mutex_unlock(&host->lock);
}

const char *nns_litert_host_device(const nns_litert_host *host, int32_t queue) {
    for (int64_t i = 0; host && i < host->plan->n_queues; i++)
        if (host->plan->queues[i].queue == queue) return accelerators[host->accelerators[i]].name;
    return NULL;
}
