/* The durations of a model's timed runs. */
#ifndef NNS_SAMPLES_H
#define NNS_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

/* The most durations that are kept. Once there are more, every second one is dropped, and only every second run is kept from
 * then on: the kept ones are always evenly spread over the runs. */
enum { NNS_MOST_SAMPLES = 1 << 17 };

typedef struct {
    float *kept; /* milliseconds, in the order of the runs */
    int64_t count, capacity;
    int64_t stride; /* one run in `stride` is kept; 0 before the first */
    int64_t runs;
    double sum, min; /* over all runs, milliseconds */
} nns_samples;

/* Returns false if there is no memory. */
bool nns_samples_add(nns_samples *samples, double milliseconds);

/* Empties them and keeps the memory. */
void nns_samples_clear(nns_samples *samples);
void nns_samples_free(nns_samples *samples);

/* Writes percentiles of the kept durations: of n sorted values, the one at the position (n - 1) q / 100, counted from 0 and
 * interpolated linearly between its neighbours (definition 7 of Hyndman and Fan, numpy's default). NaN without values, and
 * if there is no memory. */
void nns_samples_percentiles(const nns_samples *samples, const double *percents, double *values, int count);

#endif
