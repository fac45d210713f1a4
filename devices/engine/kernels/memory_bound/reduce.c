/* Reductions over one axis of a plain tensor, seen as outer × length × inner with the axis in the middle. */
#include <math.h>

#include "memory_bound.h"

/* ---- reduce: reads x, writes outer × inner results. -------------------------------------------------------------- */

enum { SUM, MEAN, MAXIMUM, MINIMUM, ABSOLUTE_SUM, ROOT_OF_SQUARES, SQUARES, PRODUCT };

/* Rows, or vectors of a row, that are joined before they are joined to the total, whose error would grow with the length if each
 * was added to it. */
enum { PART = 256 };

static const char *reduce_check(const nns_args *args, nns_work *work) {
    const reduce_parameters *p = (const void *)args->p;
    const char *wrong = NNS_CHECK_SIZES(reduce, args, NNS_FLOAT_BYTES(p->outer, p->inner),
                                        NNS_FLOAT_BYTES(p->outer, p->length, p->inner));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->outer * (p->inner == 1 ? 1 : nns_ceil_div(p->inner, NNS_BLOCK))};
    return NULL;
}

/* What changes no result that it is joined to. */
NNS_INLINE float neutral(int mode) {
    if (mode == MAXIMUM) return -INFINITY;
    if (mode == MINIMUM) return INFINITY;
    return mode == PRODUCT ? 1.0f : 0.0f;
}

/* An element as it enters the result. */
NNS_INLINE nns_vec term(nns_vec x, int mode) {
    if (mode == ABSOLUTE_SUM) return nns_absolute(x);
    return mode == ROOT_OF_SQUARES || mode == SQUARES ? x * x : x;
}

NNS_INLINE nns_vec join(nns_vec a, nns_vec b, int mode) {
    if (mode == MAXIMUM) return nns_max(a, b);
    if (mode == MINIMUM) return nns_min(a, b);
    return mode == PRODUCT ? a * b : a + b;
}

NNS_INLINE float finished(float total, int64_t length, int mode) {
    if (mode == MEAN) return total / (float)length;
    return mode == ROOT_OF_SQUARES ? sqrtf(total) : total;
}

/* The lanes of `n` neighbours, joined by their index modulo NNS_BLOCK. */
NNS_INLINE nns_vec reduce_part(const float *x, int64_t n, int mode) {
    const nns_vec start = nns_broadcast(neutral(mode));
    nns_vec totals[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 * NNS_BLOCK <= n; i += 4 * NNS_BLOCK)
        for (int j = 0; j < 4; j++) totals[j] = join(totals[j], term(nns_load(x + i + j * NNS_BLOCK), mode), mode);
    for (; i < n; i += NNS_BLOCK) {
        const int64_t some = nns_min_int(n - i, NNS_BLOCK);
        totals[0] = join(totals[0], term(nns_load_some(x + i, some, neutral(mode)), mode), mode);
    }
    return join(join(totals[0], totals[1], mode), join(totals[2], totals[3], mode), mode);
}

/* One contiguous row. */
NNS_INLINE float reduce_row(const float *x, int64_t n, int mode) {
    nns_vec all = nns_broadcast(neutral(mode));
    for (int64_t i = 0; i < n; i += PART * NNS_BLOCK)
        all = join(all, reduce_part(x + i, nns_min_int(n - i, PART * NNS_BLOCK), mode), mode);
    float total = all[0];
    if (mode == MAXIMUM) total = nns_max_lanes(all);
    else if (mode == MINIMUM) total = -nns_max_lanes(-all);
    else if (mode == PRODUCT)
        for (int j = 1; j < NNS_BLOCK; j++) total *= all[j];
    else total = nns_sum_lanes(all);
    return finished(total, n, mode);
}

/* `some` neighbouring columns of `length` rows that are `inner` floats apart: each lane is one result. */
NNS_INLINE void reduce_columns(float *out, const float *x, int64_t length, int64_t inner, int64_t some, int mode) {
    nns_vec total = nns_broadcast(neutral(mode));
    for (int64_t first = 0; first < length; first += PART) {
        const int64_t stop = nns_min_int(first + PART, length);
        nns_vec part = nns_broadcast(neutral(mode));
        for (int64_t i = first; i < stop; i++)
            part = join(part, term(nns_load_some(x + i * inner, some, 0.0f), mode), mode);
        total = join(total, part, mode);
    }
    for (int j = 0; j < NNS_BLOCK; j++) total[j] = finished(total[j], length, mode);
    nns_store_some(out, total, some);
}

NNS_INLINE void reduce_units(const nns_args *args, int64_t begin, int64_t end, int mode) {
    const reduce_parameters *p = (const void *)args->p;
    const float *x = args->in[0];
    float *out = args->out[0];
    const int64_t length = p->length, inner = p->inner, tiles = nns_ceil_div(inner, NNS_BLOCK);
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        if (inner == 1) {
            out[unit] = reduce_row(x + unit * length, length, mode);
            clamp_and_finish(out + unit, 1, &activation);
            continue;
        }
        const int64_t column = unit % tiles * NNS_BLOCK, row = unit / tiles;
        const int64_t some = nns_min_int(inner - column, NNS_BLOCK);
        const float *from = x + row * length * inner + column;
        float *to = out + row * inner + column;
        if (some == NNS_BLOCK)
            reduce_columns(to, from, length, inner, NNS_BLOCK, mode);
        else
            reduce_columns(to, from, length, inner, some, mode);
        clamp_and_finish(to, some, &activation);
    }
}

static void reduce_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    switch (((const reduce_parameters *)(const void *)args->p)->mode) {
    case SUM: reduce_units(args, begin, end, SUM); break;
    case MEAN: reduce_units(args, begin, end, MEAN); break;
    case MAXIMUM: reduce_units(args, begin, end, MAXIMUM); break;
    case MINIMUM: reduce_units(args, begin, end, MINIMUM); break;
    case ABSOLUTE_SUM: reduce_units(args, begin, end, ABSOLUTE_SUM); break;
    case ROOT_OF_SQUARES: reduce_units(args, begin, end, ROOT_OF_SQUARES); break;
    case SQUARES: reduce_units(args, begin, end, SQUARES); break;
    default: reduce_units(args, begin, end, PRODUCT);
    }
}

NNS_DEFINE_FAMILY(reduce);
