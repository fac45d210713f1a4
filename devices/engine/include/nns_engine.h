/* nns_engine.h: the interface of the native engine.
 *
 * The engine executes programs. A program is a plan in the form of integers: which kernel reads and writes
 * which bytes, in which order, on which queue. The engine validates a program completely when it is created and
 * trusts nothing in it. A run takes no lock but those of its program and its thread pools, allocates no memory,
 * and calls no Python except in steps of kind NNS_STEP_CALL.
 *
 * Queues. Each processor of a plan is a queue. A host queue computes kernels on a pool of threads, one per
 * core. A call queue calls back into the application. An OpenCL queue launches kernels on a device. Queue 0 is
 * a host queue and runs on the thread that calls nns_program_run. Each other host or call queue has a thread of
 * its own. OpenCL queues have none: the calling thread enqueues their kernels without blocking (NN-Stretch,
 * algorithm 1).
 *
 * Sub-graphs are the unit of scheduling. A sub-graph is a list of steps on one queue; only its first step waits
 * for other queues. Sub-graphs are listed in a topological order, and each queue executes its own in that
 * order.
 *
 * Errors. Functions that can fail return an nns_status. `error` receives one line that says what was found and
 * what was expected, or "" on success. It may be NULL.
 *
 * Threads. All functions may be called from any thread. nns_program_run and nns_program_time of one program
 * take turns, in which no thread waits for more than a few runs of each of the others.
 *
 * Forks. The child of a fork can make programs of its own; it can destroy those of its parent, and is refused when it
 * runs them.
 */
#ifndef NNS_ENGINE_H
#define NNS_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "nns_arrays.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_EXPORT __attribute__((visibility("default")))

#define NNS_ABI 6                         /* version of this interface and of program images */
#define NNS_MAGIC INT64_C(0x315453534e4e) /* "NNSST1": the first word of a program image */
#define NNS_MAX_READS 16                  /* inputs of one step, constants included */
#define NNS_MAX_WRITES 4                  /* outputs of one step, workspaces included */
#define NNS_MAX_QUEUES 16                 /* queues of one program */
#define NNS_MAX_CORES 1024                /* threads of one queue; core numbers are below it */
#define NNS_MAX_RATIO 65536               /* largest workload ratio of a thread */
#define NNS_BUFFER_ALIGNMENT 4            /* bytes; buffers of larger elements have no other alignment */

typedef enum {
    NNS_OK = 0,
    NNS_EINVALID = 1,   /* the program or an argument is not valid */
    NNS_EMEMORY = 2,    /* out of memory */
    NNS_EOPENCL = 3,    /* an OpenCL call failed; the text holds its name and error code */
    NNS_ECALL = 4,      /* a callback returned an error */
    NNS_ETHREAD = 5,    /* a thread cannot be started, or a core cannot be used */
    NNS_ECANCELLED = 6, /* nns_program_cancel stopped the run */
} nns_status;

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* The operands of one step. An optional input that is left out is NULL with 0 bytes. */
typedef struct {
    const void *in[NNS_MAX_READS];
    void *out[NNS_MAX_WRITES];
    int64_t in_bytes[NNS_MAX_READS];
    int64_t out_bytes[NNS_MAX_WRITES];
    const int64_t *p; /* `n_p` parameters; each kernel defines its own */
    int32_t n_in, n_out, n_p;
} nns_args;

/* The work of one step, as the kernel's `check` reports it. */
typedef struct {
    int64_t units;   /* disjoint chunks of the output, >= 0; threads compute them in any order */
    int64_t scratch; /* bytes of private memory per thread, aligned to 64. The first 8 bytes are 0 when a thread
                      * begins a step; the memory keeps its contents between two calls for the same step */
} nns_work;

typedef struct {
    const char *name;
    /* Validates a step: returns NULL and fills `work` if every access of `run` stays inside the operands, else
     * the reason for refusal. Reads sizes, counts and parameters only: pointers in `args` may be NULL. */
    const char *(*check)(const nns_args *args, nns_work *work);
    /* Computes the units [begin, end). Threads call it concurrently for disjoint ranges. */
    void (*run)(const nns_args *args, int64_t begin, int64_t end, void *scratch);
} nns_kernel;

/* ---- programs ------------------------------------------------------------------------------------------ */

/* A program image is an array of int64 words:
 *
 *   header     NNS_MAGIC, NNS_ABI, n_queues, n_regions, n_buffers, n_steps, n_subgraphs, n_inputs, n_outputs
 *   queues     n_queues × { kind, n_cores, core…, n_ratios, ratio… }
 *   regions    n_regions × { kind, index, bytes }
 *   buffers    n_buffers × { region, offset, bytes }
 *   steps      n_steps × { kind, id, n_reads, buffer or -1 …, n_writes, buffer…, n_parameters, parameter… }
 *   subgraphs  n_subgraphs × { queue, first_step, n_steps, n_waits, subgraph…, n_acquires, region…,
 *              n_releases, region… }
 *
 * A queue has one thread per core. Its ratios are the threads' initial shares of each step's units, relative to
 * each other; each thread stays on its core then. No ratios means equal shares, and threads that may run on any of
 * the queue's cores. A region is a block of memory, a buffer a part of one; offsets are
 * multiples of NNS_BUFFER_ALIGNMENT. The steps of a sub-graph are consecutive, and the sub-graphs cover all
 * steps in order. A sub-graph waits for sub-graphs of other queues that precede it. An OpenCL sub-graph
 * acquires the SHARED regions that the device takes from the host before it starts, and releases those that the
 * host takes back afterwards. */
enum { NNS_QUEUE_HOST = 0, NNS_QUEUE_OPENCL = 1, NNS_QUEUE_CALL = 2 };

enum {
    NNS_REGION_FIXED = 0,  /* memory bound at creation (`nns_region.host`) */
    NNS_REGION_INPUT = 1,  /* input `index` of each run */
    NNS_REGION_OUTPUT = 2, /* output `index` of each run */
    NNS_REGION_SHARED = 3, /* host memory that an OpenCL queue accesses, too, as `nns_region.mem` */
};

/* How the host and a device share a SHARED region. */
enum {
    NNS_SHARING_COPIED = 0,   /* `mem` is a copy, written before and read after the kernels */
    NNS_SHARING_MAPPED = 1,   /* `mem` uses the memory of `host`; map and unmap transfer ownership */
    NNS_SHARING_COHERENT = 2, /* `mem` uses `host` as fine-grained shared virtual memory, without transfers */
};

enum {
    NNS_STEP_KERNEL = 0, /* id: the number of an engine kernel (nns_kernel_find); on host queues */
    NNS_STEP_OPENCL = 1, /* id: an index into nns_bindings.launches; no reads and writes; on OpenCL queues */
    NNS_STEP_CALL = 2,   /* id: an argument of nns_bindings.call; on host and call queues */
};

/* The memory of a region. OpenCL handles are cl_mem, cl_command_queue and cl_kernel objects, which the caller
 * owns. */
typedef struct {
    void *host;
    void *mem;       /* cl_mem of a SHARED region, else NULL */
    int32_t sharing; /* of a SHARED region: NNS_SHARING_… */
    int32_t queue;   /* of a SHARED region: its OpenCL queue */
} nns_region;

typedef struct {
    void *kernel; /* cl_kernel with all its arguments set; no two steps use the same one */
    int32_t dimensions;
    size_t global[3];
    size_t local[3]; /* all 0: the driver chooses */
} nns_launch;

/* Device-side semaphores. A semaphore is a kernel in front of an OpenCL sub-graph that ends once the flags of
 * all sub-graphs are set that this one waits for. The device then waits by itself, which costs less than waking
 * it. A sub-graph's flag is 0 when a run begins and NNS_FLAG_DONE when the sub-graph is done. When a run fails
 * all flags become NNS_FLAG_FAILED, so that semaphores end. Only programs with exactly one OpenCL queue may
 * have semaphores: two devices on the same cores could wait for each other. */
enum { NNS_FLAG_DONE = 1, NNS_FLAG_FAILED = 2 };

/* A call step: gets nns_bindings.call_context and pointers to its buffers; returns 0 or an error number. */
typedef int32_t (*nns_call)(void *context, int64_t id, const void *const *reads, void *const *writes);

/* What the numbers of a program image stand for in this process. Memory and handles must outlive the program;
 * the arrays of this structure need not. */
typedef struct {
    const nns_region *regions;    /* n_regions */
    const nns_launch *launches;   /* n_launches */
    int64_t n_launches;
    void *const *command_queues;  /* n_queues: an in-order cl_command_queue for each OpenCL queue, else NULL */
    nns_call call;                /* NULL if the program has no call steps */
    const nns_launch *semaphores; /* n_subgraphs, with a NULL kernel where there is none; or NULL */
    int32_t *flags;               /* n_subgraphs, in memory shared coherently; NULL without semaphores */
    void *const *trace_queues;    /* as command_queues, for traced runs; a NULL stands for the queue of other runs */
    void *call_context;           /* what `call` gets; NULL is fine */
} nns_bindings;

typedef struct nns_program nns_program;

/* The inputs and outputs of a run, in the order of their indices. */
typedef struct {
    const nns_input *inputs;
    const nns_output *outputs;
    int64_t n_inputs, n_outputs;
} nns_feeds;

/* Times of one run in nanoseconds of CLOCK_MONOTONIC, in arrays that the caller provides. */
typedef struct {
    int64_t *steps;     /* n_steps × { begin, end } */
    int64_t *waits;     /* n_subgraphs × { begin, end } of the wait before each; equal if it did not wait */
    int64_t begin, end; /* of the run */
} nns_trace;

/* Validates `image` (`words` int64 words, which are copied) and prepares it for execution. Host queues with
 * equal core lists use the same thread pool, in all programs of the process. */
NNS_EXPORT int32_t nns_program_create(const int64_t *image, int64_t words, const nns_bindings *bindings,
                                      nns_program **program, char *error, int64_t error_size);

/* Records the launches of each sub-graph of OpenCL queue `queue` as a command buffer (cl_khr_command_buffer), if they are
 * several: runs without a trace then enqueue them as one command. `*count` receives the number of these sub-graphs. After
 * a failure, as of a device without the extension, there is none, and the program runs as before. A run may need recorded
 * launches again before the driver is ready, or fail to enqueue them: it enqueues them one by one then, or fails, after
 * which they are recorded no longer. */
NNS_EXPORT int32_t nns_program_record(nns_program *program, int32_t queue, int64_t *count, char *error,
                                      int64_t error_size);

/* Runs the program once. Refuses `feeds` with other numbers of inputs and outputs than the program has, or with
 * fewer bytes than its regions have; `trace` may be NULL. Concurrent calls for one program take turns. Runs of
 * different programs on the same cores interleave: a queue executes one sub-graph at a time, of any program that
 * is ready. After an error the program can run again. */
NNS_EXPORT int32_t nns_program_run(nns_program *program, const nns_feeds *feeds, nns_trace *trace, char *error,
                                   int64_t error_size);

/* Runs the program `warmup` + `runs` times and writes the nanoseconds of each of the last `runs` to `ns`. Stops
 * early once `budget_ns` has passed and at least 3 runs are timed; 0 means no limit. `done` receives the number
 * of timed runs. Refuses `feeds` as nns_program_run does. */
NNS_EXPORT int32_t nns_program_time(nns_program *program, const nns_feeds *feeds, int64_t warmup, int64_t runs,
                                    int64_t budget_ns, int64_t *ns, int64_t *done, char *error, int64_t error_size);

/* Cancels the run that another thread is in. Each queue finishes its current call or its current sequence of
 * kernels and starts no other; then nns_program_run returns NNS_ECANCELLED. A device that hangs delays this
 * indefinitely, and the run uses its inputs and outputs until then. A run that is over or has failed is not
 * affected. Returns a step that was ready but not done (the first of its sub-graph), or -1. The program must
 * not be destroyed during the call. */
NNS_EXPORT int64_t nns_program_cancel(nns_program *program);

/* The step at which the last run failed, or that was current when the failure was detected; -1 if it did not
 * fail. No other thread may start a run meanwhile. */
NNS_EXPORT int64_t nns_program_failed_step(const nns_program *program);

/* Frees a program; NULL is allowed. No run may be in progress. */
NNS_EXPORT void nns_program_destroy(nns_program *program);

/* Loads the OpenCL functions from the shared library at `path`, which links an ICD loader. Required once before
 * the first program with OpenCL queues is created. */
NNS_EXPORT int32_t nns_opencl_load(const char *path, char *error, int64_t error_size);

/* ---- the library --------------------------------------------------------------------------------------- */

/* NNS_ABI of the library. */
NNS_EXPORT int32_t nns_abi(void);
/* Floats per vector, which is the channel block of blocked layouts: 16, 8 or 4. */
NNS_EXPORT int32_t nns_block(void);

/* Kernels are numbered from 0. Numbers differ between libraries and CPUs; names do not. */
NNS_EXPORT int64_t nns_kernel_count(void);
NNS_EXPORT const char *nns_kernel_name(int64_t id);   /* NULL out of range */
NNS_EXPORT int64_t nns_kernel_find(const char *name); /* -1 if this CPU can run no kernel of that name */
/* The CPU features that a kernel requires beyond the library's instruction set: a mask with the bits of
 * nns_cpu_feature_name. A library may hold several variants of a kernel under one name. It uses the variant
 * with the most features among those that this CPU can run. */
NNS_EXPORT uint64_t nns_kernel_features(int64_t id);
/* The first feature that this CPU lacks for a kernel of that name; NULL if the CPU can run it or the library
 * does not hold it. */
NNS_EXPORT const char *nns_kernel_missing_feature(const char *name);

/* The features of this CPU (CPUID, HWCAP) that the operating system supports. They are detected once per process. The
 * environment variable NNSTRETCH_CPU_FEATURES hides features for tests and debugging: "-fma,-avx512f". */
NNS_EXPORT uint64_t nns_cpu_features(void);
/* The name of bit `bit` of these masks, as in /proc/cpuinfo; NULL out of range. */
NNS_EXPORT const char *nns_cpu_feature_name(int32_t bit);

/* ---- measurements -------------------------------------------------------------------------------------- */

/* Peak float32 GFLOP/s of one thread on the current core: independent fused multiply-adds on registers, for about
 * `milliseconds`. */
NNS_EXPORT double nns_peak_gflops(int32_t milliseconds);

/* Current float32 GFLOP/s of one thread on the current core: a matrix product from the L1 cache, for some tens
 * of microseconds. Unlike the peak it follows the core's clock and the load of hyper-threads on the same core. */
NNS_EXPORT double nns_clock_gflops(void);

/* Evicts the cache lines of `bytes` at `memory` from the caches of all cores, so that the next read comes from
 * memory. Has no effect on processors without such an instruction. */
NNS_EXPORT void nns_flush(const void *memory, int64_t bytes);

/* ---- crashes ------------------------------------------------------------------------------------------- */

/* Before a signal of its own instructions (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) ends the process, one line is written
 * to the standard error: "error: ", the signal's name and `text`, as of the last call. Handlers that there were run next,
 * and the signal still ends the process. A handler of SIGFPE is left alone. */
NNS_EXPORT void nns_crash_line(const char *text);

#ifdef __cplusplus
}
#endif
#endif
