/* Convolutions of blocked tensors whose groups lie within a block: depthwise (groups of 1 channel), and groups of 2,
 * 4 or 8 channels with as many outputs, as in ResNeXt.
 *
 * reads   x, weights, bias or NULL (one float per lane), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * Weights are float[block][kh][kw][GROUP][lane]: the factor of member i of the group of output lane l. The inputs of
 * all lanes' members i are one shuffle of the input vector. */
#include "depthwise.h"

NNS_DEFINE_READS(depthwise);

/* Lane l of the result is member `member` of the group of `group` lanes of `x` that contains l. Both are constants. */
NNS_INLINE nns_vec pick(nns_vec x, int group, int member) {
#define LANE(l, g, m) ((l) / (g) * (g) + (m))
#if NNS_BLOCK == 16
#define PICK(g, m)                                                                                                    \
    case (g) * 16 + (m):                                                                                              \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m),              \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m), LANE(8, g, m),     \
                                       LANE(9, g, m), LANE(10, g, m), LANE(11, g, m), LANE(12, g, m), LANE(13, g, m), \
                                       LANE(14, g, m), LANE(15, g, m));
#elif NNS_BLOCK == 8
#define PICK(g, m)                                                                                       \
    case (g) * 16 + (m):                                                                                 \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m), \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m));
#else
#define PICK(g, m)       \
    case (g) * 16 + (m): \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m));
#endif
    switch (group * 16 + member) {
        PICK(2, 0) PICK(2, 1)
#if NNS_BLOCK > 4
        PICK(4, 0) PICK(4, 1) PICK(4, 2) PICK(4, 3)
#endif
#if NNS_BLOCK > 8
        PICK(8, 0) PICK(8, 1) PICK(8, 2) PICK(8, 3) PICK(8, 4) PICK(8, 5) PICK(8, 6) PICK(8, 7)
#endif
    default: return x;
    }
#undef PICK
#undef LANE
}

/* ---- rows of one block, for groups of `group` channels, a constant; 1 is the depthwise convolution ------------------
 *
 * Rows are computed in strips of some columns, from the top down. An input vector is loaded once per kernel row and
 * used by all outputs that read it, so that there are far fewer loads than multiply-adds.
 *
 * With dilated columns, a strip's columns are as far apart as the taps, and so it reads as few input vectors. */

/* Maximum columns of a strip. */
#define MOST_COLUMNS(group) (COMPUTE_MANY_REGISTERS && (group) == 1 ? 14 : 7)
enum { MOST_PIXELS = MOST_COLUMNS(1) };

/* In place of a constant stride: 1, with columns `dw` pixels apart. */
enum { DILATED = 0 };

/* Input columns at each end of a strip that may lie outside the input: the padding that keeps a plane's size. */
#define EDGE(kw) ((kw) / 2)

/* One of the `EDGE` first or last columns of a strip: offset in floats, and a mask that keeps all bits or none. */
typedef struct {
    int64_t offset;
    int32_t keep;
} edge_column;

NNS_INLINE nns_vec edge_load(const float *x, const edge_column *column) {
    return (nns_vec)((nns_ivec)nns_load(x + column->offset) & column->keep);
}

/* Adds one kernel row of `kw` taps to `count` outputs, `sw` input columns apart; `x` is tap 0 of the first output, and `step`
 * the floats from a column to the next. */
NNS_INLINE void add_row(nns_vec *acc, const int count, const int group, const int kw, const int sw, int64_t step,
                        const edge_column *edges, const float *x, const float *w) {
    const int columns = (count - 1) * sw + kw;
    COMPUTE_FOR(column, columns) {
        nns_vec input;
        if (edges && column < EDGE(kw))
            input = edge_load(x, &edges[column]);
        else if (edges && column >= columns - EDGE(kw))
            input = edge_load(x, &edges[column - columns + 2 * EDGE(kw)]);
        else
            input = nns_load(x + column * step);
        COMPUTE_FOR(member, group) {
            const nns_vec picked = pick(input, group, member);
            COMPUTE_FOR(tap, kw) {
                const int p = (column - tap) / sw;
                if (column >= tap && (column - tap) % sw == 0 && p < count)
                    acc[p] += picked * nns_load(w + (tap * group + member) * NNS_BLOCK);
            }
        }
    }
}

/* The input row `row`, `x_row` floats long. */
NNS_INLINE const float *input_row(const depthwise_rows *rows, int64_t row, int64_t x_row) {
    return rows->x + (rows->ring && row >= rows->until ? row - rows->ring : row) * x_row;
}

/* Computes `count` output columns from `pixel` on. Without `edge` all input columns lie inside the input. */
NNS_INLINE void compute_strip(const int count, const int group, const int kw, const int stride, const bool edge,
                              const kernel_geometry *s, const depthwise_rows *rows, int64_t pixel) {
    const int sw = stride == DILATED ? 1 : stride, columns = (count - 1) * sw + kw;
    const int64_t apart = stride == DILATED ? s->dw : 1, step = apart * NNS_BLOCK;
    const int64_t column = pixel * sw - s->pl, x_row = s->w * NNS_BLOCK, y_row = s->ow * NNS_BLOCK;
    edge_column edges[2 * EDGE(7)];
    for (int e = 0; edge && e < 2 * EDGE(kw); e++) {
        const int64_t at = column + (e < EDGE(kw) ? e : columns - 2 * EDGE(kw) + e) * apart;
        const int64_t inside = nns_max_int(0, nns_min_int(s->w - 1, at));
        edges[e] = (edge_column){(inside - column) * NNS_BLOCK, inside == at ? -1 : 0};
    }
    const nns_vec bias = rows->bias ? nns_load(rows->bias) : nns_zero();
    float *y = rows->y + pixel * NNS_BLOCK;
    const float *residual = rows->residual ? rows->residual + pixel * NNS_BLOCK : NULL;
    int64_t h = rows->begin * s->sh - s->pt;
    epilogue_waiting waiting = {.rows = 0};
    float *first = y;
    for (int64_t oh = rows->begin; oh < rows->end; oh++, y += y_row, h += s->sh) {
        const tap_range taps = taps_inside(h, s->kh, s->dh, s->h);
        const float *w = rows->w + taps.begin * kw * group * NNS_BLOCK;
        nns_vec acc[MOST_PIXELS];
        COMPUTE_FOR(p, count) acc[p] = bias;
        for (int64_t i = taps.begin; i < taps.end; i++, w += kw * group * NNS_BLOCK) {
            const float *x = input_row(rows, h + i * s->dh, x_row) + column * NNS_BLOCK;
            add_row(acc, count, group, kw, sw, step, edge ? edges : NULL, x, w);
        }
        if (residual) {
            COMPUTE_FOR(p, count) acc[p] += nns_load(residual + p * step);
            residual += y_row;
        }
        COMPUTE_FOR(p, count) nns_store(y + p * step, epilogue_clamp(&rows->finish, acc[p]));
        if (stride != DILATED) epilogue_wait(&rows->finish, &waiting, first, y, count * NNS_BLOCK, oh + 1 == rows->end);
    }
}

/* Whether the padding is narrow enough for `strips`. */
NNS_INLINE bool has_narrow_edges(const int kw, const kernel_geometry *s) {
    const int64_t edge = EDGE(kw) * s->dw;
    return s->pl <= edge && (s->ow - 1) * s->sw - s->pl + (kw - 1) * s->dw + 1 - s->w <= edge;
}

/* A strip at an edge; a function for each number of columns. */
_Static_assert((int)MOST_PIXELS <= (int)COMPUTE_MOST_EACH, "no function for a strip of this many columns");
typedef void strip(const kernel_geometry *s, const depthwise_rows *rows, int64_t pixel);

#define STRIP_NAME(count, group, kw, sw) strip_##count##_g##group##_##kw##x##sw,
#define STRIP(count, group, kw, sw)                                                                       \
    static __attribute__((noinline)) void strip_##count##_g##group##_##kw##x##sw(                         \
        const kernel_geometry *s, const depthwise_rows *rows, int64_t pixel) {                            \
        enum { MOST = MOST_COLUMNS(group) };                                                              \
        if (count <= MOST) compute_strip(count <= MOST ? count : 1, group, kw, sw, true, s, rows, pixel); \
    }

/* Columns of the next strip of `left` columns: two strips of equal width rather than a wide one and a narrow one. */
NNS_INLINE int64_t strip_columns(const int most, int64_t left) {
    return left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
}

/* All strips for a kernel of `kw` columns and a stride, both constants; edges[n - 1] computes n columns. */
NNS_INLINE void compute_strips(const int group, const int kw, const int stride, strip *const *edges,
                               const kernel_geometry *s, const depthwise_rows *rows) {
    const int most = MOST_COLUMNS(group), sw = stride == DILATED ? 1 : stride;
    const int64_t apart = stride == DILATED ? s->dw : 1, width = ((most - 1) * sw + kw - 1) * apart + 1;
    for (int64_t begin = 0; begin < nns_min_int(apart, s->ow); begin++) {
        for (int64_t pixel = begin, count; pixel < s->ow; pixel += count * apart) {
            const int64_t column = pixel * sw - s->pl;
            count = strip_columns(most, nns_ceil_div(s->ow - pixel, apart));
            if (count == most && column >= 0 && column + width <= s->w)
                compute_strip(most, group, kw, stride, false, s, rows, pixel);
            else
                edges[count - 1](s, rows, pixel);
        }
    }
    if (stride == DILATED && rows->finish.second_pass)
        epilogue_second_pass(&rows->finish, rows->y, (rows->end - rows->begin) * s->ow * NNS_BLOCK);
}

/* `count` outputs of a row, for any kernel, stride and dilation; the tap columns `columns` lie inside the input. */
NNS_INLINE void compute_any(const int count, const int group, const kernel_geometry *s, const depthwise_rows *rows,
                            tap_range columns, int64_t oh, int64_t pixel) {
    const int64_t h = oh * s->sh - s->pt, column = pixel * s->sw - s->pl;
    const int64_t at = ((oh - rows->begin) * s->ow + pixel) * NNS_BLOCK;
    const tap_range taps = taps_inside(h, s->kh, s->dh, s->h);
    nns_vec acc[4];
    COMPUTE_FOR(p, count) acc[p] = rows->bias ? nns_load(rows->bias) : nns_zero();
    for (int64_t i = taps.begin; i < taps.end; i++) {
        for (int64_t j = columns.begin; j < columns.end; j++) {
            const float *x = input_row(rows, h + i * s->dh, s->w * NNS_BLOCK) + (column + j * s->dw) * NNS_BLOCK;
            const float *w = rows->w + (i * s->kw + j) * group * NNS_BLOCK;
            COMPUTE_FOR(p, count) {
                const nns_vec input = nns_load(x + p * s->sw * NNS_BLOCK);
                COMPUTE_FOR(member, group)
                    acc[p] += pick(input, group, member) * nns_load(w + member * NNS_BLOCK);
            }
        }
    }
    COMPUTE_FOR(p, count) {
        const int64_t to = at + p * NNS_BLOCK;
        const nns_vec sum = rows->residual ? acc[p] + nns_load(rows->residual + to) : acc[p];
        nns_store(rows->y + to, epilogue_clamp(&rows->finish, sum));
    }
    if (rows->finish.second_pass) epilogue_second_pass(&rows->finish, rows->y + at, count * NNS_BLOCK);
}

NNS_INLINE void compute_any_rows(const int group, const kernel_geometry *s, const depthwise_rows *rows) {
    for (int64_t oh = rows->begin; oh < rows->end; oh++) {
        for (int64_t pixel = 0, count; pixel < s->ow; pixel += count) {
            const int64_t column = pixel * s->sw - s->pl, span = 3 * s->sw + (s->kw - 1) * s->dw;
            count = column >= 0 && column + span < s->w && pixel + 4 <= s->ow ? 4 : 1;
            const tap_range columns = taps_inside(column, s->kw, s->dw, s->w);
            if (count == 4)
                compute_any(4, group, s, rows, columns, oh, pixel);
            else
                compute_any(1, group, s, rows, columns, oh, pixel);
        }
    }
}

typedef void compute_rows(const kernel_geometry *s, const depthwise_rows *rows);

/* Functions for kernels of 3 columns; of 5 and 7 columns, too, for the depthwise convolution. */
#define WIDE_1(...) __VA_ARGS__
#define WIDE_2(...)
#define WIDE_4(...)
#define WIDE_8(...)
#define DEFINE_ROWS(name) \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const depthwise_rows *rows)
#define STRIPS(group, kw, sw)                                                          \
    COMPUTE_EACH_COUNT(STRIP, group, kw, sw)                                           \
    DEFINE_ROWS(strips_g##group##_##kw##x##sw) {                                       \
        static strip *const edges[] = {COMPUTE_EACH_COUNT(STRIP_NAME, group, kw, sw)}; \
        compute_strips(group, kw, sw, edges, s, rows);                                 \
    }
#define CASE(group, width, stride)                                                                                 \
    if (s->kw == width && (stride == DILATED ? s->sw == 1 : s->sw == stride && s->dw == 1) && has_narrow_edges(width, s)) { \
        strips_g##group##_##width##x##stride(s, rows);                                                             \
        return;                                                                                                    \
    }
#define ROWS(stem, name, where, group)                                                                             \
    WHERE_##where(STRIPS(group, 3, 1) STRIPS(group, 3, 2)                                                          \
        WIDE_##group(STRIPS(group, 5, 1) STRIPS(group, 5, 2) STRIPS(group, 7, 1) STRIPS(group, 7, 2))              \
        WIDE_##group(STRIPS(group, 3, DILATED) STRIPS(group, 5, DILATED))                                          \
        DEFINE_ROWS(any_rows_g##group) { compute_any_rows(group, s, rows); }                                       \
        static void rows_g##group(const kernel_geometry *s, const depthwise_rows *rows) {                          \
            CASE(group, 3, 1) CASE(group, 3, 2)                                                                    \
            WIDE_##group(CASE(group, 5, 1) CASE(group, 5, 2) CASE(group, 7, 1) CASE(group, 7, 2))                  \
            WIDE_##group(CASE(group, 3, DILATED) CASE(group, 5, DILATED))                                          \
            any_rows_g##group(s, rows);                                                                            \
        })
KERNELS_depthwise(ROWS)

void nns_depthwise_rows(const kernel_geometry *s, const depthwise_rows *rows) { rows_g1(s, rows); }

/* ---- units: (image, block, chunk of rows) ------------------------------------------------------------------------ */

static const char *depthwise_check(const nns_args *args, nns_work *work, int64_t group) {
    const depthwise_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c != s.o) return "a depthwise convolution must have as many output channels as input channels";
    const int64_t blocks = blocks_of(s.c), y = NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.oh, s.ow);
    *work = (nns_work){.units = s.n * blocks * nns_ceil_div(s.oh, p->rows)};
    return NNS_CHECK_SIZES(depthwise, args, y, NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.h, s.w),
                           NNS_FLOAT_BYTES(blocks, s.kh, s.kw, group, NNS_BLOCK), NNS_FLOAT_BYTES(blocks, NNS_BLOCK),
                           y);
}

static void depthwise_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, int64_t group,
                          compute_rows *compute) {
    const depthwise_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const int64_t blocks = blocks_of(s.c), chunks = nns_ceil_div(s.oh, p->rows);
    const float *x = args->in[READ_X], *w = args->in[READ_WEIGHTS], *bias = args->in[READ_BIAS];
    const float *residual = args->in[READ_RESIDUAL];
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t plane = unit / chunks, block = plane % blocks, begin = unit % chunks * p->rows;
        const int64_t out = (plane * s.oh + begin) * s.ow * NNS_BLOCK;
        const depthwise_rows rows = {
            .x = x + plane * s.h * s.w * NNS_BLOCK,
            .w = w + block * s.kh * s.kw * group * NNS_BLOCK,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .residual = residual ? residual + out : NULL,
            .y = (float *)args->out[0] + out,
            .begin = begin,
            .end = nns_min_int(s.oh, begin + p->rows),
            .finish = epilogue_of(&p->activation),
        };
        compute(&s, &rows);
    }
}

#define KERNEL(stem, name, where, group)                                      \
    WHERE_##where(NNS_DEFINE_KERNEL(stem, depthwise_check(args, work, group), \
                                    depthwise_run(args, begin, end, group, rows_g##group)))
KERNELS_depthwise(KERNEL)

NNS_DEFINE_FAMILY(depthwise);
