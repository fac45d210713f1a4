/* Runs the call queues of a standalone model by LiteRT: a library that is opened when a model needs it.
 *
 *   api.h      the functions and types of LiteRT's C interface
 *   library.c  opens the library
 *   call.c     one call: a compiled TFLite file with memory for its inputs and outputs
 *   host.c     all calls of a model
 *
 * A call copies its inputs to memory of LiteRT's and its outputs back: LiteRT's kernels read beyond the end of arrays, which
 * those of a caller do not allow, and accelerators have memory of their own. LiteRT checks the TFLite files; all else in a plan is
 * checked before LiteRT sees it. */
#ifndef NNS_LITERT_HOST_H
#define NNS_LITERT_HOST_H

#include "nns_engine.h"
#include "nnstretch.h"
#include "status.h"

/* ---- what a model asks for -------------------------------------------------------------------------------- */

/* What computes. Model files have these numbers, too. */
enum {
    NNS_LITERT_CPU,     /* XNNPACK */
    NNS_LITERT_BUILTIN, /* LiteRT's own kernels on the CPU */
    NNS_LITERT_GPU, /* all layers, or the model is refused */
    NNS_LITERT_NPU,
    NNS_LITERT_GPU_CPU, /* layers that the GPU does not take are the CPU's */
    NNS_LITERT_NPU_CPU,
    NNS_LITERT_ACCELERATORS,
};

enum { NNS_LITERT_MOST_RANK = 8 };

/* A call queue. It has a thread per core, and one without cores. */
typedef struct {
    int32_t queue; /* number in the program */
    int32_t accelerator;
    const int32_t *cores;
    int32_t n_cores;
} nns_litert_queue;

/* A TFLite file with the types of its inputs and outputs, which have no names here. */
typedef struct {
    const char *name;   /* of the layers, for messages */
    int64_t queue;      /* index into `queues` */
    const void *content; /* stays where it is until the host is freed */
    int64_t bytes;
    nns_tensor *tensors; /* inputs, then outputs; of at most NNS_LITERT_MOST_RANK dimensions, each below 2^31 */
    int32_t n_reads, n_writes;
} nns_litert_call;

typedef struct {
    nns_litert_queue queues[NNS_MAX_QUEUES];
    int64_t n_queues;
    nns_litert_call *calls;
    int64_t n_calls;
} nns_litert_plan;

/* Frees the arrays of a plan, which may be partly filled. */
void nns_litert_plan_free(nns_litert_plan *plan);

/* ---- what the engine gets --------------------------------------------------------------------------------- */

typedef struct nns_litert_host nns_litert_host;

/* Opens the library and compiles all files of a plan, which must outlive the host. `options` may be NULL. After a failure
 * `*host` is NULL and everything but the library is released. */
int32_t nns_litert_host_create(const nns_litert_plan *plan, const nns_litert_options *options, nns_litert_host **host,
                               nns_report *report);
/* Frees what the program uses, which must be destroyed before. NULL is fine. In the child of a fork it leaves all that belongs to
 * LiteRT alone, since its threads do not exist there. */
void nns_litert_host_free(nns_litert_host *host);

/* An nns_call: runs call `id` of a host, the context. One thread at a time may run a call. Returns an nns_status. */
int32_t nns_litert_host_call(void *context, int64_t id, const void *const *reads, void *const *writes);

/* Copies why a call failed most recently to `report`; leaves it as it is if none did. */
void nns_litert_host_failure(nns_litert_host *host, nns_report *report);

/* The name of the accelerator of a queue of the program, for example "gpu"; NULL if that is no call queue. */
const char *nns_litert_host_device(const nns_litert_host *host, int32_t queue);

#endif
