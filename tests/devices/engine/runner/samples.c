/* The runner's statistics for tests: percentiles of durations as floats. */
#include "../../../../devices/engine/runner/timing/samples.c"

#define EXPORT __attribute__((visibility("default")))

/* Adds durations and writes percentiles, and what is kept. Returns the number of kept durations. */
EXPORT int64_t summarise(const double *durations, int64_t count, const double *percents, double *values, int n_percents,
                         float *kept, double *sum, double *min) {
    nns_samples samples = {0};
    for (int64_t i = 0; i < count; i++)
        if (!nns_samples_add(&samples, durations[i])) return -1;
    nns_samples_percentiles(&samples, percents, values, n_percents);
    if (samples.count) memcpy(kept, samples.kept, (size_t)samples.count * sizeof *kept);
    *sum = samples.sum;
    *min = samples.min;
    const int64_t found = samples.count;
    nns_samples_free(&samples);
    return found;
}
