/* Pooling of int8: over windows and over whole planes, in plain (1 lane) and blocked layouts. Sums are exact integers. */
#include "bytes.h"

enum { POOL_MAX = 0, POOL_AVERAGE = 1, POOL_AVERAGE_PADDED = 2 };

/* ---- int8/pool_window: reads planes × height × width × lanes, writes planes × out_height × out_width × lanes. ----- */

/* The parameters and what follows from them. */
typedef struct {
    int8_pool_window_parameters p;
    int64_t inner_begin, inner_end; /* output columns whose windows lie inside the plane */
    float scale;
    rounding r;
} pool;

static pool pool_of(const nns_args *args) {
    pool s = {.p = *(const int8_pool_window_parameters *)(const void *)args->p};
    const int64_t reach = s.p.width - 1 - (s.p.kernel_w - 1) * s.p.dilation_w + s.p.left;
    s.inner_begin = ceil_divide(s.p.left, s.p.stride_w);
    s.inner_end = reach < 0 ? 0 : nns_min_int(reach / s.p.stride_w + 1, s.p.out_width);
    s.scale = nns_float_of_bits(s.p.scale);
    s.r = rounding_of(s.p.zero, s.p.low, s.p.high);
    return s;
}

static const char *window_check(const nns_args *args, nns_work *work) {
    const int8_pool_window_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(int8_pool_window, args, NNS_PRODUCT(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_PRODUCT(p->planes, p->lanes, p->height, p->width));
    if (wrong) return wrong;
    if (p->kernel_h * p->kernel_w > MOST_SUMMED) return "the window is too large for a sum";
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

/* A window of one output row: the taps inside the plane, the number that an average divides by. */
typedef struct {
    const int8_t *first;
    int64_t rows, columns, counted;
} window;

/* Rows or columns that an average includes: those inside the plane, or inside the padded plane. */
NNS_INLINE int64_t counted(const pool *s, tap_range inside, int64_t first, int64_t taps, int64_t dilation,
                           int64_t padded) {
    if (s->p.mode == POOL_AVERAGE_PADDED) inside = taps_inside(first, taps, dilation, padded);
    return inside.end - inside.begin;
}

/* The window at (oh, ow) of the plane `x`, where `h` are the taps of row `oh` and `rows` those that count. */
NNS_INLINE window window_at(const pool *s, const int8_t *x, int64_t oh, int64_t ow, tap_range h, int64_t rows) {
    const int64_t column = ow * s->p.stride_w - s->p.left;
    tap_range w = {0, s->p.kernel_w};
    int64_t columns = s->p.kernel_w;
    if (ow < s->inner_begin || ow >= s->inner_end) {
        w = taps_inside(column, s->p.kernel_w, s->p.dilation_w, s->p.width);
        columns = counted(s, w, column + s->p.left, s->p.kernel_w, s->p.dilation_w,
                          s->p.left + s->p.width + s->p.right);
    }
    const int64_t row = oh * s->p.stride_h - s->p.top + h.begin * s->p.dilation_h;
    const int64_t at = (row * s->p.width + column + w.begin * s->p.dilation_w) * s->p.lanes;
    return (window){h.begin < h.end && w.begin < w.end ? x + at : x, h.end - h.begin, w.end - w.begin, rows * columns};
}

/* The sum of `taps` integers as an average in steps of the result, before rounding. */
NNS_INLINE f32x16 average16(i32x16 sum, int64_t taps, int64_t count, const pool *s) {
    const f32x16 steps = __builtin_convertvector(sum - (int32_t)(taps * s->p.x_zero), f32x16);
    return steps * (s->scale / (float)nns_max_int(count, 1));
}

#define LANES 4
#include "int8/pool_int8.inc"

#define LANES 8
#include "int8/pool_int8.inc"

#define LANES 16
#include "int8/pool_int8.inc"

/* One output integer of a plane of single integers. */
static int8_t plain_pixel(const window *w, const pool *s) {
    const int64_t down = s->p.dilation_h * s->p.width, right = s->p.dilation_w;
    int32_t largest = INT8_MIN, sum = 0;
    for (int64_t row = 0; row < w->rows; row++) {
        for (int64_t column = 0; column < w->columns; column++) {
            const int8_t tap = w->first[row * down + column * right];
            largest = tap > largest ? tap : largest;
            sum += tap;
        }
    }
    if (s->p.mode == POOL_MAX) return (int8_t)largest;
    return round16(average16((i32x16){0} + sum, w->rows * w->columns, w->counted, s), &s->r)[0];
}

NNS_INLINE void pool_pixel(int8_t *out, const window *w, const pool *s) {
    switch (s->p.lanes) {
    case 16: pool_pixel_16(out, w, s); break;
    case 8: pool_pixel_8(out, w, s); break;
    case 4: pool_pixel_4(out, w, s); break;
    default: *out = plain_pixel(w, s);
    }
}

/* Maxima of `n` neighbouring integers over windows that begin at each of them: pixels of a stride of 1, of any lanes. */
NNS_INLINE void flat_largest(int8_t *out, const int8_t *x, int64_t n, int64_t rows, int64_t columns, int64_t down,
                             int64_t right) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        i8x64 largest;
        memset(&largest, INT8_MIN, sizeof largest);
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t column = 0; column < columns; column++) {
                i8x64 tap;
                memcpy(&tap, x + i + row * down + column * right, sizeof tap);
                largest = CHOOSE(tap < largest, largest, tap);
            }
        }
        memcpy(out + i, &largest, sizeof largest);
    }
    for (; i < n; i++) {
        int8_t largest = INT8_MIN;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++) {
                const int8_t tap = x[i + row * down + column * right];
                largest = tap > largest ? tap : largest;
            }
        out[i] = largest;
    }
}

/* The columns of an output row whose windows lie inside the plane; `w` is the first of these. */
static void inner_pixels(int8_t *out, window w, int64_t n, const pool *s) {
    const int64_t lanes = s->p.lanes, down = s->p.dilation_h * s->p.width * lanes, right = s->p.dilation_w * lanes;
    if (s->p.mode == POOL_MAX && s->p.stride_w == 1) {
        if (w.rows == 3 && w.columns == 3)
            flat_largest(out, w.first, n * lanes, 3, 3, down, right);
        else
            flat_largest(out, w.first, n * lanes, w.rows, w.columns, down, right);
        return;
    }
    for (int64_t i = 0; i < n; i++, w.first += s->p.stride_w * lanes) pool_pixel(out + i * lanes, &w, s);
}

static void window_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const pool s = pool_of(args);
    const int64_t lanes = s.p.lanes, padded = s.p.top + s.p.height + s.p.bottom;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t oh = unit % s.p.out_height, row = oh * s.p.stride_h - s.p.top;
        const int8_t *x = (const int8_t *)args->in[0] + unit / s.p.out_height * s.p.height * s.p.width * lanes;
        int8_t *out = (int8_t *)args->out[0] + unit * s.p.out_width * lanes;
        const tap_range h = taps_inside(row, s.p.kernel_h, s.p.dilation_h, s.p.height);
        const int64_t rows = counted(&s, h, row + s.p.top, s.p.kernel_h, s.p.dilation_h, padded);
        for (int64_t ow = 0; ow < s.p.out_width; ow++) {
            const window w = window_at(&s, x, oh, ow, h, rows);
            if (ow >= s.inner_begin && ow < s.inner_end) {
                inner_pixels(out + ow * lanes, w, s.inner_end - ow, &s);
                ow = s.inner_end - 1;
            } else {
                pool_pixel(out + ow * lanes, &w, &s);
            }
        }
    }
}

/* ---- int8/pool_global: reads rows × pixels × lanes, writes rows × lanes. ------------------------------------------ */

static const char *global_check(const nns_args *args, nns_work *work) {
    const int8_pool_global_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = p->rows};
    return NNS_CHECK_SIZES(int8_pool_global, args, NNS_PRODUCT(p->rows, p->lanes),
                           NNS_PRODUCT(p->rows, p->pixels, p->lanes));
}

NNS_INLINE i32x16 merge16(int maximum, i32x16 a, i32x16 b) { return maximum ? CHOOSE(b < a, a, b) : a + b; }

/* Reduces `n` integers to `lanes` ones, integer i to lane i % lanes. */
NNS_INLINE i32x16 reduce_row(int maximum, const int8_t *x, int64_t n, int64_t lanes) {
    i32x16 total = (i32x16){0} + (maximum ? INT8_MIN : 0);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        total = merge16(maximum, total, __builtin_convertvector(bytes_load(x + i), i32x16));
    int32_t all[16];
    memcpy(all, &total, sizeof all);
    for (int64_t lane = 0; i < n; i++, lane++)
        all[lane] = maximum ? (x[i] < all[lane] ? all[lane] : x[i]) : all[lane] + x[i];
    for (int64_t width = 8; width >= lanes; width /= 2)
        for (int64_t lane = 0; lane < width; lane++)
            all[lane] = maximum ? (all[lane + width] < all[lane] ? all[lane] : all[lane + width])
                                : all[lane] + all[lane + width];
    memcpy(&total, all, sizeof all);
    return total;
}

static void global_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_pool_global_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, n = p->pixels * lanes;
    const int maximum = p->mode == POOL_MAX;
    const int32_t zero = (int32_t)(maximum ? p->x_zero : p->pixels * p->x_zero);
    const float scale = nns_float_of_bits(p->scale);
    const rounding r = rounding_of(p->zero, p->low, p->high);
    for (int64_t row = begin; row < end; row++) {
        const int8_t *x = (const int8_t *)args->in[0] + row * n;
        const i32x16 total = maximum ? reduce_row(1, x, n, lanes) : reduce_row(0, x, n, lanes);
        const i8x16 result = round16(__builtin_convertvector(total - zero, f32x16) * scale, &r);
        bytes_store_some((int8_t *)args->out[0] + row * lanes, result, lanes);
    }
}

NNS_DEFINE_FAMILY(int8_pool_window);
NNS_DEFINE_FAMILY(int8_pool_global);
