/* The parts of a host, for the files of this folder. */
#ifndef NNS_OCL_HOST_H
#define NNS_OCL_HOST_H

#include "drivers/drivers.h"
#include "opencl_host.h"
#include "memory/pages.h"
#include "kernels/sources.h"

/* Device memory. Its pages are those of the host that it uses, or NULL. */
typedef struct {
    ocl_handle buffer;
    nns_ocl_pages pages;
} nns_ocl_memory;

/* Memory that host and device share: a part of an allocation of shared virtual memory, or memory of its own. */
typedef struct {
    nns_ocl_memory memory;
    ocl_handle pinned; /* the buffer that is mapped at `host`, where the device has a copy; or NULL */
    char *host;
    int32_t sharing; /* NNS_SHARING_… */
} nns_ocl_shared;

/* An allocation of fine-grained shared virtual memory, and a buffer of all of it. */
typedef struct {
    char *start;
    ocl_handle buffer;
} nns_ocl_svm;

/* A queue with what belongs to its device. */
typedef struct {
    const nns_ocl_queue *plan;
    const nns_ocl_device *device;
    ocl_handle context, queue;
    nns_ocl_memory constants, arena; /* without a buffer if the plan has none */
    nns_ocl_shared *slots;
    nns_ocl_svm svm; /* of the slots */
} nns_ocl_port;

struct nns_ocl_host {
    const nns_ocl_plan *plan;
    const char *cache; /* folder of built programs; or NULL. Used while the host is made only. */
    nns_ocl_port ports[NNS_MAX_QUEUES];
    ocl_handle *programs; /* of the plan's programs, then that of semaphores */
    nns_launch *launches;
    ocl_handle *images; /* of all launches, each after the part of a buffer that it is made of, or NULL */
    int64_t n_images;   /* of these handles */
    nns_launch *semaphores; /* one per sub-graph; or NULL */
    int32_t *flags;         /* of semaphores */
    nns_ocl_shared signals; /* memory of flags and of what semaphores wait for */
    nns_ocl_svm signal_svm;
    int32_t cores[NNS_MAX_CORES]; /* of devices on the CPU, ascending */
    int32_t n_cores;
};

/* ---- choice.c --------------------------------------------------------------------------------------------- */

/* Chooses the device of a queue. `wanted` is a number or a part of a name that goes before the plan's, or NULL. */
int32_t nns_ocl_choose(const nns_ocl_queue *queue, const char *wanted, const nns_ocl_device **device,
                       nns_report *report);

/* ---- memory.c --------------------------------------------------------------------------------------------- */

/* Makes constants, arena and slots of a port. */
int32_t nns_ocl_make_memory(nns_ocl_port *port, nns_report *report);
void nns_ocl_free_memory(nns_ocl_port *port);

/* Makes `count` zeroed memories that host and device share, of `sizes` in bytes. `shared` and `svm` are zeroed before, and freed by
 * nns_ocl_free_shared, also on failure. */
int32_t nns_ocl_share(const nns_ocl_port *port, const int64_t *sizes, int64_t count, nns_ocl_shared *shared,
                      nns_ocl_svm *svm, nns_report *report);
void nns_ocl_free_shared(const nns_ocl_port *port, nns_ocl_shared *shared, int64_t count, nns_ocl_svm *svm);

/* How host and device share memory (NNS_SHARING_…): the cheapest way that the device has. */
int32_t nns_ocl_sharing(const nns_ocl_device *device);

/* ---- programs.c ------------------------------------------------------------------------------------------- */

/* Builds a source with macros for a port's device, or reads what was built before. */
int32_t nns_ocl_build(const nns_ocl_port *port, const nns_ocl_source *source, const nns_ocl_program *macros,
                      const char *cache, ocl_handle *program, nns_report *report);

/* ---- binary_cache.c --------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *bytes;
    size_t count;
} nns_ocl_binary;

/* Writes the path of a program's file: a hash of everything that its binary depends on, as devices/opencl/runtime.py has it. Returns
 * whether it fits. */
bool nns_ocl_binary_path(const char *folder, const nns_ocl_device *device, const char *text, const char *options,
                         char *path, size_t size);
/* Reads a binary; without bytes if there is none or it is damaged. The caller frees the bytes. */
nns_ocl_binary nns_ocl_binary_read(const char *path);
/* Writes a binary; the file appears whole or not at all. Failures only cost time later. */
void nns_ocl_binary_write(const char *path, const nns_ocl_binary *binary);

/* ---- launches.c ------------------------------------------------------------------------------------------- */

/* A memory argument: a buffer, an image or NULL, and an offset in elements. */
typedef struct {
    ocl_handle buffer;
    int64_t offset;
} nns_ocl_argument;

/* Makes a kernel and sets its arguments: `count` of memory, then a struct of their offsets and of integers. */
int32_t nns_ocl_make_kernel(const nns_ocl_port *port, ocl_handle program, const nns_ocl_source *source,
                            const char *name, const nns_ocl_argument *memory, int64_t count, const int64_t *integers,
                            int64_t n_integers, ocl_handle *kernel, nns_report *report);

/* ---- images.c --------------------------------------------------------------------------------------------- */

/* A part of a buffer that a kernel reads as an image: whole pixels. */
typedef struct {
    ocl_handle buffer;
    int64_t buffer_bytes, offset, bytes;
    int64_t element; /* bytes: 4 for float32, 2 for float16 */
} nns_ocl_pixels;

/* Makes an image as an argument: of the whole buffer, or of hardly more than the part where the device has none of that size. It is
 * released with `host`. */
int32_t nns_ocl_make_image(nns_ocl_host *host, const nns_ocl_port *port, const nns_ocl_pixels *pixels,
                           nns_ocl_argument *argument, nns_report *report);
/* Makes the list for the images of the plan; returns whether there is memory for it. */
bool nns_ocl_expect_images(nns_ocl_host *host);
void nns_ocl_free_images(nns_ocl_host *host);

/* ---- launches.c ------------------------------------------------------------------------------------------- */

/* Makes all launches of the plan. */
int32_t nns_ocl_make_launches(nns_ocl_host *host, nns_report *report);

/* ---- semaphores.c ----------------------------------------------------------------------------------------- */

/* Makes semaphores if the plan and the device take them: see nns_engine.h. */
int32_t nns_ocl_make_semaphores(nns_ocl_host *host, nns_report *report);

#endif
