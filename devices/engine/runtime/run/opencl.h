/* The OpenCL functions that queues need, loaded at run time: the engine needs neither OpenCL headers nor an ICD
 * loader to build.
 *
 * The host owns SHARED memory between sub-graphs. A MAPPED region is unmapped before and mapped after the
 * kernels of a sub-graph that acquires or releases it. A COPIED region is written before and read after them. A
 * COHERENT region needs no command: a kernel sees all writes before it was enqueued or its semaphore ended, and
 * the host sees a kernel's writes once it has waited for its event.
 */
#ifndef NNS_OPENCL_H
#define NNS_OPENCL_H

#include "program/program.h"

bool nns_opencl_loaded(void);
/* A function of the loaded library; NULL if it has none of that name. */
void *nns_opencl_function(const char *name);
/* Reports an OpenCL error of a function unless `code` is 0. */
int32_t nns_opencl_check(int32_t code, const char *function, nns_report *report);
/* In the child of a fork: another thread of the parent may have held the lock of nns_opencl_load. */
void nns_opencl_unlock_loading(void);

/* Whether a region is MAPPED and not empty. */
bool nns_needs_mapping(const nns_area *area);

/* Map a MAPPED region for the host; unmap it for the device. Without `wait` the command is only enqueued.
 * `event` may be NULL. */
int32_t nns_opencl_map(nns_area *area, void *command_queue, bool wait, void **event, nns_report *report);
int32_t nns_opencl_unmap(nns_area *area, void *command_queue, nns_report *report);

/* Enqueues a sub-graph without blocking, behind its semaphore if `gated`, and flushes. `*last` receives the
 * event of the last command. With `times` (2 per step of the program) each launch gets an event in
 * `step_events`, and `times` receives the host's times before and after enqueueing it; without, launches that are
 * recorded are one command. `*at` receives the last step that was tried, the first one of a command buffer. */
int32_t nns_opencl_enqueue(nns_program *program, int64_t index, bool gated, void **last, void **step_events,
                           int64_t *times, int64_t *at, nns_report *report);

/* Whether an event's command is complete: 1 or 0, or -1 with a report if it failed. After 1 the host sees what the
 * command wrote. */
int32_t nns_opencl_poll(void *event, nns_report *report);
/* Blocks until an event's command is complete; then the host sees what it wrote. */
int32_t nns_opencl_wait(void *event, nns_report *report);
int32_t nns_opencl_finish(void *command_queue, nns_report *report);
void nns_opencl_forget(void *event);

/* Device times of an event; false if the command queue does not profile. */
typedef struct {
    uint64_t queued, start, end;
} nns_profile;
bool nns_opencl_profile(void *event, nns_profile *profile);

#endif
