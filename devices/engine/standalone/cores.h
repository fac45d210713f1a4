/* Assigns the cores of this machine to the queues of a model. */
#ifndef NNS_CORES_H
#define NNS_CORES_H

#include "nns_engine.h"
#include "nnstretch.h"
#include "status.h"

typedef struct {
    int32_t count;
    const int64_t *planned_cores[NNS_MAX_QUEUES];
    const int64_t *ratios[NNS_MAX_QUEUES]; /* relative speeds of the planned cores; unused on other cores */
    int32_t n_ratios[NNS_MAX_QUEUES];
    int32_t planned[NNS_MAX_QUEUES]; /* numbers of planned cores, which are threads */
    int32_t first[NNS_MAX_QUEUES];   /* index of each queue's first core in `cores` */
    int32_t n_cores[NNS_MAX_QUEUES];
    int32_t cores[NNS_MAX_CORES + NNS_MAX_QUEUES];
    int32_t total; /* sum of n_cores */
} nns_queues;

/* Gives the queues their planned cores if `options` are defaults and this process may use all of them.
 * Otherwise divides the available cores in proportion to the planned numbers. Each queue gets at least one
 * core; if there are fewer cores than queues, queues share cores. */
int32_t nns_queues_place(nns_queues *queues, const nns_model_options *options, nns_report *report);

#endif
