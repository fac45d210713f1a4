/* Turns: each is some runs of one model, with what the sensors show meanwhile. */
#ifndef NNS_TURNS_H
#define NNS_TURNS_H

#include "machine/energy.h"
#include "models/entry.h"

typedef struct {
    const nns_options *options;
    nns_sysfs fs;
    nns_thermal thermal;
    nns_energy energy;
    const nns_entry *last; /* the model that ran last, if nothing has paused since */
    bool is_alone;         /* one model runs at a time, until it is done */
} nns_turns;

void nns_turns_open(nns_turns *turns, const nns_options *options);

/* The runs before the first timed one, and the state of the sensors then. */
void nns_warm_up(nns_turns *turns, nns_entry *entry);

/* Times runs for about `milliseconds`, at least one, and at most `most`. Where another model ran before, untimed runs of about
 * a millisecond come first: they bring the model's weights back to the caches. `second`, which may be NULL, receives the
 * durations, too. */
void nns_take_turn(nns_turns *turns, nns_entry *entry, double milliseconds, int64_t most, nns_samples *second);

/* Called when a model's timed runs are over. */
void nns_end_turns(nns_turns *turns, nns_entry *entry);

#endif
