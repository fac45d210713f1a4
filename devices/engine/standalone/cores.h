/* Which cores the queues of a model get on the machine that it runs on. */
#ifndef NNS_CORES_H
#define NNS_CORES_H

#include "nns_engine.h"
#include "nnstretch.h"
#include "status.h"

typedef struct {
    int32_t count;
    const int64_t *planned_cores[NNS_MAX_QUEUES];
    const int64_t *ratios[NNS_MAX_QUEUES]; /* relative speeds of the planned cores; dropped where the queues get others */
    int32_t n_ratios[NNS_MAX_QUEUES];
    int32_t planned[NNS_MAX_QUEUES]; /* how many these are: threads that the queues were planned for */
    int32_t first[NNS_MAX_QUEUES];   /* where a queue's cores begin in `cores` */
    int32_t n_cores[NNS_MAX_QUEUES];
    int32_t cores[NNS_MAX_CORES + NNS_MAX_QUEUES];
    int32_t total; /* sum of n_cores */
} nns_queues;

/* Gives the queues the cores that they were planned for, if `options` say nothing else and this process may use all of
 * these. Otherwise they share those that there are in proportion to what they were planned for. Every queue gets at
 * least one; queues share a core where there are fewer cores than queues. */
int32_t nns_queues_place(nns_queues *queues, const nns_model_options *options, nns_report *report);

#endif
