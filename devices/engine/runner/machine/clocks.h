/* The clocks of a model's cores, and whether they were throttled. */
#ifndef NNS_CLOCKS_H
#define NNS_CLOCKS_H

#include "answer/json.h"
#include "sysfs.h"

enum { NNS_MOST_COOLING_DEVICES = 64 };

typedef struct {
    int32_t number;
    int64_t full_khz;      /* the clock that a busy core should have; NNS_UNKNOWN if the governor holds another one */
    int64_t before, after; /* kHz */
    int64_t throttle_count;
} nns_core_clock;

typedef struct {
    nns_sysfs fs;
    nns_core_clock *cores;
    int32_t n_cores;
    nns_sysfs_name cooling[NNS_MOST_COOLING_DEVICES]; /* devices that slow a CPU down */
    int32_t n_cooling;
    int64_t readings, slow_readings; /* of clocks while the cores were busy */
    bool is_known;                   /* some sign of throttling can be read */
    bool is_limited;                 /* the kernel or its user lowered a limit, or the CPU reported that it throttled itself */
} nns_clocks;

void nns_clocks_open(nns_clocks *clocks, const nns_sysfs *fs, const int32_t *cores, int32_t n_cores);
void nns_clocks_free(nns_clocks *clocks);

/* Reads the clocks before the first timed run. */
void nns_clocks_before(nns_clocks *clocks);

/* Called before and right after a turn of runs: what happens between turns, when others run, does not count. */
void nns_clocks_begin_turn(nns_clocks *clocks);
void nns_clocks_end_turn(nns_clocks *clocks);

/* The mean clock of the cores at the end of the last turn, in kHz; NNS_UNKNOWN if none is known. */
int64_t nns_clocks_mean(const nns_clocks *clocks);

/* Writes the clocks of each core, and whether the cores were throttled: a limit of the kernel was below the hardware's, a
 * cooling device of a CPU was active, an x86 CPU counted throttling, or more than a quarter of the clocks that were read
 * while the cores were busy were below 90 % of the full clock (the base clock where the kernel knows one, else the
 * maximum). null if none of these can be read. */
void nns_clocks_write(const nns_clocks *clocks, nns_json *json);

#endif
