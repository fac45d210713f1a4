/* Divides the units of a task among threads. */
#include "pool.h"

enum { MOST_SHARES = UINT16_MAX };

_Static_assert((int64_t)NNS_MAX_CORES * NNS_MAX_RATIO <= INT64_MAX / NNS_MAX_RATIO, "products of shares overflow");

/* A part's exact share, units · ratio / sum: the quotient and the remainder. */
typedef struct {
    int64_t whole, rest;
} exact_share;

/* Multiplies by the remainder of units / sum, which is small: units · ratio may exceed 64 bits. */
static exact_share share_of(int64_t units, int64_t ratio, int64_t sum) {
    const int64_t product = units % sum * ratio;
    return (exact_share){units / sum * ratio + product / sum, product % sum};
}

/* Rounds up the part with the largest remainder among those that are still rounded down. */
static void round_up_one(int64_t units, const int64_t *ratios, int32_t n, int64_t sum, int64_t *parts) {
    int32_t best = 0;
    int64_t most = -1;
    for (int32_t i = 0; i < n; i++) {
        const exact_share share = share_of(units, ratios[i], sum);
        if (parts[i] == share.whole && share.rest > most) best = i, most = share.rest;
    }
    parts[best]++;
}

void nns_split_units(int64_t units, const int64_t *ratios, int32_t n, int64_t *parts) {
    if (!ratios) {
        for (int32_t i = 0; i < n; i++) parts[i] = units / n + (i < units % n);
        return;
    }
    int64_t sum = 0, left = units;
    for (int32_t i = 0; i < n; i++) sum += ratios[i];
    for (int32_t i = 0; i < n; i++) {
        parts[i] = share_of(units, ratios[i], sum).whole;
        left -= parts[i];
    }
    for (; left > 0; left--) round_up_one(units, ratios, n, sum, parts);
}

void nns_task_make(nns_task *task, const nns_kernel *kernel, const nns_args *args, int64_t units, const int64_t *ratios,
                   int32_t n_threads, uint16_t *bounds, const nns_task *previous) {
    const int64_t grain = nns_max_int(nns_ceil_div(units, MOST_SHARES), 1);
    *task = (nns_task){
        .kernel = kernel,
        .args = args,
        .units = units,
        .grain = grain,
        .shares = nns_ceil_div(units, grain),
        .before = previous ? previous->before + previous->shares : 0,
        .bounds = bounds,
    };
    int64_t parts[NNS_MAX_CORES];
    nns_split_units(task->shares, ratios, n_threads, parts);
    bounds[0] = 0;
    for (int32_t i = 0; i < n_threads; i++) bounds[i + 1] = (uint16_t)(bounds[i] + parts[i]);
}
