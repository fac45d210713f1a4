#include "host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>


void nns_ocl_plan_free(nns_ocl_plan *plan) {
    free(plan->sources);
    free(plan->programs);
    free(plan->launches);
    free(plan->subgraphs);
    free(plan->names);
    *plan = (nns_ocl_plan){0};
}

/* ---- trust ------------------------------------------------------------------------------------------------ */

static bool wants_trusted(const nns_opencl_options *options) {
    const char *text = getenv("NNSTRETCH_TRUSTED_SOURCES");
    return (options && options->trusted_sources) || (text && *text && strcmp(text, "0"));
}

static int32_t check_sources(const nns_ocl_plan *plan, const nns_opencl_options *options, nns_report *report) {
    for (int64_t i = 0; wants_trusted(options) && i < plan->n_sources; i++)
        if (!nns_ocl_is_trusted(plan->sources[i].text))
            return nns_fail(report, NNS_EINVALID,
                            "the model has an OpenCL source %.60s that this library was not built with; compile the model "
                            "again with this version, or leave trusted sources out if you trust the model's author",
                            plan->sources[i].name);
    return NNS_OK;
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Collects the cores of queues, each once: of all, or of those whose devices run on CPU cores. */
static void collect_cores(nns_ocl_host *host, bool of_devices) {
    bool taken[NNS_MAX_CORES] = {false};
    host->n_cores = 0;
    for (int64_t i = 0; i < host->plan->n_queues; i++) {
        const nns_ocl_queue *queue = &host->plan->queues[i];
        for (int32_t k = 0; k < queue->n_cores && (!of_devices || host->ports[i].device->on_cpu); k++) {
            if (!taken[queue->cores[k]]) host->cores[host->n_cores++] = queue->cores[k];
            taken[queue->cores[k]] = true;
        }
    }
    qsort(host->cores, (size_t)host->n_cores, sizeof *host->cores, ascending);
}

static int32_t open_port(nns_ocl_port *port, const nns_opencl_options *options, nns_report *report) {
    ocl_int code = 0;
    TRY(nns_ocl_choose(port->plan, options ? options->device : NULL, &port->device, report));
    port->context = nns_ocl.CreateContext(NULL, 1, &port->device->id, NULL, NULL, &code);
    if (!port->context) return nns_ocl_fail(port->device, code, report, "gave no context");
    const ocl_ulong properties = options && options->profiling ? OCL_QUEUE_PROFILING_ENABLE : 0;
    port->queue = nns_ocl.CreateCommandQueue(port->context, port->device->id, properties, &code);
    if (!port->queue) return nns_ocl_fail(port->device, code, report, "gave no queue");
    return nns_ocl_make_memory(port, report);
}

static void close_port(nns_ocl_port *port) {
    if (!port->plan) return;
    if (port->queue) nns_ocl.Finish(port->queue);
    nns_ocl_free_memory(port);
    if (port->queue) nns_ocl.ReleaseCommandQueue(port->queue);
    if (port->context) nns_ocl.ReleaseContext(port->context);
}

/* ---- all together ----------------------------------------------------------------------------------------- */

static int32_t build_programs(nns_ocl_host *host, nns_report *report) {
    const nns_ocl_plan *plan = host->plan;
    for (int64_t i = 0; i < plan->n_programs; i++) {
        const nns_ocl_program *program = &plan->programs[i];
        TRY(nns_ocl_build(&host->ports[program->queue], &plan->sources[program->source], program, host->cache,
                          &host->programs[i], report));
    }
    return NNS_OK;
}

static int32_t fill(nns_ocl_host *host, const nns_opencl_options *options, nns_report *report) {
    const nns_ocl_plan *plan = host->plan;
    TRY(check_sources(plan, options, report));
    if (host->cache) mkdir(host->cache, 0777); /* without it, kernels are built again */
    host->programs = calloc((size_t)plan->n_programs + 1, sizeof *host->programs);
    host->launches = calloc((size_t)plan->n_launches + 1, sizeof *host->launches);
    if (!host->programs || !host->launches || !nns_ocl_expect_images(host)) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    collect_cores(host, false);
    const nns_ocl_setup setup = {options ? options->library : NULL, host->cache, {host->cores, host->n_cores}};
    TRY(nns_ocl_load_drivers(&setup, report));
    for (int64_t i = 0; i < plan->n_queues; i++) {
        host->ports[i].plan = &plan->queues[i];
        TRY(open_port(&host->ports[i], options, report));
    }
    collect_cores(host, true);
    nns_ocl_host_activate(host);
    TRY(build_programs(host, report));
    TRY(nns_ocl_make_launches(host, report));
    return nns_ocl_make_semaphores(host, report);
}

int32_t nns_ocl_host_create(const nns_ocl_plan *plan, const nns_opencl_options *options, nns_ocl_host **host,
                            nns_report *report) {
    *host = NULL;
    nns_ocl_host *made = calloc(1, sizeof *made);
    if (!made) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    made->plan = plan;
    made->cache = options && options->cache && *options->cache ? options->cache : NULL;
    if (fill(made, options, report) == NNS_OK)
        *host = made;
    else
        nns_ocl_host_free(made);
    return report->status;
}

static void free_objects(nns_ocl_host *host) {
    const nns_ocl_plan *plan = host->plan;
    for (int64_t i = 0; host->launches && i < plan->n_launches; i++)
        if (host->launches[i].kernel) nns_ocl.ReleaseKernel(host->launches[i].kernel);
    for (int64_t i = 0; host->semaphores && i < plan->n_subgraphs; i++)
        if (host->semaphores[i].kernel) nns_ocl.ReleaseKernel(host->semaphores[i].kernel);
    nns_ocl_free_images(host);
    for (int64_t i = 0; host->programs && i <= plan->n_programs; i++)
        if (host->programs[i]) nns_ocl.ReleaseProgram(host->programs[i]);
    nns_ocl_free_shared(&host->ports[0], &host->signals, 1, &host->signal_svm);
    for (int64_t i = 0; i < plan->n_queues; i++) close_port(&host->ports[i]);
}

void nns_ocl_host_free(nns_ocl_host *host) {
    if (!host) return;
    if (!nns_ocl_is_lost()) free_objects(host);
    free(host->programs);
    free(host->launches);
    free(host->images);
    free(host->semaphores);
    free(host);
}

void nns_ocl_host_bind(const nns_ocl_host *host, nns_bindings *bindings, nns_region *regions, void **queues) {
    const nns_ocl_plan *plan = host->plan;
    for (int64_t i = 0; i < plan->n_queues; i++) {
        const nns_ocl_port *port = &host->ports[i];
        queues[port->plan->queue] = port->queue;
        for (int64_t k = 0; k < port->plan->n_slots; k++) {
            const nns_ocl_shared *slot = &port->slots[k];
            regions[port->plan->first_slot + k] =
                (nns_region){slot->host, slot->memory.buffer, slot->sharing, port->plan->queue};
        }
    }
    bindings->command_queues = queues;
    bindings->launches = host->launches;
    bindings->n_launches = plan->n_launches;
    bindings->semaphores = host->semaphores;
    bindings->flags = host->flags;
}

void nns_ocl_host_record(const nns_ocl_host *host, nns_program *program) {
    const char *wanted = getenv("NNSTRETCH_COMMAND_BUFFERS");
    for (int64_t i = 0; wanted && !strcmp(wanted, "1") && i < host->plan->n_queues; i++) {
        const nns_ocl_port *port = &host->ports[i];
        char error[NNS_TEXT];
        int64_t count = 0;
        if (nns_program_record(program, port->plan->queue, &count, error, sizeof error))
            fprintf(stderr, "nnstretch: OpenCL device %d (%s): kernels are enqueued one by one: %s\n",
                    (int)port->device->index, port->device->name, error);
    }
}

void nns_ocl_host_activate(const nns_ocl_host *host) {
    nns_ocl_pin_workers((nns_ocl_cores){host->cores, host->n_cores});
}

const char *nns_ocl_host_device(const nns_ocl_host *host, int32_t queue) {
    for (int64_t i = 0; host && i < host->plan->n_queues; i++)
        if (host->plan->queues[i].queue == queue) return host->ports[i].device->name;
    return NULL;
}
