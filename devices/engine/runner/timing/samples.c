#include "samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool grow(nns_samples *samples) {
    enum { FIRST = 64 };
    const int64_t capacity = samples->capacity ? 2 * samples->capacity : FIRST;
    float *larger = realloc(samples->kept, (size_t)capacity * sizeof *larger);
    if (!larger) return false;
    samples->kept = larger;
    samples->capacity = capacity;
    return true;
}

static void thin_out(nns_samples *samples) {
    samples->count /= 2;
    for (int64_t i = 0; i < samples->count; i++) samples->kept[i] = samples->kept[2 * i];
    samples->stride *= 2;
}

bool nns_samples_add(nns_samples *samples, double milliseconds) {
    if (!samples->stride) samples->stride = 1;
    if (!samples->runs || milliseconds < samples->min) samples->min = milliseconds;
    samples->sum += milliseconds;
    if (samples->runs++ % samples->stride) return true;
    if (samples->count == NNS_MOST_SAMPLES) {
        thin_out(samples);
        if ((samples->runs - 1) % samples->stride) return true;
    }
    if (samples->count == samples->capacity && !grow(samples)) return false;
    samples->kept[samples->count++] = (float)milliseconds;
    return true;
}

void nns_samples_clear(nns_samples *samples) {
    *samples = (nns_samples){.kept = samples->kept, .capacity = samples->capacity};
}

void nns_samples_free(nns_samples *samples) {
    free(samples->kept);
    *samples = (nns_samples){0};
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void nns_samples_percentiles(const nns_samples *samples, const double *percents, double *values, int count) {
    float *sorted = samples->count ? malloc((size_t)samples->count * sizeof *sorted) : NULL;
    if (sorted) {
        memcpy(sorted, samples->kept, (size_t)samples->count * sizeof *sorted);
        qsort(sorted, (size_t)samples->count, sizeof *sorted, ascending);
    }
    for (int i = 0; i < count; i++) {
        const double at = (double)(samples->count - 1) * percents[i] / 100;
        const int64_t below = (int64_t)at, above = below + 1 < samples->count ? below + 1 : below;
        values[i] = sorted ? sorted[below] + (at - (double)below) * ((double)sorted[above] - sorted[below]) : NAN;
    }
    free(sorted);
}
