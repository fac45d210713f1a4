#include <stdlib.h>
#include <string.h>

#include "host.h"

static const char source_name[] = "semaphore.cl";

static const nns_ocl_source *find_source(const nns_ocl_plan *plan) {
    for (int64_t i = 0; i < plan->n_sources; i++)
        if (!strcmp(plan->sources[i].name, source_name)) return &plan->sources[i];
    return NULL;
}

/* Whether the device supports semaphores. Not all drivers keep what they promise, and a kernel that never sees a flag cannot be
 * stopped. Python tests that in another process; here PoCL alone is known to work. */
static bool takes_semaphores(const nns_ocl_device *device) {
    return device->on_cpu && device->atomics && nns_ocl_sharing(device) == NNS_SHARING_COHERENT && nns_ocl_is_pocl(device);
}

static int64_t count_waits(const nns_ocl_plan *plan) {
    int64_t count = 0;
    for (int64_t i = 0; i < plan->n_subgraphs; i++) count += plan->subgraphs[i].n_waits;
    return count;
}

/* Work items of a semaphore: one per thread, so that none of them begins a kernel after it. */
static size_t count_threads(const nns_ocl_port *port) {
    int32_t threads = nns_ocl_worker_count() ? nns_ocl_worker_count() : port->device->compute_units;
    if (port->plan->n_cores && threads > port->plan->n_cores) threads = port->plan->n_cores;
    return threads > 1 ? (size_t)threads : 1;
}

int32_t nns_ocl_make_semaphores(nns_ocl_host *host, nns_report *report) {
    const nns_ocl_plan *plan = host->plan;
    const nns_ocl_port *port = &host->ports[0];
    const nns_ocl_source *source = find_source(plan);
    const int64_t n_flags = plan->n_subgraphs, n_waits = count_waits(plan);
    if (plan->n_queues != 1 || !n_waits || !source || !takes_semaphores(port->device)) return NNS_OK;
    TRY(nns_ocl_build(port, source, NULL, host->cache, &host->programs[plan->n_programs], report));
    /* Memory: the flags of all sub-graphs, then the lists of sub-graphs to wait for. */
    const int64_t bytes = (n_flags + n_waits) * (int64_t)sizeof(int32_t);
    TRY(nns_ocl_share(port, &bytes, 1, &host->signals, &host->signal_svm, report));
    host->semaphores = calloc((size_t)n_flags, sizeof *host->semaphores);
    if (!host->semaphores) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    host->flags = (int32_t *)(void *)host->signals.host;
    int64_t at = n_flags;
    for (int64_t i = 0; i < n_flags; i++) {
        const nns_ocl_subgraph *subgraph = &plan->subgraphs[i];
        if (!subgraph->n_waits) continue;
        const nns_ocl_argument memory[] = {{host->signals.memory.buffer, 0}, {host->signals.memory.buffer, at}};
        host->semaphores[i] = (nns_launch){.dimensions = 1, .global = {count_threads(port)}, .local = {1}};
        TRY(nns_ocl_make_kernel(port, host->programs[plan->n_programs], source, "semaphore", memory, 2,
                                &subgraph->n_waits, 1, &host->semaphores[i].kernel, report));
        for (int64_t k = 0; k < subgraph->n_waits; k++) host->flags[at++] = (int32_t)subgraph->waits[k];
    }
    return NNS_OK;
}
