/* Runs a validated program on its queues. */
#ifndef NNS_EXECUTOR_H
#define NNS_EXECUTOR_H

#include "program.h"

/* Starts the queues' threads and maps SHARED memory for the host. After a failure, too, nns_executor_stop frees
 * everything. */
int32_t nns_executor_start(nns_program *program, nns_report *report);
void nns_executor_stop(nns_program *program);

/* Before and after the runs of nns_program_run and nns_program_time: announces the run to the pools, and moves
 * the calling thread to queue 0's first core and back. The caller holds the program's lock. */
int32_t nns_executor_enter(nns_program *program, nns_report *report);
void nns_executor_leave(nns_program *program);

/* One run, between enter and leave. The operands of inputs and outputs must be set. */
int32_t nns_executor_run(nns_program *program, nns_trace *trace, nns_report *report);

/* See nns_program_cancel and nns_program_failed_step. */
int64_t nns_executor_cancel(nns_program *program);
int64_t nns_executor_failed_step(const nns_program *program);

#endif
