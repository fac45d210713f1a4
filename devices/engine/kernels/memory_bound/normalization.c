/* Layer normalisation over one axis, and group normalisation over the channels of a group and all pixels.
 *
 * Variances are means of squared distances from the mean, which is computed before: a mean that is large against the
 * deviation costs no digits. Results are (x - mean) · (scale / deviation) + shift. */
#include <math.h>

#include "memory_bound.h"

NNS_DEFINE_READS(group_norm); /* the first are those of the other families */

/* ---- norm/layer: reads x, scale, shift; writes activation(norm(x)). ---------------------------------------------- *
 *
 * x is images × channels × pixels, and each pixel is normalised over its channels; blocked where `block` is NNS_BLOCK,
 * and then scale and shift have zeros in the padding lanes. */

enum { PIXELS = 4, TILE = 4 * NNS_BLOCK };

typedef struct {
    const layer_norm_parameters *p;
    const float *scale, *shift;
    float epsilon, inverse; /* 1 / channels */
    epilogue finish;
} layer_job;

static int64_t layer_units_of_image(const layer_norm_parameters *p) {
    return p->pixels == 1 && !p->block ? 1 : nns_ceil_div(p->pixels, TILE);
}

static const char *layer_check(const nns_args *args, nns_work *work) {
    const layer_norm_parameters *p = (const void *)args->p;
    if (p->block && p->block != NNS_BLOCK) return "the block is not the engine's";
    const int64_t stored = p->block ? nns_ceil_div(p->channels, NNS_BLOCK) * NNS_BLOCK : p->channels;
    const int64_t bytes = NNS_FLOAT_BYTES(p->images, stored, p->pixels), channels = NNS_FLOAT_BYTES(stored);
    const char *wrong = NNS_CHECK_SIZES(layer_norm, args, bytes, bytes, channels, channels);
    if (wrong) return wrong;
    *work = (nns_work){.units = p->images * layer_units_of_image(p)};
    return NULL;
}

/* The factor that the standard deviation of a sum of squares is divided by; one for each lane. */
NNS_INLINE nns_vec layer_factor(const layer_job *job, nns_vec squares) {
    nns_vec factor;
    for (int i = 0; i < NNS_BLOCK; i++) factor[i] = 1.0f / sqrtf(squares[i] * job->inverse + job->epsilon);
    return factor;
}

/* One contiguous row: the sum of x - mean, or of its square. */
NNS_INLINE float row_sum(const float *x, int64_t n, float mean, bool squared) {
    nns_vec sums[4] = {nns_zero(), nns_zero(), nns_zero(), nns_zero()};
    int64_t i = 0;
    for (; i + 4 * NNS_BLOCK <= n; i += 4 * NNS_BLOCK)
        for (int j = 0; j < 4; j++) {
            const nns_vec d = nns_load(x + i + j * NNS_BLOCK) - mean;
            sums[j] += squared ? d * d : d;
        }
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) {
        const nns_vec d = nns_load(x + i) - mean;
        sums[0] += squared ? d * d : d;
    }
    float sum = nns_sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) sum += squared ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return sum;
}

static void layer_row(const layer_job *job, float *out, const float *x) {
    const int64_t n = job->p->channels;
    const float mean = job->p->rms ? 0.0f : row_sum(x, n, 0.0f, false) * job->inverse;
    const float factor = 1.0f / sqrtf(row_sum(x, n, mean, true) * job->inverse + job->epsilon);
    int64_t i = 0;
    for (; i + NNS_BLOCK <= n; i += NNS_BLOCK) {
        const nns_vec y = (nns_load(x + i) - mean) * (nns_load(job->scale + i) * factor) + nns_load(job->shift + i);
        nns_store(out + i, epilogue_clamp(&job->finish, y));
    }
    for (; i < n; i++) out[i] = clamp1((x[i] - mean) * (job->scale[i] * factor) + job->shift[i], &job->finish);
    finish(out, n, &job->finish);
}

/* `count` neighbouring pixels of a blocked tensor; `step` floats lie between blocks. Padding lanes take no part. */
NNS_INLINE void layer_blocks(const layer_job *job, float *out, const float *x, int64_t step, int count) {
    const int64_t channels = job->p->channels, whole = channels / NNS_BLOCK * NNS_BLOCK;
    nns_ivec taken;
    for (int i = 0; i < NNS_BLOCK; i++) taken[i] = i < channels - whole ? -1 : 0;
    nns_vec mean[PIXELS], sums[PIXELS], factor[PIXELS];
    for (int p = 0; p < count; p++) mean[p] = sums[p] = nns_zero();
    if (!job->p->rms) {
        const float *from = x;
        for (int64_t c = 0; c < whole; c += NNS_BLOCK, from += step)
            for (int p = 0; p < count; p++) sums[p] += nns_load(from + p * NNS_BLOCK);
        for (int p = 0; p < count; p++) {
            if (whole < channels) sums[p] += nns_select(taken, nns_load(from + p * NNS_BLOCK), nns_zero());
            mean[p] = nns_broadcast(nns_sum_lanes(sums[p]) * job->inverse);
            sums[p] = nns_zero();
        }
    }
    const float *from = x;
    for (int64_t c = 0; c < whole; c += NNS_BLOCK, from += step)
        for (int p = 0; p < count; p++) {
            const nns_vec d = nns_load(from + p * NNS_BLOCK) - mean[p];
            sums[p] += d * d;
        }
    for (int p = 0; p < count; p++) {
        if (whole < channels) {
            const nns_vec d = nns_select(taken, nns_load(from + p * NNS_BLOCK) - mean[p], nns_zero());
            sums[p] += d * d;
        }
        factor[p] = nns_broadcast(1.0f / sqrtf(nns_sum_lanes(sums[p]) * job->inverse + job->epsilon));
    }
    for (int64_t c = 0; c < channels; c += NNS_BLOCK, x += step, out += step) {
        const nns_vec scale = nns_load(job->scale + c), shift = nns_load(job->shift + c);
        for (int p = 0; p < count; p++) {
            /* Of the next pixels: hardware follows fewer streams than there are blocks. */
            __builtin_prefetch(x + (PIXELS + p) * NNS_BLOCK);
            const nns_vec y = (nns_load(x + p * NNS_BLOCK) - mean[p]) * (scale * factor[p]) + shift;
            nns_store(out + p * NNS_BLOCK, epilogue_clamp(&job->finish, y));
        }
        finish(out, (int64_t)count * NNS_BLOCK, &job->finish);
    }
}

/* `vectors` vectors of neighbouring pixels of a plain tensor, or `some` pixels of one; `step` floats lie between channels. */
NNS_INLINE void layer_columns(const layer_job *job, float *out, const float *x, int64_t step, int vectors, int64_t some) {
#define LAYER_LOAD(v) (some < NNS_BLOCK ? nns_load_some(from, some, 0.0f) : nns_load(from + (v) * NNS_BLOCK))
    const int64_t channels = job->p->channels;
    nns_vec mean[4], sums[4], factor[4];
    for (int v = 0; v < vectors; v++) mean[v] = sums[v] = nns_zero();
    const float *from = x;
    if (!job->p->rms)
        for (int64_t c = 0; c < channels; c++, from += step)
            for (int v = 0; v < vectors; v++) mean[v] += LAYER_LOAD(v);
    for (int v = 0; v < vectors; v++) mean[v] *= job->inverse;
    from = x;
    for (int64_t c = 0; c < channels; c++, from += step)
        for (int v = 0; v < vectors; v++) {
            const nns_vec d = LAYER_LOAD(v) - mean[v];
            sums[v] += d * d;
        }
    for (int v = 0; v < vectors; v++) factor[v] = layer_factor(job, sums[v]);
    from = x;
    for (int64_t c = 0; c < channels; c++, from += step, out += step) {
        const nns_vec scale = nns_broadcast(job->scale[c]), shift = nns_broadcast(job->shift[c]);
        for (int v = 0; v < vectors; v++) {
            const nns_vec y = epilogue_clamp(&job->finish, (LAYER_LOAD(v) - mean[v]) * (scale * factor[v]) + shift);
            if (some < NNS_BLOCK)
                nns_store_some(out, y, some);
            else
                nns_store(out + v * NNS_BLOCK, y);
        }
        finish(out, some < NNS_BLOCK ? some : (int64_t)vectors * NNS_BLOCK, &job->finish);
    }
#undef LAYER_LOAD
}

static void layer_plain(const layer_job *job, float *out, const float *x, int64_t pixels) {
    const int64_t step = job->p->pixels;
    int64_t i = 0;
    for (; i + 4 * NNS_BLOCK <= pixels; i += 4 * NNS_BLOCK) layer_columns(job, out + i, x + i, step, 4, NNS_BLOCK);
    for (; i + NNS_BLOCK <= pixels; i += NNS_BLOCK) layer_columns(job, out + i, x + i, step, 1, NNS_BLOCK);
    if (i < pixels) layer_columns(job, out + i, x + i, step, 1, pixels - i);
}

static void layer_blocked(const layer_job *job, float *out, const float *x, int64_t pixels) {
    const int64_t step = job->p->pixels * NNS_BLOCK;
    int64_t i = 0;
    for (; i + PIXELS <= pixels; i += PIXELS) layer_blocks(job, out + i * NNS_BLOCK, x + i * NNS_BLOCK, step, PIXELS);
    for (; i < pixels; i++) layer_blocks(job, out + i * NNS_BLOCK, x + i * NNS_BLOCK, step, 1);
}

static void layer_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const layer_norm_parameters *p = (const void *)args->p;
    const layer_job job = {p,
                           args->in[READ_SCALE],
                           args->in[READ_SHIFT],
                           nns_float_of_bits(p->epsilon),
                           1.0f / (float)p->channels,
                           epilogue_of(&p->activation)};
    const int64_t lanes = p->block ? NNS_BLOCK : 1, units = layer_units_of_image(p);
    const int64_t image = nns_ceil_div(p->channels, lanes) * lanes * p->pixels;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % units * TILE, pixels = nns_min_int(TILE, p->pixels - first);
        const int64_t at = unit / units * image + first * lanes;
        const float *x = (const float *)args->in[READ_X] + at;
        float *out = (float *)args->out[0] + at;
        if (p->block)
            layer_blocked(&job, out, x, pixels);
        else if (p->pixels == 1)
            layer_row(&job, out, x);
        else
            layer_plain(&job, out, x, pixels);
    }
}

/* ---- norm/statistics: reads x; writes the mean of each channel and the sum of squared distances from it. --------- *
 *
 * x has `rows` rows of `pixels` pixels of `lanes` channels; the output two rows of `lanes` floats for each. */

static const char *statistics_check(const nns_args *args, nns_work *work) {
    const norm_statistics_parameters *p = (const void *)args->p;
    const char *wrong = NNS_CHECK_SIZES(norm_statistics, args, NNS_FLOAT_BYTES(p->rows, 2, p->lanes),
                                        NNS_FLOAT_BYTES(p->rows, p->pixels, p->lanes));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->rows};
    return NULL;
}

/* Sums of x - mean, or of its square: `n` floats to `lanes` ones, float i to lane i % lanes. */
NNS_INLINE void lane_sums(float *out, const float *x, int64_t n, int64_t lanes, f32x16 mean, bool squared) {
    f32x16 sums[4] = {splat16(0), splat16(0), splat16(0), splat16(0)};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            const f32x16 d = load16(x + i + 16 * j) - mean;
            sums[j] += squared ? d * d : d;
        }
    for (; i + 16 <= n; i += 16) {
        const f32x16 d = load16(x + i) - mean;
        sums[0] += squared ? d * d : d;
    }
    float all[16];
    store16(all, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t lane = 0; i < n; i++, lane++) {
        const float d = x[i] - mean[lane];
        all[lane] += squared ? d * d : d;
    }
    for (int64_t width = 8; width >= lanes; width /= 2)
        for (int64_t lane = 0; lane < width; lane++) all[lane] += all[lane + width];
    memcpy(out, all, (size_t)lanes * 4);
}

static void statistics_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const norm_statistics_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, n = p->pixels * lanes;
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)args->in[READ_X] + row * n;
        float *mean = (float *)args->out[0] + row * 2 * lanes;
        lane_sums(mean, x, n, lanes, splat16(0), false);
        for (int64_t lane = 0; lane < lanes; lane++) mean[lane] /= (float)p->pixels;
        lane_sums(mean + lanes, x, n, lanes, repeat16(mean, lanes), true);
    }
}

/* ---- norm/groups: reads x, scale, shift, statistics; writes activation(norm(x)). --------------------------------- *
 *
 * Statistics are those of norm/statistics. The channels of an image form `groups` groups of equal size. */

static int64_t group_rows(const group_norm_parameters *p) { return nns_ceil_div(p->channels, p->lanes); }

static const char *groups_check(const nns_args *args, nns_work *work) {
    const group_norm_parameters *p = (const void *)args->p;
    if (p->channels % p->groups) return "the groups must divide the channels";
    const int64_t rows = NNS_PRODUCT(p->images, group_rows(p)), bytes = NNS_FLOAT_BYTES(rows, p->pixels, p->lanes);
    const int64_t channels = NNS_FLOAT_BYTES(group_rows(p), p->lanes);
    const char *wrong =
        NNS_CHECK_SIZES(group_norm, args, bytes, bytes, channels, channels, NNS_FLOAT_BYTES(rows, 2, p->lanes));
    if (wrong) return wrong;
    *work = (nns_work){.units = rows};
    return NULL;
}

/* Mean and factor of the group whose first channel is `first`: the mean of the channels' means; to their squared
 * distances come those of their means from it. */
static void group_moments(const group_norm_parameters *p, const float *statistics, int64_t first, float *mean,
                          float *factor) {
    const int64_t size = p->channels / p->groups, lanes = p->lanes;
    float sum = 0, squares = 0;
#define STATISTIC(c, which) statistics[((c) / lanes * 2 + (which)) * lanes + (c) % lanes]
    for (int64_t c = first; c < first + size; c++) sum += STATISTIC(c, 0);
    *mean = sum / (float)size;
    for (int64_t c = first; c < first + size; c++) {
        const float d = STATISTIC(c, 0) - *mean;
        squares += STATISTIC(c, 1) + d * d * (float)p->pixels;
    }
#undef STATISTIC
    *factor = 1.0f / sqrtf(squares / ((float)size * (float)p->pixels) + nns_float_of_bits(p->epsilon));
}

static void groups_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const group_norm_parameters *p = (const void *)args->p;
    const float *scales = args->in[READ_SCALE], *shifts = args->in[READ_SHIFT];
    const int64_t lanes = p->lanes, n = p->pixels * lanes, rows = group_rows(p), size = p->channels / p->groups;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t row = begin; row < end; row++) {
        const float *statistics = (const float *)args->in[READ_STATISTICS] + row / rows * rows * 2 * lanes;
        float means[16] = {0}, factors[16] = {0}; /* zero in padding lanes, which become zero */
        int64_t known = -1;
        for (int64_t lane = 0; lane < lanes; lane++) {
            const int64_t c = row % rows * lanes + lane;
            if (c >= p->channels) break;
            if (c / size == known) {
                means[lane] = means[lane - 1];
                factors[lane] = factors[lane - 1];
            } else {
                known = c / size;
                group_moments(p, statistics, known * size, &means[lane], &factors[lane]);
            }
        }
        const f32x16 mean = repeat16(means, lanes), shift = repeat16(shifts + row % rows * lanes, lanes);
        const f32x16 scale = repeat16(factors, lanes) * repeat16(scales + row % rows * lanes, lanes);
        const float *x = (const float *)args->in[READ_X] + row * n;
        float *out = (float *)args->out[0] + row * n;
        for (int64_t at = 0; at < n; at += CHUNK) {
            const int64_t last = nns_min_int(n, at + CHUNK);
            int64_t i = at;
            for (; i + 16 <= last; i += 16)
                store16(out + i, clamp16((load16(x + i) - mean) * scale + shift, &activation));
            for (int64_t lane = 0; i < last; i++, lane++)
                out[i] = clamp1((x[i] - mean[lane]) * scale[lane] + shift[lane], &activation);
            finish(out + at, last - at, &activation);
        }
    }
}

NNS_DEFINE_FAMILY(layer_norm);
NNS_DEFINE_FAMILY(norm_statistics);
NNS_DEFINE_FAMILY(group_norm);
