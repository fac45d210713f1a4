/* Pooling: over windows (maximum, average) and over whole planes, in plain (1 lane) and blocked layouts. */
#include "memory_bound.h"

enum { POOL_MAX = 0, POOL_AVERAGE = 1, POOL_AVERAGE_PADDED = 2 };

/* ---- pool/window: reads planes × height × width × lanes, writes planes × out_height × out_width × lanes. --------- */

/* The parameters and what follows from them. */
typedef struct {
    pool_window_parameters p;
    int64_t inner_begin, inner_end; /* output columns whose windows lie inside the plane */
} pool;

static pool pool_of(const nns_args *args) {
    pool s = {.p = *(const pool_window_parameters *)(const void *)args->p};
    const int64_t reach = s.p.width - 1 - (s.p.kernel_w - 1) * s.p.dilation_w + s.p.left;
    s.inner_begin = ceil_divide(s.p.left, s.p.stride_w);
    s.inner_end = reach < 0 ? 0 : nns_min_int(reach / s.p.stride_w + 1, s.p.out_width);
    return s;
}

static const char *window_check(const nns_args *args, nns_work *work) {
    const pool_window_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(pool_window, args, NNS_FLOAT_BYTES(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_FLOAT_BYTES(p->planes, p->lanes, p->height, p->width));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

/* The taps of a window that lie inside the plane. */
NNS_INLINE tap_range rows_of(const pool *s, int64_t oh) {
    return taps_inside(oh * s->p.stride_h - s->p.top, s->p.kernel_h, s->p.dilation_h, s->p.height);
}

NNS_INLINE tap_range columns_of(const pool *s, int64_t ow) {
    return taps_inside(ow * s->p.stride_w - s->p.left, s->p.kernel_w, s->p.dilation_w, s->p.width);
}

/* Rows and columns that an average over a window includes: those inside the plane, or inside the padded plane. */
NNS_INLINE int64_t counted_rows(const pool *s, int64_t oh, tap_range inside) {
    const int64_t padded = s->p.top + s->p.height + s->p.bottom;
    if (s->p.mode == POOL_AVERAGE_PADDED)
        inside = taps_inside(oh * s->p.stride_h, s->p.kernel_h, s->p.dilation_h, padded);
    return inside.end - inside.begin;
}

NNS_INLINE int64_t counted_columns(const pool *s, int64_t ow, tap_range inside) {
    const int64_t padded = s->p.left + s->p.width + s->p.right;
    if (s->p.mode == POOL_AVERAGE_PADDED)
        inside = taps_inside(ow * s->p.stride_w, s->p.kernel_w, s->p.dilation_w, padded);
    return inside.end - inside.begin;
}

#define LANES 4
#include "pool_lanes.inc"

#define LANES 8
#include "pool_lanes.inc"

#define LANES 16
#include "pool_lanes.inc"

/* Merges one tap into `n` output columns, whose inputs are `stride` apart. */
NNS_INLINE void plain_tap(int maximum, float *restrict out, const float *restrict x, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < n; i++) {
        const float tap = x[i * stride];
        out[i] = maximum ? (tap < out[i] ? out[i] : tap) : out[i] + tap;
    }
}

/* Output row `oh` of the plane `x` of single floats: tap by tap over the whole row, so that columns are the vector. */
NNS_INLINE void plain_row(int maximum, float *out, const float *x, int64_t oh, const pool *s) {
    const tap_range h = rows_of(s, oh);
    /* later taps lie outside the plane for every column */
    const int64_t last_tap = nns_min_int(s->p.kernel_w, ceil_divide(s->p.width + s->p.left, s->p.dilation_w));
    for (int64_t ow = 0; ow < s->p.out_width; ow++)
        out[ow] = maximum ? -FLT_MAX : 0;
    for (int64_t kh = h.begin; kh < h.end; kh++) {
        const float *line = x + (oh * s->p.stride_h - s->p.top + kh * s->p.dilation_h) * s->p.width;
        for (int64_t kw = 0; kw < last_tap; kw++) {
            const int64_t shift = kw * s->p.dilation_w - s->p.left;
            const int64_t begin = nns_max_int(ceil_divide(-shift, s->p.stride_w), 0);
            const int64_t end = nns_min_int(ceil_divide(s->p.width - shift, s->p.stride_w), s->p.out_width);
            if (begin >= end)
                continue;
            const float *first = line + begin * s->p.stride_w + shift;
            if (s->p.stride_w == 1)
                plain_tap(maximum, out + begin, first, end - begin, 1);
            else if (s->p.stride_w == 2)
                plain_tap(maximum, out + begin, first, end - begin, 2);
            else
                plain_tap(maximum, out + begin, first, end - begin, s->p.stride_w);
        }
    }
    if (!maximum) {
        const int64_t rows = counted_rows(s, oh, h);
        for (int64_t ow = 0; ow < s->p.out_width; ow++) {
            int64_t columns = s->p.kernel_w;
            if (ow < s->inner_begin || ow >= s->inner_end)
                columns = counted_columns(s, ow, columns_of(s, ow));
            out[ow] /= (float)nns_max_int(rows * columns, 1);
        }
    }
}

NNS_INLINE void pool_row(int maximum, float *out, const float *x, int64_t oh, const pool *s) {
    switch (s->p.lanes) {
    case 16: pool_row_16(maximum, out, x, oh, s); break;
    case 8: pool_row_8(maximum, out, x, oh, s); break;
    case 4: pool_row_4(maximum, out, x, oh, s); break;
    default: plain_row(maximum, out, x, oh, s);
    }
}

static void window_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const pool s = pool_of(args);
    const epilogue activation = epilogue_of(&s.p.activation);
    const int64_t out_row = s.p.out_width * s.p.lanes;
    for (int64_t unit = begin; unit < end; unit++) {
        const float *x = (const float *)args->in[0] + unit / s.p.out_height * s.p.height * s.p.width * s.p.lanes;
        float *out = (float *)args->out[0] + unit * out_row;
        if (s.p.mode == POOL_MAX)
            pool_row(1, out, x, unit % s.p.out_height, &s);
        else
            pool_row(0, out, x, unit % s.p.out_height, &s);
        clamp_and_finish(out, out_row, &activation);
    }
}

/* ---- pool/global: reads rows × pixels × lanes, writes rows × lanes. ---------------------------------------------- */

static const char *global_check(const nns_args *args, nns_work *work) {
    const pool_global_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = p->rows};
    return NNS_CHECK_SIZES(pool_global, args, NNS_FLOAT_BYTES(p->rows, p->lanes),
                           NNS_FLOAT_BYTES(p->rows, p->pixels, p->lanes));
}

NNS_INLINE f32x16 merge16(int maximum, f32x16 a, f32x16 b) {
    return maximum ? CHOOSE(b < a, a, b) : a + b;
}

NNS_INLINE float merge1(int maximum, float a, float b) {
    return maximum ? (b < a ? a : b) : a + b;
}

/* Vector of `n` floats reduced by their index modulo 16, n a multiple of 16. Four sums run side by side. */
NNS_INLINE f32x16 reduce_whole(int maximum, const float *x, int64_t n) {
    const f32x16 start = splat16(maximum ? -FLT_MAX : 0);
    f32x16 sums[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        for (int k = 0; k < 4; k++)
            sums[k] = merge16(maximum, sums[k], load16(x + i + 16 * k));
    }
    for (; i < n; i += 16)
        sums[0] = merge16(maximum, sums[0], load16(x + i));
    return merge16(maximum, merge16(maximum, sums[0], sums[1]), merge16(maximum, sums[2], sums[3]));
}

/* Reduces `n` floats to `lanes` ones, float i to lane i % lanes: a sum of sums of chunks, which loses fewer digits of a
 * large plane than one long sum. */
NNS_INLINE void reduce_row(int maximum, float *out, const float *x, int64_t n, int64_t lanes) {
    f32x16 total = splat16(maximum ? -FLT_MAX : 0);
    const int64_t whole = n - n % 16;
    for (int64_t i = 0; i < whole; i += CHUNK)
        total = merge16(maximum, total, reduce_whole(maximum, x + i, nns_min_int(whole - i, CHUNK)));
    float all[16];
    store16(all, total);
    for (int64_t lane = 0, i = whole; i < n; i++, lane++)
        all[lane] = merge1(maximum, all[lane], x[i]);
    for (int64_t width = 8; width >= lanes; width /= 2) {
        for (int64_t lane = 0; lane < width; lane++)
            all[lane] = merge1(maximum, all[lane], all[lane + width]);
    }
    memcpy(out, all, (size_t)lanes * 4);
}

/* Called with constant lanes, so that the last steps become a few instructions. */
static void reduce(int maximum, float *out, const float *x, int64_t n, int64_t lanes) {
    switch (maximum ? -lanes : lanes) {
    case 16: reduce_row(0, out, x, n, 16); break;
    case 8: reduce_row(0, out, x, n, 8); break;
    case 4: reduce_row(0, out, x, n, 4); break;
    case 1: reduce_row(0, out, x, n, 1); break;
    case -16: reduce_row(1, out, x, n, 16); break;
    case -8: reduce_row(1, out, x, n, 8); break;
    case -4: reduce_row(1, out, x, n, 4); break;
    default: reduce_row(1, out, x, n, 1);
    }
}

static void global_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const pool_global_parameters *p = (const void *)args->p;
    const int64_t pixels = p->pixels, lanes = p->lanes, n = pixels * lanes;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        float *out = (float *)args->out[0] + row * lanes;
        reduce(p->mode == POOL_MAX, out, x, n, lanes);
        if (p->mode == POOL_AVERAGE) {
            for (int64_t lane = 0; lane < lanes; lane++)
                out[lane] /= (float)pixels;
        }
        clamp_and_finish(out, lanes, &activation);
    }
}

NNS_DEFINE_FAMILY(pool_window);
NNS_DEFINE_FAMILY(pool_global);
