/* Resizing of planes. Tables hold the source of each output row and column, so that kernels need no coordinate modes.
 * Their values cannot be checked before a run: every index is clamped to the plane when it is used. */
#include "memory_bound.h"

NNS_INLINE int64_t within(int32_t index, int64_t size) { return nns_min_int(nns_max_int(index, 0), size - 1); }

enum { INDEX_BYTES = sizeof(int32_t) };

#define LANES 1
#include "resize_lanes.inc"

#define LANES 4
#include "resize_lanes.inc"

#define LANES 8
#include "resize_lanes.inc"

#define LANES 16
#include "resize_lanes.inc"

/* ---- resize/nearest: reads x, source row of each output row, source column of each output column (int32). -------- */

static const char *nearest_check(const nns_args *args, nns_work *work) {
    const resize_nearest_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(resize_nearest, args, NNS_FLOAT_BYTES(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_FLOAT_BYTES(p->planes, p->lanes, p->height, p->width), INDEX_BYTES * p->out_height,
                        INDEX_BYTES * p->out_width);
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

static void nearest_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const resize_nearest_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, height = p->height, width = p->width;
    const int64_t out_height = p->out_height, out_width = p->out_width;
    const int32_t *rows = args->in[1], *columns = args->in[2];
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / out_height * height + within(rows[unit % out_height], height);
        const float *x = (const float *)args->in[0] + row * width * lanes;
        float *out = (float *)args->out[0] + unit * out_width * lanes;
        switch (lanes) {
        case 1: resize_nearest_1(out, x, columns, out_width, width); break;
        case 4: resize_nearest_4(out, x, columns, out_width, width); break;
        case 8: resize_nearest_8(out, x, columns, out_width, width); break;
        default: resize_nearest_16(out, x, columns, out_width, width);
        }
        clamp_and_finish(out, out_width * lanes, &activation);
    }
}

/* ---- resize/linear: reads x; two source rows of each output row (int32) and the weight of the second; the same for --
 * columns. */

static const char *linear_check(const nns_args *args, nns_work *work) {
    const resize_nearest_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(resize_linear, args, NNS_FLOAT_BYTES(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_FLOAT_BYTES(p->planes, p->lanes, p->height, p->width), 2 * INDEX_BYTES * p->out_height,
                        NNS_FLOAT_BYTES(p->out_height), 2 * INDEX_BYTES * p->out_width, NNS_FLOAT_BYTES(p->out_width));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

static void linear_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const resize_nearest_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, height = p->height, width = p->width;
    const int64_t out_height = p->out_height, out_width = p->out_width;
    const int32_t *rows = args->in[1], *columns = args->in[3];
    const float *row_weights = args->in[2], *weights = args->in[4];
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t oh = unit % out_height;
        const float *plane = (const float *)args->in[0] + unit / out_height * height * width * lanes;
        const float *top = plane + within(rows[2 * oh], height) * width * lanes;
        const float *bottom = plane + within(rows[2 * oh + 1], height) * width * lanes;
        const float down = row_weights[oh];
        float *out = (float *)args->out[0] + unit * out_width * lanes;
        switch (lanes) {
        case 1: resize_linear_1(out, top, bottom, down, columns, weights, out_width, width); break;
        case 4: resize_linear_4(out, top, bottom, down, columns, weights, out_width, width); break;
        case 8: resize_linear_8(out, top, bottom, down, columns, weights, out_width, width); break;
        default: resize_linear_16(out, top, bottom, down, columns, weights, out_width, width);
        }
        clamp_and_finish(out, out_width * lanes, &activation);
    }
}

/* ---- resize/filter: reads x; `row_taps` source rows of each output row (int32) and their weights; the same for -------
 * columns. Source rows are summed into one row first, since that runs along memory. */

static const char *filter_check(const nns_args *args, nns_work *work) {
    const resize_filter_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(resize_filter, args, NNS_FLOAT_BYTES(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_FLOAT_BYTES(p->planes, p->lanes, p->height, p->width),
                        NNS_FLOAT_BYTES(p->row_taps, p->out_height), NNS_FLOAT_BYTES(p->row_taps, p->out_height),
                        NNS_FLOAT_BYTES(p->column_taps, p->out_width), NNS_FLOAT_BYTES(p->column_taps, p->out_width));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height, .scratch = NNS_FLOAT_BYTES(p->width, p->lanes)};
    return NULL;
}

/* The weighted sum of rows of `n` floats. */
static void sum_rows(float *sum, const float *plane, const int32_t *rows, const float *weights, int64_t taps, int64_t n,
                     int64_t height) {
    for (int64_t tap = 0; tap < taps; tap++) {
        const float *row = plane + within(rows[tap], height) * n;
        const float weight = weights[tap];
        if (tap == 0)
            for (int64_t i = 0; i < n; i++) sum[i] = row[i] * weight;
        else
            for (int64_t i = 0; i < n; i++) sum[i] += row[i] * weight;
    }
}

static void filter_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const resize_filter_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, height = p->height, width = p->width, taps = p->column_taps;
    const int64_t out_height = p->out_height, out_width = p->out_width, row = width * lanes;
    const int32_t *rows = args->in[1], *columns = args->in[3];
    const float *row_weights = args->in[2], *weights = args->in[4];
    const epilogue activation = epilogue_of(&p->activation);
    float *const sum = scratch;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % out_height * p->row_taps;
        const float *plane = (const float *)args->in[0] + unit / out_height * height * row;
        float *out = (float *)args->out[0] + unit * out_width * lanes;
        sum_rows(sum, plane, rows + first, row_weights + first, p->row_taps, row, height);
        switch (lanes) {
        case 1: resize_filter_1(out, sum, columns, weights, taps, out_width, width); break;
        case 4: resize_filter_4(out, sum, columns, weights, taps, out_width, width); break;
        case 8: resize_filter_8(out, sum, columns, weights, taps, out_width, width); break;
        default: resize_filter_16(out, sum, columns, weights, taps, out_width, width);
        }
        clamp_and_finish(out, out_width * lanes, &activation);
    }
}

NNS_DEFINE_FAMILY(resize_nearest);
NNS_DEFINE_FAMILY(resize_linear);
NNS_DEFINE_FAMILY(resize_filter);
