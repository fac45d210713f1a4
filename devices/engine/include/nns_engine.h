/* The native engine: kernels, thread pools, and an executor that walks a program.
 *
 * A program is what a plan becomes: integers that say which kernel reads and writes which bytes, in which order, on
 * which queue. It is validated in full when it is created; nothing in it is trusted. Running it takes no lock but the
 * program's own, allocates nothing and calls no Python, except for steps of kind NNS_STEP_CALL.
 *
 * Queues. Every processor of a plan is a queue. Queue 0 is a host queue and runs on the calling thread. Other host queues and
 * call queues have a thread of their own. OpenCL queues have none: whoever walks the sub-graphs enqueues their kernels
 * without blocking (NN-Stretch, algorithm 1) and the device's own threads do the work.
 *
 * Sub-graphs are the unit of scheduling: steps on one queue, of which only the first waits for other queues. The program
 * lists them in a topological order. The calling thread walks those of queue 0 and of OpenCL queues: it runs the former and
 * enqueues the latter as soon as their waits (sub-graphs of other queues) are done. A queue with a thread walks its own.
 */
#ifndef NNS_ENGINE_H
#define NNS_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_EXPORT __attribute__((visibility("default")))

#define NNS_ABI 3
#define NNS_MAGIC INT64_C(0x315453534e4e) /* "NNSST1" */
#define NNS_MAX_READS 16   /* inputs of one step, constants included */
#define NNS_MAX_WRITES 4   /* outputs of one step, workspaces included */
#define NNS_BUFFER_ALIGNMENT 4 /* bytes; elements of larger types may lie across it */
#define NNS_MAX_QUEUES 16
#define NNS_MAX_CORES 1024
#define NNS_MAX_RATIO 65536

typedef enum {
    NNS_OK = 0,
    NNS_EINVALID = 1,   /* program or argument refused; the text says which */
    NNS_EMEMORY = 2,
    NNS_EOPENCL = 3,    /* an OpenCL call failed; the text holds its name and code */
    NNS_ECALL = 4,      /* a callback reported failure */
    NNS_ETHREAD = 5,    /* a thread could not be started */
    NNS_ECANCELLED = 6, /* nns_program_cancel stopped the run */
} nns_status;

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

/* One step's operands as a kernel sees them. Absent optional inputs are NULL with 0 bytes. */
typedef struct {
    const void *in[NNS_MAX_READS];
    void *out[NNS_MAX_WRITES];
    int64_t in_bytes[NNS_MAX_READS];
    int64_t out_bytes[NNS_MAX_WRITES];
    const int64_t *p;      /* integer parameters; their meaning is the kernel's */
    int32_t n_in, n_out, n_p;
} nns_args;

/* What a kernel answers when it is asked about a step. */
typedef struct {
    int64_t units;         /* disjoint chunks of output that threads may compute in any order, >= 0 */
    int64_t scratch;       /* bytes of private memory (64-byte aligned) that each thread needs. The first 8 are 0 when a
                            * thread begins with the step; it may come back for more units: then all is as it was left */
} nns_work;

typedef struct {
    const char *name;
    /* Returns 0 and fills `work` if every access of `run` stays inside the given sizes, else a text that says why not.
     * Pointers in `args` may be NULL here; only sizes, counts and parameters are looked at. */
    const char *(*check)(const nns_args *args, nns_work *work);
    /* Computes units [begin, end). Called concurrently for disjoint ranges. */
    void (*run)(const nns_args *args, int64_t begin, int64_t end, void *scratch);
} nns_kernel;

/* ---- programs ----------------------------------------------------------------------------------------------------- */

/* A program image is an array of int64 words:
 *
 *   header    NNS_MAGIC, NNS_ABI, n_queues, n_regions, n_buffers, n_steps, n_subgraphs, n_inputs, n_outputs
 *   queues     n_queues × { kind, n_cores, core…, n_ratios, ratio… }
 *   regions   n_regions × { kind, index, bytes }
 *   buffers   n_buffers × { region, offset, bytes }
 *   steps     n_steps × { kind, id, n_reads, buffer or -1 …, n_writes, buffer…, n_parameters, parameter… }
 *   subgraphs n_subgraphs × { queue, first_step, n_steps, n_waits, subgraph…, n_acquires, region…, n_releases, region… }
 *
 * A queue has one thread per core. Its ratios say how much of every step each thread begins with, relative to the others;
 * there is one per core, or none if all get the same. Steps of a sub-graph are consecutive, and the sub-graphs cover all steps in order.
 */
enum { NNS_QUEUE_HOST = 0, NNS_QUEUE_OPENCL = 1, NNS_QUEUE_CALL = 2 };

enum {
    NNS_REGION_FIXED = 0,   /* memory bound when the program is created (`nns_region.host`) */
    NNS_REGION_INPUT = 1,   /* input `index` of the run */
    NNS_REGION_OUTPUT = 2,  /* output `index` of the run */
    NNS_REGION_SHARED = 3,  /* host memory that an OpenCL queue reads or writes too, through `nns_region.mem` */
};

/* How the host and a device see a SHARED region. */
enum {
    NNS_SHARING_COPIED = 0,   /* `mem` is a copy: written before and read after the kernels */
    NNS_SHARING_MAPPED = 1,   /* `mem` uses `host` itself: map and unmap move ownership */
    NNS_SHARING_COHERENT = 2, /* `mem` uses `host` itself, fine-grained shared virtual memory: nothing needs to be done */
};

enum {
    NNS_STEP_KERNEL = 0,    /* id: index of an engine kernel (nns_kernel_find); host queues */
    NNS_STEP_OPENCL = 1,    /* id: index into nns_bindings.launches; reads and writes are empty; OpenCL queues */
    NNS_STEP_CALL = 2,      /* id: passed to nns_bindings.call; host and call queues */
};

/* Memory of a region. OpenCL handles are cl_mem, cl_command_queue and cl_kernel objects, owned by the caller. */
typedef struct {
    void *host;
    void *mem;              /* cl_mem of a SHARED region, else NULL */
    int32_t sharing;        /* of a SHARED region: NNS_SHARING_… */
    int32_t queue;           /* the OpenCL queue of a SHARED region */
} nns_region;

typedef struct {
    void *kernel;           /* cl_kernel with all its arguments set, used by one step only */
    int32_t dimensions;
    size_t global[3];
    size_t local[3];        /* all 0: the driver chooses */
} nns_launch;

/* A semaphore lets a device wait for other queues by itself, which takes less time than to wake it: a kernel in front of an OpenCL
 * sub-graph that ends once the flags of all sub-graphs are set which that one waits for. A flag is 0 when a run begins and
 * NNS_FLAG_DONE when its sub-graph is done; all are NNS_FLAG_FAILED when a run fails, so that semaphores open. Programs with one
 * OpenCL queue may have semaphores; with more, devices that take turns on the same cores could wait for each other. */
enum { NNS_FLAG_DONE = 1, NNS_FLAG_FAILED = 2 };

/* A call step: pointers to its buffers; returns 0 or an error number that is reported back. */
typedef int32_t (*nns_call)(int64_t id, const void *const *reads, void *const *writes);

typedef struct {
    const nns_region *regions;      /* n_regions */
    const nns_launch *launches;     /* n_launches */
    int64_t n_launches;
    void *const *command_queues;    /* n_queues: cl_command_queue of OpenCL queues (in-order), else NULL */
    nns_call call;                  /* NULL if no step needs it */
    const nns_launch *semaphores;        /* n_subgraphs, without kernel where there is none; or NULL */
    int32_t *flags;                 /* n_subgraphs: what semaphores look at, in memory that the device shares coherently; or NULL */
} nns_bindings;

typedef struct nns_program nns_program;

/* Times of one run in nanoseconds of CLOCK_MONOTONIC. Arrays are the caller's: 2 per step and 2 per sub-graph. */
typedef struct {
    int64_t *steps;         /* begin, end of each step */
    int64_t *waits;         /* begin, end of the wait before each sub-graph (equal if there was none) */
    int64_t begin, end;     /* of the run */
} nns_trace;

/* Version of this interface: NNS_ABI. */
NNS_EXPORT int32_t nns_abi(void);
/* Floats per vector, which is the block of the blocked layout: 16, 8 or 4. */
NNS_EXPORT int32_t nns_block(void);

NNS_EXPORT int64_t nns_kernel_count(void);
NNS_EXPORT const char *nns_kernel_name(int64_t id);     /* NULL out of range */
NNS_EXPORT int64_t nns_kernel_find(const char *name);   /* -1 if there is none */
/* The CPU features that a kernel requires beyond the library's instruction set: a mask of nns_cpu_feature_name's bits. Of
 * several kernels with one name the library takes the one that requires the most features among those this CPU can run. */
NNS_EXPORT uint64_t nns_kernel_features(int64_t id);
/* The first feature that this CPU lacks for a kernel of that name; NULL if the library has no such kernel, or can run it. */
NNS_EXPORT const char *nns_kernel_missing_feature(const char *name);

/* The features of this CPU (CPUID, HWCAP) that the operating system supports, detected once per process. The environment
 * variable NNSTRETCH_CPU_FEATURES hides some of them, for tests: "-fma,-avx512f". */
NNS_EXPORT uint64_t nns_cpu_features(void);
/* The name of a bit of these masks, as in /proc/cpuinfo; NULL out of range. */
NNS_EXPORT const char *nns_cpu_feature_name(int32_t bit);

/* Resolves the OpenCL functions that OpenCL queues need from the shared library at `path` (anything that links an ICD
 * loader). Needed once before a program with OpenCL queues is created. */
NNS_EXPORT int32_t nns_opencl_load(const char *path, char *error, int64_t error_size);

/* Validates `image` and makes it runnable; `error` gets one line where the status is not NNS_OK.
 * Host queues share thread pools by their core lists: two programs on the same cores use the same threads. */
NNS_EXPORT int32_t nns_program_create(const int64_t *image, int64_t words, const nns_bindings *bindings,
                                      nns_program **program, char *error, int64_t error_size);

/* Runs it once. `inputs` and `outputs` point to memory of at least the regions' bytes. `trace` may be NULL. Thread-safe:
 * concurrent calls take turns. Those of other programs on the same cores run beside it: a queue computes one sub-graph at a
 * time, of whichever program's run is ready. After an error the program can be run again. */
NNS_EXPORT int32_t nns_program_run(nns_program *program, const void *const *inputs, void *const *outputs,
                                   nns_trace *trace, char *error, int64_t error_size);

/* Stops a run that another thread is in: every queue ends the call, or the kernels one after another, that it is at and
 * begins no other, and nns_program_run returns NNS_ECANCELLED once all have, which a device that hangs may put off for
 * ever. Until then the run uses its inputs and outputs. Does nothing to a run that is over or fails anyway. Returns a step
 * that was not done though nothing kept it from beginning (the first of its sub-graph), -1 if there was none. The program
 * must not be destroyed meanwhile. */
NNS_EXPORT int64_t nns_program_cancel(nns_program *program);

/* The step at which the last run failed, or to which it had come when it was seen to fail; -1 if it did not fail. To be
 * called by whoever may start the next run. */
NNS_EXPORT int64_t nns_program_failed_step(const nns_program *program);

/* Runs it `warmup` + `runs` times and writes the nanoseconds of each of the last `runs` to `ns`. Stops early (and returns
 * the number of runs done in `*done`) once `budget_ns` has passed and at least 3 runs are timed; budget 0: no limit. */
NNS_EXPORT int32_t nns_program_time(nns_program *program, const void *const *inputs, void *const *outputs,
                                    int64_t warmup, int64_t runs, int64_t budget_ns, int64_t *ns, int64_t *done,
                                    char *error, int64_t error_size);

NNS_EXPORT void nns_program_destroy(nns_program *program);

/* Splits `units` >= 0 into `n` parts by `ratios` (1 to NNS_MAX_RATIO each; NULL: equally), as the units of a step are split
 * among the threads of a queue: every part is its exact share rounded down or up, by largest remainders, and the first
 * ones are rounded up on a tie. */
NNS_EXPORT int32_t nns_split(int64_t units, const int64_t *ratios, int64_t n, int64_t *parts);

/* Nanoseconds that a pool of one thread per core takes from one step to the next when there is nothing to compute: the
 * smallest mean of several lists of `steps` steps. -1 on failure; the calling thread is moved to the first core meanwhile. */
NNS_EXPORT double nns_join_ns(const int32_t *cores, int32_t n_cores, int32_t steps);

/* Best float32 GFLOP/s of one thread on the current core, by independent fused multiply-adds on registers, over about
 * `milliseconds`. */
NNS_EXPORT double nns_peak_gflops(int32_t milliseconds);

/* Float32 GFLOP/s of one thread on the current core just now, in a matrix product whose operands lie in the innermost cache,
 * over some tens of microseconds. Unlike the peak it follows the core's clock, and whoever shares its units. */
NNS_EXPORT double nns_clock_gflops(void);

/* Takes the cache lines that hold some of `bytes` at `memory` out of the caches of all cores, so that the next read comes from
 * memory. Does nothing on processors that do not let a program do that. */
NNS_EXPORT void nns_flush(const void *memory, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
