/* A validated program. */
#ifndef NNS_PROGRAM_H
#define NNS_PROGRAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

#include "vectors/kernel.h"
#include "threads/pool.h"
#include "status.h"

/* Functions of cl_khr_command_buffer: run/command_buffers.c. */
typedef struct nns_command_buffers nns_command_buffers;

typedef struct {
    int32_t kind;
    int32_t n_cores;
    int32_t *cores;
    const int64_t *ratios; /* one per core, or NULL */
    nns_pool *pool;     /* host queues */
    void *command_queue; /* OpenCL queues */
    void *trace_queue;   /* of traced runs, which may be the same */
    int64_t *subgraphs; /* of this queue, in order */
    int64_t n_subgraphs;
    nns_command_buffers *command_buffers; /* of OpenCL queues with recorded sub-graphs, else NULL */
} nns_queue;

typedef struct {
    int32_t kind;
    int32_t sharing;
    int32_t queue;
    bool mapped; /* MAPPED regions: the host owns the memory */
    int64_t index;
    int64_t bytes;
    char *host; /* FIXED and SHARED */
    void *mem;
} nns_area;

typedef struct {
    int64_t region;
    int64_t offset;
    int64_t bytes;
} nns_buffer;

typedef struct {
    int32_t kind;
    int64_t id;
    const nns_kernel *kernel;
    nns_work work;
    nns_args args;
    int64_t *parameters; /* those of `args` if they are not the image's; or NULL */
    nns_launch launch;   /* OpenCL steps */
} nns_step;

typedef struct {
    int32_t queue;
    int64_t first, end; /* steps */
    int64_t n_waits, n_acquires, n_releases, n_touched;
    const int64_t *waits, *acquires, *releases;
    int64_t *touched; /* MAPPED regions acquired or released, each once, none empty */
    nns_launch semaphore;  /* without kernel if there is none */
    void *recorded;        /* cl_command_buffer_khr of its launches; or NULL */
} nns_subgraph;

/* An operand that each run sets: operand `slot` of a step lies at `offset` in input or output `index`. */
typedef struct {
    int64_t step, index, offset;
    int32_t slot;
    bool written; /* the operand is written, not read */
    bool output;  /* the region is an output, not an input */
} nns_patch;

struct nns_program {
    int64_t *image; /* a copy; cores, waits and parameters point into it */
    int64_t n_queues, n_regions, n_buffers, n_steps, n_subgraphs, n_inputs, n_outputs;
    nns_queue *queues;
    nns_area *areas;
    nns_buffer *buffers;
    nns_step *steps;
    nns_subgraph *subgraphs;
    nns_patch *patches;
    int64_t n_patches;
    nns_call call;
    void *call_context;
    _Atomic int32_t *flags; /* one per sub-graph, for semaphores; or NULL */
    struct nns_executor *executor;
    pid_t process;        /* threads do not survive a fork, so neither does a program */
    nns_turn turn;        /* held during a run */
};

/* Whether the program was made in this process: its threads and locks do not survive a fork. */
static inline bool nns_is_ours(const nns_program *program) { return program->process == getpid(); }

/* Fills a zeroed program from its image and validates it (`program->image`, `words` words) and its bindings. After a
 * failure, too, nns_program_destroy frees it. */
int32_t nns_parse(nns_program *program, int64_t words, const nns_bindings *bindings, nns_report *report);

#endif
