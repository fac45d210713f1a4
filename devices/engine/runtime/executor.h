/* Runs a validated program on its queues. */
#ifndef NNS_EXECUTOR_H
#define NNS_EXECUTOR_H

#include "program.h"

/* Starts the queues' threads and takes SHARED memory for the host. On failure nns_executor_stop undoes what was done. */
int32_t nns_executor_start(nns_program *program, nns_report *report);
void nns_executor_stop(nns_program *program);

/* Called by nns_program_run with the program's turn: tells its pools that a run begins or is over, and moves the calling
 * thread to queue 0's first core, or back. */
int32_t nns_executor_enter(nns_program *program, nns_report *report);
void nns_executor_leave(nns_program *program);

/* One run, between enter and leave. Patched operands must be in place. */
int32_t nns_executor_run(nns_program *program, nns_trace *trace, nns_report *report);

/* See nns_program_cancel and nns_program_failed_step. */
int64_t nns_executor_cancel(nns_program *program);
int64_t nns_executor_failed_step(const nns_program *program);

#endif
