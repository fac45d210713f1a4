/* Measures all models. */
#ifndef NNS_RACE_H
#define NNS_RACE_H

#include "turns.h"

enum { NNS_STOPPED_TEXT = 256 };

typedef struct {
    nns_turns turns;
    nns_entry *entries;
    int32_t n_entries;
    char stopped[NNS_STOPPED_TEXT]; /* why it ended early; "" if it did not */
    uint64_t drawn;                 /* random words of the order */
    int64_t limit_read, reported;   /* when the thermal limit was last checked, and progress last reported */
    int64_t weights, activations;   /* bytes of the batch */
    bool is_trimming;               /* models give the memory of their activations back after every turn */
} nns_race;

/* Measures the models of the command line.
 *
 * Models are loaded in their order until their weights would take half of the memory that is available; these are one batch.
 * The rest follows in more batches. Once the activations of a batch would take an eighth, its models give theirs back after
 * every turn. Models of one batch have turns of at most 100 ms, one per round, in an order that is drawn for
 * every round, until each has been timed for long enough. With a sustained run or a pause between models, they run one
 * after the other instead. */
void nns_race_run(nns_race *race, const nns_options *options);
void nns_race_free(nns_race *race);

#endif
