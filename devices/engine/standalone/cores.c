#include "model_file.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

/* Lists the cores that this process may use, at most NNS_MAX_CORES. Returns their number, or 0 with a report. */
static int32_t usable(const nns_model_options *options, int32_t *cores, nns_report *report) {
    int32_t count = 0;
    if (options && options->cores) {
        if (options->n_cores < 1 || options->n_cores > NNS_MAX_CORES)
            nns_fail(report, NNS_EINVALID, "%d cores are given; there must be 1 to %d", (int)options->n_cores,
                     NNS_MAX_CORES);
        for (; !report->status && count < options->n_cores; count++) {
            cores[count] = options->cores[count];
            if (cores[count] < 0 || cores[count] >= NNS_MAX_CORES)
                nns_fail(report, NNS_EINVALID, "there is no core %d", (int)cores[count]);
        }
        return report->status ? 0 : count;
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) {
        nns_fail(report, NNS_ETHREAD, "the cores of this process cannot be read: %s", strerror(errno));
        return 0;
    }
    for (int32_t core = 0; core < NNS_MAX_CORES && core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &set)) cores[count++] = core;
    if (!count) nns_fail(report, NNS_ETHREAD, "this process may use no core below %d", NNS_MAX_CORES);
    return count;
}

/* The number of cores to use, at most `available`. */
static int64_t wanted(const nns_model_options *options, int64_t planned, int64_t available) {
    int64_t threads = planned;
    if (options && options->cores) threads = available;
    if (options && options->threads > 0) threads = options->threads;
    return threads < available ? threads : available;
}

static void add_queue(nns_queues *queues, int32_t queue, int32_t count) {
    queues->first[queue] = queues->total;
    queues->n_cores[queue] = count;
    queues->total += count;
}

/* Whether all cores that the queues were planned for are among `count` usable ones. */
static bool has_planned(const nns_queues *queues, int64_t planned, const int32_t *cores, int32_t count) {
    bool usable[NNS_MAX_CORES] = {false};
    for (int32_t i = 0; i < count; i++) usable[cores[i]] = true;
    for (int32_t i = 0; i < queues->count; i++)
        for (int32_t k = 0; k < queues->planned[i]; k++)
            if (!usable[queues->planned_cores[i][k]]) return false;
    return planned <= NNS_MAX_CORES;
}

static void take_planned(nns_queues *queues) {
    for (int32_t i = 0; i < queues->count; i++) {
        add_queue(queues, i, queues->planned[i]);
        for (int32_t k = 0; k < queues->planned[i]; k++)
            queues->cores[queues->first[i] + k] = (int32_t)queues->planned_cores[i][k];
    }
}

/* Divides the first `total` of `cores` among the queues. */
static void share(nns_queues *queues, int64_t planned, const int32_t *cores, int64_t total) {
    int64_t before = 0;
    for (int32_t i = 0; i < queues->count; i++) {
        queues->n_ratios[i] = 0;
        const int64_t begin = planned ? before * total / planned : 0;
        before += queues->planned[i];
        const int64_t end = planned ? before * total / planned : 0;
        add_queue(queues, i, end > begin ? (int32_t)(end - begin) : queues->planned[i] > 0);
        for (int32_t k = 0; k < queues->n_cores[i]; k++)
            queues->cores[queues->first[i] + k] = cores[begin + k < total ? begin + k : total - 1];
    }
}

int32_t nns_queues_place(nns_queues *queues, const nns_model_options *options, nns_report *report) {
    int32_t cores[NNS_MAX_CORES];
    if (options && options->threads < 0)
        return nns_fail(report, NNS_EINVALID, "%d threads are asked for; there must be at least 1",
                        (int)options->threads);
    const int32_t available = usable(options, cores, report);
    if (!available) return report->status;
    int64_t planned = 0;
    for (int32_t i = 0; i < queues->count; i++) planned += queues->planned[i];
    const bool free_choice = !options || (!options->cores && !options->threads);
    if (free_choice && has_planned(queues, planned, cores, available))
        take_planned(queues);
    else
        share(queues, planned, cores, wanted(options, planned, available));
    return NNS_OK;
}
