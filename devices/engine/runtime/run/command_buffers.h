/* Command buffers of OpenCL queues (cl_khr_command_buffer): the launches of a sub-graph are recorded once, and runs without
 * a trace enqueue them as one command.
 *
 * A command buffer holds the launches of one sub-graph and nothing else: unmapping and writes before them, reads and mapping
 * after them, and semaphores are enqueued one by one. Every launch waits for the one before it, so the order is that of an
 * in-order queue. */
#ifndef NNS_COMMAND_BUFFERS_H
#define NNS_COMMAND_BUFFERS_H

#include "program/program.h"

/* Records all sub-graphs of an OpenCL queue that have several launches. `*count` receives their number. After a failure
 * none is recorded. */
int32_t nns_command_buffers_record(nns_program *program, int32_t queue, int64_t *count, nns_report *report);

/* Enqueues a recorded sub-graph. `event` may be NULL. `*taken` receives whether its launches are enqueued; if they are not and
 * nothing failed, the driver was not ready for the command buffer, and they have to be enqueued one by one. After a failure
 * the sub-graph is recorded no longer. */
int32_t nns_command_buffer_enqueue(nns_program *program, int64_t subgraph, void **event, bool *taken, nns_report *report);

/* Releases all command buffers of a queue, whose commands are done. */
void nns_command_buffers_release(nns_program *program, int32_t queue);

#endif
