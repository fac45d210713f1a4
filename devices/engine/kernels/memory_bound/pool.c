/* Pooling: over windows (maximum, average) and over whole planes, in plain (1 lane) and blocked layouts. */
#include "memory_bound.h"

enum { POOL_MAX = 0, POOL_AVERAGE = 1, POOL_AVERAGE_PADDED = 2, POOL_COUNT = 3 };

/* ---- pool/window: reads planes × height × width × lanes, writes planes × out_height × out_width × lanes. ---------------- */

/* The parameters in their order, an activation's 3 after them, and what follows from them. */
typedef struct {
    int64_t mode, planes, lanes, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w;
    int64_t top, left, bottom, right, dilation_h, dilation_w;
    int64_t inner_begin, inner_end; /* output columns whose windows lie inside the plane */
} pool;

enum { POOL_PARAMETERS = 17 };

static pool pool_of(const int64_t *p) {
    pool s;
    memcpy(&s, p, POOL_PARAMETERS * sizeof(int64_t));
    const int64_t reach = s.width - 1 - (s.kernel_w - 1) * s.dilation_w + s.left;
    s.inner_begin = ceil_divide(s.left, s.stride_w);
    s.inner_end = reach < 0 ? 0 : nns_min_int(reach / s.stride_w + 1, s.out_width);
    return s;
}

static const char *pool_check(const nns_args *args, nns_work *work) {
    if (args->n_in != 1 || args->n_out != 1 || args->n_p != POOL_PARAMETERS + 3) {
        return "pool/window wants 1 input, 1 output and 20 parameters";
    }
    const int64_t *p = args->p;
    if (p[0] < 0 || p[0] >= POOL_COUNT || !nns_activation_known(p[POOL_PARAMETERS])) {
        return "pool/window: unknown mode or activation";
    }
    /* sizes, kernels and strides are positive; pads may be 0; dilations are positive */
    if (!good_lanes(p[2]) || !nns_all_within(p + 3, 8, 1, LIGHT_SPAN) || !nns_all_within(p + 11, 4, 0, LIGHT_SPAN) ||
        !nns_all_within(p + 15, 2, 1, LIGHT_SPAN)) {
        return "pool/window: lanes, sizes, kernel, strides, pads or dilations out of range";
    }
    if (!nns_holds(args->in_bytes[0], NNS_FLOAT_BYTES(p[1], p[2], p[3], p[4]))) {
        return "pool/window: the input is smaller than its shape";
    }
    if (!nns_holds(args->out_bytes[0], NNS_FLOAT_BYTES(p[1], p[2], p[5], p[6]))) {
        return "pool/window: the output is smaller than its shape";
    }
    *work = (nns_work){.units = p[1] * p[5]};
    return NULL;
}

/* Taps [begin, end) of a window that lie inside the plane; begin == end if none does. */
typedef struct {
    int64_t begin, end;
} taps;

NNS_INLINE taps taps_within(int64_t first, int64_t low, int64_t high, int64_t kernel, int64_t dilation) {
    const int64_t begin = nns_min_int(nns_max_int(ceil_divide(low - first, dilation), 0), kernel);
    return (taps){begin, nns_max_int(nns_min_int(ceil_divide(high - first, dilation), kernel), begin)};
}

NNS_INLINE taps taps_of(int64_t position, int64_t stride, int64_t pad, int64_t size, int64_t kernel, int64_t dilation) {
    return taps_within(position * stride - pad, 0, size, kernel, dilation);
}

/* Rows that an average over a window counts: those inside the plane, or inside the padded plane. */
NNS_INLINE int64_t counted_rows(int64_t oh, const taps *inside, const pool *s) {
    if (s->mode != POOL_AVERAGE_PADDED) {
        return inside->end - inside->begin;
    }
    const int64_t first = oh * s->stride_h - s->top;
    const taps all = taps_within(first, -s->top, s->height + s->bottom, s->kernel_h, s->dilation_h);
    return all.end - all.begin;
}

NNS_INLINE int64_t counted_columns(int64_t ow, const taps *inside, const pool *s) {
    if (s->mode != POOL_AVERAGE_PADDED) {
        return inside->end - inside->begin;
    }
    const int64_t first = ow * s->stride_w - s->left;
    const taps all = taps_within(first, -s->left, s->width + s->right, s->kernel_w, s->dilation_w);
    return all.end - all.begin;
}

#define LANES 4
#define VECTOR f32x4
#include "pool_lanes.inc"

#define LANES 8
#define VECTOR f32x8
#include "pool_lanes.inc"

#define LANES 16
#define VECTOR f32x16
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
    const taps h = taps_of(oh, s->stride_h, s->top, s->height, s->kernel_h, s->dilation_h);
    /* taps from there on lie behind the plane for every column */
    const int64_t last_tap = nns_min_int(s->kernel_w, ceil_divide(s->width + s->left, s->dilation_w));
    for (int64_t ow = 0; ow < s->out_width; ow++) {
        out[ow] = maximum ? -FLT_MAX : 0;
    }
    for (int64_t kh = h.begin; kh < h.end; kh++) {
        const float *line = x + (oh * s->stride_h - s->top + kh * s->dilation_h) * s->width;
        for (int64_t kw = 0; kw < last_tap; kw++) {
            const int64_t shift = kw * s->dilation_w - s->left;
            const int64_t begin = nns_max_int(ceil_divide(-shift, s->stride_w), 0);
            const int64_t end = nns_min_int(ceil_divide(s->width - shift, s->stride_w), s->out_width);
            if (begin >= end) {
                continue;
            }
            const float *first = line + begin * s->stride_w + shift;
            if (s->stride_w == 1) {
                plain_tap(maximum, out + begin, first, end - begin, 1);
            } else if (s->stride_w == 2) {
                plain_tap(maximum, out + begin, first, end - begin, 2);
            } else {
                plain_tap(maximum, out + begin, first, end - begin, s->stride_w);
            }
        }
    }
    if (!maximum) {
        const int64_t rows = counted_rows(oh, &h, s);
        for (int64_t ow = 0; ow < s->out_width; ow++) {
            int64_t columns = s->kernel_w;
            if (ow < s->inner_begin || ow >= s->inner_end) {
                const taps w = taps_of(ow, s->stride_w, s->left, s->width, s->kernel_w, s->dilation_w);
                columns = counted_columns(ow, &w, s);
            }
            out[ow] /= (float)nns_max_int(rows * columns, 1);
        }
    }
}

NNS_INLINE void pool_row(int maximum, float *out, const float *x, int64_t oh, const pool *s) {
    switch (s->lanes) {
    case 16:
        pool_row_16(maximum, out, x, oh, s);
        break;
    case 8:
        pool_row_8(maximum, out, x, oh, s);
        break;
    case 4:
        pool_row_4(maximum, out, x, oh, s);
        break;
    default:
        plain_row(maximum, out, x, oh, s);
    }
}

static void pool_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const pool s = pool_of(args->p);
    const light_activation activation = light_activation_read(args->p + POOL_PARAMETERS);
    const int64_t out_row = s.out_width * s.lanes;
    for (int64_t unit = begin; unit < end; unit++) {
        const float *x = (const float *)args->in[0] + unit / s.out_height * s.height * s.width * s.lanes;
        float *out = (float *)args->out[0] + unit * out_row;
        if (s.mode == POOL_MAX) {
            pool_row(1, out, x, unit % s.out_height, &s);
        } else {
            pool_row(0, out, x, unit % s.out_height, &s);
        }
        clamp_and_finish(out, out_row, &activation);
    }
}

/* ---- pool/global: reads rows × pixels × lanes, writes rows × lanes. ----------------------------------------------
 * Parameters: mode (maximum or average), rows, pixels, lanes, activation (3). */

static const char *global_check(const nns_args *args, nns_work *work) {
    if (args->n_in != 1 || args->n_out != 1 || args->n_p != 7) {
        return "pool/global wants 1 input, 1 output and 7 parameters";
    }
    const int64_t *p = args->p;
    if ((p[0] != POOL_MAX && p[0] != POOL_AVERAGE) || !nns_activation_known(p[4])) {
        return "pool/global: unknown mode or activation";
    }
    if (p[2] < 1 || !good_lanes(p[3])) {
        return "pool/global: no pixels, or unknown lanes";
    }
    if (!nns_holds(args->in_bytes[0], NNS_FLOAT_BYTES(p[1], p[2], p[3])) ||
        !nns_holds(args->out_bytes[0], NNS_FLOAT_BYTES(p[1], p[3]))) {
        return "pool/global: a buffer is smaller than its shape";
    }
    *work = (nns_work){.units = p[1]};
    return NULL;
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
        for (int k = 0; k < 4; k++) {
            sums[k] = merge16(maximum, sums[k], load16(x + i + 16 * k));
        }
    }
    for (; i < n; i += 16) {
        sums[0] = merge16(maximum, sums[0], load16(x + i));
    }
    return merge16(maximum, merge16(maximum, sums[0], sums[1]), merge16(maximum, sums[2], sums[3]));
}

/* Reduces `n` floats to `lanes` ones, float i to lane i % lanes: a sum of sums of chunks, which loses fewer digits of a
 * large plane than one long sum. */
NNS_INLINE void reduce_row(int maximum, float *out, const float *x, int64_t n, int64_t lanes) {
    f32x16 total = splat16(maximum ? -FLT_MAX : 0);
    const int64_t whole = n - n % 16;
    for (int64_t i = 0; i < whole; i += LIGHT_CHUNK) {
        total = merge16(maximum, total, reduce_whole(maximum, x + i, nns_min_int(whole - i, LIGHT_CHUNK)));
    }
    float all[16];
    store16(all, total);
    for (int64_t lane = 0, i = whole; i < n; i++, lane++) {
        all[lane] = merge1(maximum, all[lane], x[i]);
    }
    for (int64_t width = 8; width >= lanes; width /= 2) {
        for (int64_t lane = 0; lane < width; lane++) {
            all[lane] = merge1(maximum, all[lane], all[lane + width]);
        }
    }
    memcpy(out, all, (size_t)lanes * 4);
}

/* With constants, so that the last steps become a few instructions. */
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
    const int64_t pixels = args->p[2], lanes = args->p[3], n = pixels * lanes;
    const light_activation activation = light_activation_read(args->p + 4);
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        float *out = (float *)args->out[0] + row * lanes;
        reduce(args->p[0] == POOL_MAX, out, x, n, lanes);
        if (args->p[0] == POOL_AVERAGE) {
            for (int64_t lane = 0; lane < lanes; lane++) {
                out[lane] /= (float)pixels;
            }
        }
        clamp_and_finish(out, lanes, &activation);
    }
}

static const nns_kernel rows[] = {
    {"pool/window", pool_check, pool_run},
    {"pool/global", global_check, global_run},
};
const nns_kernel_family nns_family_pool = NNS_FAMILY(rows);
