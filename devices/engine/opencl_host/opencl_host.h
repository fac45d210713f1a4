/* Makes the OpenCL queues of a standalone model ready: devices, contexts, memory, built kernels with their arguments. The
 * engine (runtime/run/opencl.c) runs the queues.
 *
 *   drivers/  library.c, drivers.c, workers.c   the OpenCL library, devices, threads of drivers on CPU cores: once per process
 *             choice.c                          the device of a queue
 *             list.c                            the list of devices for programs
 *   memory/   memory.c, pages.c                 memory of a device, and memory shared with the host
 *   kernels/  programs.c, binary_cache.c        built kernels, kept in a folder
 *             sources.c, sha256.c               what is known of kernel sources: their hashes, and the argument structs of kernels
 *             launches.c, semaphores.c          kernels with their arguments
 *             images.c                          arguments that are images of buffers
 *
 * Sources of kernels are programs: a driver compiles and runs them with the rights of the process, and what memory they access
 * cannot be checked. All else in a plan is checked before a driver sees it. */
#ifndef NNS_OPENCL_HOST_H
#define NNS_OPENCL_HOST_H

#include <stdbool.h>

#include "nns_engine.h"
#include "nnstretch.h"
#include "status.h"

/* ---- what a model asks for -------------------------------------------------------------------------------- */

/* Strings and lists are the model file's. All numbers are checked but those that say otherwise. */

/* A queue and its device. */
typedef struct {
    int32_t queue;        /* number in the program */
    int32_t index;        /* of the device on the machine where the model was compiled */
    const char *platform; /* names of that device; "" if they are not known */
    const char *name;
    const void *constants;
    int64_t constant_bytes;
    int64_t arena_bytes;
    const int64_t *slots; /* bytes of the regions that it shares with the host */
    int64_t n_slots;
    int64_t first_slot;   /* number of the first one among those of all devices */
    const int32_t *cores; /* of a device that runs on CPU cores */
    int32_t n_cores;
} nns_ocl_queue;

typedef struct {
    const char *name, *text;
} nns_ocl_source;

/* A source with macros, built for a device. */
typedef struct {
    int64_t queue;            /* index into `queues` */
    int64_t source;           /* index into `sources` */
    const char *const *names; /* of macros: identifiers */
    const int64_t *values;
    int64_t n_macros;
    int64_t images; /* the value of the macro NNS_IMAGES: bit i is set if read i of its kernels is an image made from its buffer */
} nns_ocl_program;

enum { NNS_OCL_PIXEL_NUMBERS = 4 }; /* numbers of a pixel of such an image */

/* The memory of an operand, four words each: NNS_OCL_… or the number of a slot behind them, offset in bytes, bytes, bytes of an
 * element, which divide the offset. */
enum { NNS_OCL_OPERAND_WORDS = 4 };
enum { NNS_OCL_ABSENT = -1, NNS_OCL_CONSTANTS = 0, NNS_OCL_ARENA = 1, NNS_OCL_FIRST_SLOT = 2 };

/* A kernel with its arguments: the operands' memory, then one struct of 32-bit integers: the operands' offsets in elements, then
 * `integers`. */
typedef struct {
    int64_t program;
    const char *kernel;
    int32_t dimensions;
    const int64_t *global, *local; /* `local` all 0: the driver chooses */
    const int64_t *operands;       /* reads, then writes */
    int64_t n_operands, n_reads;
    const int64_t *integers; /* signed or unsigned numbers of 32 bits */
    int64_t n_integers;      /* not compared with the kernel's struct yet */
} nns_ocl_launch;

/* The sub-graphs that a sub-graph of an OpenCL queue waits for. */
typedef struct {
    const int64_t *waits;
    int64_t n_waits;
} nns_ocl_subgraph;

typedef struct {
    nns_ocl_queue queues[NNS_MAX_QUEUES];
    int64_t n_queues;
    int64_t n_slots; /* of all queues */
    nns_ocl_source *sources;
    int64_t n_sources;
    nns_ocl_program *programs;
    int64_t n_programs;
    nns_ocl_launch *launches;
    int64_t n_launches;
    nns_ocl_subgraph *subgraphs; /* empty for those of other queues */
    int64_t n_subgraphs;
    const char **names; /* of macros, of all programs */
} nns_ocl_plan;

/* Frees the arrays of a plan, which may be partly filled. */
void nns_ocl_plan_free(nns_ocl_plan *plan);

/* ---- what the engine gets --------------------------------------------------------------------------------- */

typedef struct nns_ocl_host nns_ocl_host;

/* Makes devices ready for a plan. `options` may be NULL. After a failure `*host` is NULL and everything is released. */
int32_t nns_ocl_host_create(const nns_ocl_plan *plan, const nns_opencl_options *options, nns_ocl_host **host,
                            nns_report *report);
/* Frees what the program uses, which must be destroyed before. NULL is fine. In the child of a fork it leaves all that belongs to
 * drivers alone, since they do not work there. */
void nns_ocl_host_free(nns_ocl_host *host);

/* Adds queues, launches, semaphores and the regions of slots, from `regions[first]` on, to the bindings of a program. `queues` has
 * a place for every queue of the program. */
void nns_ocl_host_bind(const nns_ocl_host *host, nns_bindings *bindings, nns_region *regions, void **queues);

/* Records the launches of all queues as command buffers if the environment variable NNSTRETCH_COMMAND_BUFFERS is 1. Where a
 * driver cannot do that, one line on the standard error says so, and launches are enqueued one by one. Without the variable
 * nothing is recorded: whether that is faster is not known here. */
void nns_ocl_host_record(const nns_ocl_host *host, nns_program *program);

/* Before a run: binds the threads of drivers on CPU cores to the cores of this model. */
void nns_ocl_host_activate(const nns_ocl_host *host);

/* The name of the device of a queue of the program; NULL if that is no OpenCL queue. */
const char *nns_ocl_host_device(const nns_ocl_host *host, int32_t queue);

#endif
