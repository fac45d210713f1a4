/* Softmax over any axis of a plain tensor, seen as outer × length × inner with the axis in the middle. */
#include "memory_bound.h"

/* ---- softmax: reads x, writes softmax. ------------------------------------------------------------------------- */

static const char *softmax_check(const nns_args *args, nns_work *work) {
    const softmax_parameters *p = (const void *)args->p;
    const int64_t bytes = NNS_FLOAT_BYTES(p->outer, p->length, p->inner);
    const char *wrong = NNS_CHECK_SIZES(softmax, args, bytes, bytes);
    if (wrong) return wrong;
    *work = (nns_work){.units = p->outer * (p->inner == 1 ? 1 : nns_ceil_div(p->inner, NNS_BLOCK))};
    return NULL;
}

/* One contiguous row. Lanes beyond its end take no part in the maximum and are left out of the sum. */
static void softmax_row(float *out, const float *x, int64_t n) {
    nns_vec top = nns_broadcast(-FLT_MAX);
    for (int64_t i = 0; i < n; i += NNS_BLOCK) {
        const int64_t some = nns_min_int(n - i, NNS_BLOCK);
        top = nns_max(top, some == NNS_BLOCK ? nns_load(x + i) : nns_load_some(x + i, some, -FLT_MAX));
    }
    const float largest = nns_max_lanes(top);
    nns_vec sums = nns_zero();
    int64_t i = 0;
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) {
        const nns_vec e = nns_exp(nns_load(x + i) - largest);
        nns_store(out + i, e);
        sums += e;
    }
    float sum = nns_sum_lanes(sums);
    if (i < n) {
        const nns_vec e = nns_exp(nns_load_some(x + i, n - i, 0.0f) - largest);
        nns_store_some(out + i, e, n - i);
        for (int64_t j = i; j < n; j++) sum += out[j];
    }
    const float share = 1.0f / sum;
    for (i = 0; i < n; i++) out[i] *= share;
}

/* `some` neighbouring columns of `length` rows that are `inner` floats apart: each lane is one softmax. */
NNS_INLINE void softmax_columns(float *out, const float *x, int64_t length, int64_t inner, int64_t some) {
    nns_vec top = nns_broadcast(-FLT_MAX), sum = nns_zero();
    for (int64_t i = 0; i < length; i++)
        top = nns_max(top, nns_load_some(x + i * inner, some, 0.0f));
    for (int64_t i = 0; i < length; i++) {
        const nns_vec e = nns_exp(nns_load_some(x + i * inner, some, 0.0f) - top);
        nns_store_some(out + i * inner, e, some);
        sum += e;
    }
    const nns_vec share = 1.0f / sum;
    for (int64_t i = 0; i < length; i++)
        nns_store_some(out + i * inner, nns_load_some(out + i * inner, some, 0.0f) * share, some);
}

static void softmax_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *x = args->in[0];
    float *out = args->out[0];
    const softmax_parameters *p = (const void *)args->p;
    const int64_t length = p->length, inner = p->inner;
    const epilogue activation = epilogue_of(&p->activation);
    const int64_t tiles = nns_ceil_div(inner, NNS_BLOCK);
    for (int64_t unit = begin; unit < end; unit++) {
        if (inner == 1) {
            softmax_row(out + unit * length, x + unit * length, length);
            clamp_and_finish(out + unit * length, length, &activation);
            continue;
        }
        const int64_t column = unit % tiles * NNS_BLOCK, at = unit / tiles * length * inner + column;
        const int64_t some = nns_min_int(inner - column, NNS_BLOCK);
        if (some == NNS_BLOCK)
            softmax_columns(out + at, x + at, length, inner, NNS_BLOCK);
        else
            softmax_columns(out + at, x + at, length, inner, some);
        for (int64_t i = 0; i < length; i++) clamp_and_finish(out + at + i * inner, some, &activation);
    }
}

NNS_DEFINE_FAMILY(softmax);
