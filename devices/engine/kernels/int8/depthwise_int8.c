/* Depthwise convolutions of int8 in the blocked layout: one channel per group, any kernel, stride, padding, dilation.
 *
 * reads   x, weights (int8[block][kh][kw][lane]), bias (int32[2][lanes], as int8_bias says), multipliers (a float per
 *         lane: of a sum, in steps of the output's scale), residual like the output or NULL
 * writes  y, which may be the residual's memory; or float32 (p->result)
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * The input rows of some output rows, a window, are converted once, with their padding, and then read by all taps:
 *
 *   with instructions that add up four products: to quads of rows, the same pixel and lane of four rows in one int32.
 *   A window has as few quads as the kernel's rows need, and serves all output rows that it holds the input of.
 *
 *   else: each row to float32, in which sums of at most DEPTHWISE_TAPS taps are exact. A window is one output row's;
 *   rows of the window before stay where they are. */
#define INT8_ANY_WEIGHTS 1 /* narrow ones gain nothing over float32 */
#include "int8/product.h"

NNS_DEFINE_READS(depthwise_int8);

/* 128 · 128 · 512 < 2^24 */
#define DEPTHWISE_TAPS 512
/* Maximum bytes of a window. */
#define DEPTHWISE_BYTES (INT64_C(1) << 26)

/* Maximum columns of a strip, and the smaller strips. */
enum { MOST = COMPUTE_MANY_REGISTERS ? 14 : 7, HALF = (MOST + 1) / 2, QUARTER = (MOST + 3) / 4 };

#if INT8_PARTS == 1 && !INT8_LONG
#define DEPTHWISE_QUADS 1
typedef nns_uvec element; /* of converted rows, weights and sums, for all lanes */
#else
#define DEPTHWISE_QUADS 0
typedef nns_vec element;
#endif

NNS_INLINE element element_load(const element *from) {
    element v;
    memcpy(&v, from, sizeof v);
    return v;
}

NNS_INLINE void element_store(element *to, element v) { memcpy(to, &v, sizeof v); }

/* One row of the output. */
typedef struct {
    element *const *rows;  /* converted rows, from the first column of the padding on */
    int64_t n_rows;        /* their number: rows of the kernel, or quads of them */
    const element *w;      /* [row][kw] */
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* or NULL */
    int8_t *y;
    int8_rounding finish;
} output_row;

NNS_INLINE element multiply_add(element sum, element x, element w) {
#if DEPTHWISE_QUADS
    return int8_multiply_add(sum, x, w);
#else
    return sum + x * w;
#endif
}

/* What sums begin with: the bias, unless it may exceed the whole numbers of float32. */
NNS_INLINE element first_sum(const output_row *row) {
#if DEPTHWISE_QUADS
    return compute_load_bits(row->bias);
#else
    (void)row;
    return nns_zero();
#endif
}

NNS_INLINE void finish_strip(const int count, const int64_t valid, const element *sums, const output_row *row,
                             int64_t pixel) {
    const int64_t at = pixel * NNS_BLOCK;
    nns_uvec whole[MOST];
#if DEPTHWISE_QUADS
    COMPUTE_FOR(p, count) whole[p] = sums[p];
#else
    const nns_uvec bias = compute_load_bits(row->bias);
    COMPUTE_FOR(p, count) whole[p] = (nns_uvec)__builtin_convertvector(sums[p], nns_ivec) + bias;
#endif
    int8_store(count, valid, &row->finish, whole, 1, nns_load(row->multipliers),
               row->residual ? row->residual + at : NULL, row->y + at);
}

/* Computes `count` output columns from `pixel` on and stores `valid` of them, for kernels of `kw` undilated columns and
 * a stride of `sw`. An element is loaded once per converted row. */
NNS_INLINE void compute_strip(const int count, const int kw, const int sw, const int64_t valid,
                              const kernel_geometry *s, const output_row *row, int64_t pixel) {
    (void)s;
    element sums[MOST];
    COMPUTE_FOR(p, count) sums[p] = first_sum(row);
    const element *w = row->w;
    for (int64_t i = 0; i < row->n_rows; i++, w += kw) {
        const element *x = row->rows[i] + pixel * sw;
        COMPUTE_FOR(column, (count - 1) * sw + kw) {
            const element input = element_load(x + column);
            COMPUTE_FOR(tap, kw) {
                const int p = (column - tap) / sw;
                if (column >= tap && (column - tap) % sw == 0 && p < count)
                    sums[p] = multiply_add(sums[p], input, element_load(w + tap));
            }
        }
    }
    finish_strip(count, valid, sums, row, pixel);
}

/* The same for any kernel. */
NNS_INLINE void compute_any(const int count, const int64_t valid, const kernel_geometry *s, const output_row *row,
                            int64_t pixel) {
    element sums[MOST];
    COMPUTE_FOR(p, count) sums[p] = first_sum(row);
    const element *w = row->w;
    for (int64_t i = 0; i < row->n_rows; i++) {
        const element *x = row->rows[i] + pixel * s->sw;
        for (int64_t j = 0; j < s->kw; j++, x += s->dw) {
            const element weights = element_load(w++);
            COMPUTE_FOR(p, count) sums[p] = multiply_add(sums[p], element_load(x + p * s->sw), weights);
        }
    }
    finish_strip(count, valid, sums, row, pixel);
}

typedef void compute_row(const kernel_geometry *s, const output_row *row);

#define ROW(name, function, ...)                                                                    \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const output_row *row) {   \
        int64_t pixel = 0;                                                                          \
        for (; s->ow - pixel >= MOST; pixel += MOST) function(MOST, __VA_ARGS__ MOST, s, row, pixel); \
        const int64_t left = s->ow - pixel;                                                         \
        if (left > HALF)                                                                            \
            function(MOST, __VA_ARGS__ left, s, row, pixel);                                        \
        else if (left > QUARTER)                                                                    \
            function(HALF, __VA_ARGS__ left, s, row, pixel);                                        \
        else if (left > 0)                                                                          \
            function(QUARTER, __VA_ARGS__ left, s, row, pixel);                                     \
    }
#define STRIP_OF(kw, sw) kw, sw,
ROW(row_3x1, compute_strip, STRIP_OF(3, 1))
ROW(row_3x2, compute_strip, STRIP_OF(3, 2))
ROW(row_5x1, compute_strip, STRIP_OF(5, 1))
ROW(row_5x2, compute_strip, STRIP_OF(5, 2))
ROW(row_any, compute_any, )

static compute_row *row_of(const kernel_geometry *s) {
    if (s->dw != 1 || s->sw > 2 || (s->kw != 3 && s->kw != 5)) return row_any;
    if (s->kw == 3) return s->sw == 1 ? row_3x1 : row_3x2;
    return s->sw == 1 ? row_5x1 : row_5x2;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Columns of a converted row: those of all strips. The last strip may be partly outside the output. */
static int64_t columns_of(const kernel_geometry *s) {
    return (nns_ceil_div(s->ow, MOST) * MOST - 1) * s->sw + (s->kw - 1) * s->dw + 1;
}

/* Converted rows per window, and output rows that it serves: more than one if the kernel's rows lie beside each other. */
#if DEPTHWISE_QUADS
static int64_t window_rows(const kernel_geometry *s) { return nns_ceil_div(s->kh, INT8_QUAD); }
static int64_t window_outputs(const kernel_geometry *s) {
    return s->dh == 1 ? (window_rows(s) * INT8_QUAD - s->kh) / s->sh + 1 : 1;
}
#else
static int64_t window_rows(const kernel_geometry *s) { return s->kh; }
static int64_t window_outputs(const kernel_geometry *s) {
    (void)s;
    return 1;
}
#endif

/* Scratch: the block's weights for each output row of a window, the window's rows, pointers to them in the order of the
 * kernel's rows, and the input row that each holds. */
typedef struct {
    element *w, *slots, **rows;
    int64_t *held;
    int64_t columns, n_rows, outputs;
} window;

static window window_of(const kernel_geometry *s, void *scratch) {
    window made = {.w = scratch, .columns = columns_of(s), .n_rows = window_rows(s), .outputs = window_outputs(s)};
    made.slots = made.w + made.outputs * made.n_rows * s->kw;
    made.rows = (element **)(void *)(made.slots + made.n_rows * made.columns);
    made.held = (int64_t *)(void *)(made.rows + made.n_rows);
    return made;
}

/* Bytes of scratch; negative if a window is too large. */
static int64_t scratch_bytes(const kernel_geometry *s) {
    const int64_t rows = window_rows(s), size = (int64_t)sizeof(element);
    const int64_t slots = NNS_PRODUCT(rows, columns_of(s), size);
    if (slots < 0 || slots > DEPTHWISE_BYTES) return -1;
    return slots + window_outputs(s) * rows * s->kw * size + rows * (int64_t)(sizeof(element *) + sizeof(int64_t));
}

/* The columns [begin, end) of a converted row that lie inside the input. */
typedef struct {
    int64_t begin, end;
} inner_columns;

static inner_columns inner_of(const kernel_geometry *s, int64_t columns) {
    return (inner_columns){nns_min_int(s->pl, columns), nns_min_int(s->pl + s->w, columns)};
}

static void fill_columns(element *to, int64_t begin, int64_t end, element value) {
    for (int64_t column = begin; column < end; column++) element_store(to + column, value);
}

#if DEPTHWISE_QUADS
typedef uint8_t unsigned_block __attribute__((vector_size(NNS_BLOCK)));

NNS_INLINE unsigned_block load_block(const int8_t *from) {
    unsigned_block block;
    memcpy(&block, from, sizeof block);
    return block;
}

/* A block of inputs in the form that products take. */
NNS_INLINE unsigned_block load_inputs(const int8_t *from) {
    return INT8_UNSIGNED ? load_block(from) ^ 0x80 : load_block(from);
}

/* Stores the quads of four blocks: the bytes of a lane beside each other. */
NNS_INLINE void store_quads(element *to, const unsigned_block *rows) {
#if NNS_BLOCK == 16
    typedef uint16_t pairs __attribute__((vector_size(NNS_BLOCK)));
    pairs low[2], high[2]; /* rows 0 and 1 of the low lanes, rows 2 and 3; of the high lanes */
    COMPUTE_FOR(i, 2) {
        const unsigned_block a = rows[2 * i], b = rows[2 * i + 1];
        low[i] = (pairs)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        high[i] = (pairs)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    const pairs quads[] = {__builtin_shufflevector(low[0], low[1], 0, 8, 1, 9, 2, 10, 3, 11),
                           __builtin_shufflevector(low[0], low[1], 4, 12, 5, 13, 6, 14, 7, 15),
                           __builtin_shufflevector(high[0], high[1], 0, 8, 1, 9, 2, 10, 3, 11),
                           __builtin_shufflevector(high[0], high[1], 4, 12, 5, 13, 6, 14, 7, 15)};
    COMPUTE_FOR(i, 4) memcpy((char *)to + i * NNS_BLOCK, &quads[i], sizeof quads[i]);
#else
    nns_uvec quads = {0};
    COMPUTE_FOR(i, INT8_QUAD) quads |= __builtin_convertvector(rows[i], nns_uvec) << (8 * i);
    element_store(to, quads);
#endif
}

/* Stores the quads of one column, whose blocks lie in each of four rows. */
NNS_INLINE void store_column(element *to, const int8_t *const *from) {
    unsigned_block rows[INT8_QUAD];
    COMPUTE_FOR(i, INT8_QUAD) rows[i] = load_inputs(from[i]);
    store_quads(to, rows);
}

#if NNS_BLOCK == 16
/* Columns that are converted at once. */
#define DEPTHWISE_COLUMNS 4

/* The same of four neighbouring columns. */
NNS_INLINE void store_columns(element *to, const int8_t *const *from) {
    const __m512i flip = _mm512_set1_epi8(INT8_UNSIGNED ? -128 : 0);
    __m512i rows[INT8_QUAD], low[2], high[2];
    COMPUTE_FOR(i, INT8_QUAD) rows[i] = _mm512_xor_si512(_mm512_loadu_si512(from[i]), flip);
    COMPUTE_FOR(i, 2) { /* pairs of rows: of the low lanes of each column, and of the high ones */
        low[i] = _mm512_unpacklo_epi8(rows[2 * i], rows[2 * i + 1]);
        high[i] = _mm512_unpackhi_epi8(rows[2 * i], rows[2 * i + 1]);
    }
    /* four lanes of each column */
    const __m512i a = _mm512_unpacklo_epi16(low[0], low[1]), b = _mm512_unpackhi_epi16(low[0], low[1]);
    const __m512i c = _mm512_unpacklo_epi16(high[0], high[1]), d = _mm512_unpackhi_epi16(high[0], high[1]);
    const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44);
    const __m512i behind_ab = _mm512_shuffle_i32x4(a, b, 0xee), behind_cd = _mm512_shuffle_i32x4(c, d, 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(ab, cd, 0x88));
    _mm512_storeu_si512(to + 1, _mm512_shuffle_i32x4(ab, cd, 0xdd));
    _mm512_storeu_si512(to + 2, _mm512_shuffle_i32x4(behind_ab, behind_cd, 0x88));
    _mm512_storeu_si512(to + 3, _mm512_shuffle_i32x4(behind_ab, behind_cd, 0xdd));
}
#else
#define DEPTHWISE_COLUMNS 1
#define store_columns store_column
#endif

/* Converts the rows first, first + step, … of the block at `x`; those outside the input are the zero points at `outside`,
 * which has DEPTHWISE_COLUMNS blocks. */
static void convert_quad(const kernel_geometry *s, const int8_t *x, int64_t first, int64_t step, const int8_t *outside,
                         int64_t columns, element *to) {
    const inner_columns inner = inner_of(s, columns);
    const int8_t *from[INT8_QUAD];
    int64_t move[INT8_QUAD];
    for (int i = 0; i < INT8_QUAD; i++) {
        const int64_t h = first + i * step;
        const bool inside = h >= 0 && h < s->h;
        from[i] = inside ? x + h * s->w * NNS_BLOCK : outside;
        move[i] = inside ? NNS_BLOCK : 0;
    }
    const element padding = (element)compute_broadcast_bits(0x01010101 * (uint32_t)(uint8_t)load_inputs(outside)[0]);
    fill_columns(to, 0, inner.begin, padding);
    const int64_t count = inner.end - inner.begin >= DEPTHWISE_COLUMNS ? DEPTHWISE_COLUMNS : 1;
    for (int64_t column = inner.begin; column < inner.end; column += count) {
        const int64_t again = nns_max_int(0, column + count - inner.end); /* the last columns once more */
        column -= again;
        for (int i = 0; i < INT8_QUAD; i++) from[i] -= again * move[i];
        if (count == DEPTHWISE_COLUMNS)
            store_columns(to + column, from);
        else
            store_column(to + column, from);
        for (int i = 0; i < INT8_QUAD; i++) from[i] += count * move[i];
    }
    fill_columns(to, inner.end, columns, padding);
}

/* Converts the window whose first output row is `oh`. */
static void convert_window(const kernel_geometry *s, const int8_t *x, int64_t oh, const int8_t *outside,
                           const window *to) {
    const int64_t first = oh * s->sh - s->pt;
    for (int64_t q = 0; q < to->n_rows; q++) {
        to->rows[q] = to->slots + q * to->columns;
        convert_quad(s, x, first + q * INT8_QUAD * s->dh, s->dh, outside, to->columns, to->rows[q]);
    }
}

/* Converts the weights at `w`: those of output row r of a window begin r * sh rows further down. */
static void convert_weights(const kernel_geometry *s, const int8_t *w, const window *to) {
    element *place = to->w;
    for (int64_t r = 0; r < to->outputs; r++)
        for (int64_t q = 0; q < to->n_rows; q++)
            for (int64_t j = 0; j < s->kw; j++) {
                unsigned_block rows[INT8_QUAD] = {{0}};
                COMPUTE_FOR(i, INT8_QUAD) {
                    const int64_t tap = q * INT8_QUAD + i - r * s->sh;
                    if (tap >= 0 && tap < s->kh) rows[i] = load_block(w + (tap * s->kw + j) * NNS_BLOCK);
                }
                store_quads(place++, rows);
            }
}
#else
#define DEPTHWISE_COLUMNS 1

/* Converts input row `h`, which may be outside the input, of the block at `x`. */
static void convert_row(const kernel_geometry *s, const int8_t *x, int64_t h, const int8_t *outside, int64_t columns,
                        element *to) {
    const element padding = nns_broadcast((float)*outside);
    if (h < 0 || h >= s->h) {
        fill_columns(to, 0, columns, padding);
        return;
    }
    const inner_columns inner = inner_of(s, columns);
    const int8_t *from = x + h * s->w * NNS_BLOCK;
    fill_columns(to, 0, inner.begin, padding);
    for (int64_t column = inner.begin; column < inner.end; column++, from += NNS_BLOCK) {
        int8_block block;
        memcpy(&block, from, sizeof block);
        element_store(to + column, int8_to_float(block, 0));
    }
    fill_columns(to, inner.end, columns, padding);
}

/* Converts the window of output row `oh`, as far as it is not there already. */
static void convert_window(const kernel_geometry *s, const int8_t *x, int64_t oh, const int8_t *outside,
                           const window *to) {
    const int64_t first = oh * s->sh - s->pt;
    for (int64_t i = 0; i < s->kh; i++) {
        const int64_t h = first + i * s->dh, slot = s->dh == 1 ? (h + s->pt) % s->kh : i;
        to->rows[i] = to->slots + slot * to->columns;
        if (to->held[slot] == h) continue;
        convert_row(s, x, h, outside, to->columns, to->rows[i]);
        to->held[slot] = h;
    }
}

static void convert_weights(const kernel_geometry *s, const int8_t *w, const window *to) {
    for (int64_t tap = 0; tap < s->kh * s->kw; tap++) {
        int8_block block;
        memcpy(&block, w + tap * NNS_BLOCK, sizeof block);
        element_store(to->w + tap, int8_to_float(block, 0));
    }
}
#endif

/* ---- units: (image, block, chunk of rows) ------------------------------------------------------------------------ */

static const char *depthwise_check(const nns_args *args, nns_work *work) {
    const depthwise_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c != s.o) return "a depthwise convolution must have as many output channels as input channels";
    if (s.kh * s.kw > DEPTHWISE_TAPS) return "the kernel has too many taps";
    const int64_t scratch = scratch_bytes(&s);
    if (scratch < 0) return "rows of the input are too wide";
    const int64_t lanes = blocks_of(s.c) * NNS_BLOCK, y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    *work = (nns_work){.units = s.n * blocks_of(s.c) * nns_ceil_div(s.oh, p->rows), .scratch = scratch};
    return NNS_CHECK_SIZES(depthwise_int8, args, int8_result_bytes(y, &p->result), NNS_PRODUCT(s.n, lanes, s.h, s.w), NNS_PRODUCT(lanes, s.kh, s.kw),
                           NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(lanes), y);
}

static void depthwise_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const depthwise_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const int64_t blocks = blocks_of(s.c), chunks = nns_ceil_div(s.oh, p->rows), y_row = s.ow * NNS_BLOCK;
    const int8_t *residual = args->in[READ_RESIDUAL];
    int8_t outside[DEPTHWISE_COLUMNS * NNS_BLOCK];
    memset(outside, (int)p->zero, sizeof outside);
    compute_row *compute = row_of(&s);
    const window converted = window_of(&s, scratch);
    output_row row = {.rows = converted.rows, .n_rows = converted.n_rows, .finish = int8_rounding_of(&p->rounding, &p->result, args->out[0])};
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t plane = unit / chunks, block = plane % blocks, begin = unit % chunks * p->rows;
        const int64_t end = nns_min_int(s.oh, begin + p->rows);
        const int8_t *x = (const int8_t *)args->in[READ_X] + plane * s.h * s.w * NNS_BLOCK;
        convert_weights(&s, (const int8_t *)args->in[READ_WEIGHTS] + block * s.kh * s.kw * NNS_BLOCK, &converted);
        for (int64_t slot = 0; slot < converted.n_rows; slot++) converted.held[slot] = INT64_MIN;
        row.bias = int8_bias(args->in[READ_BIAS], blocks * NNS_BLOCK) + block * NNS_BLOCK;
        row.multipliers = (const float *)args->in[READ_MULTIPLIERS] + block * NNS_BLOCK;
        for (int64_t oh = begin; oh < end; oh++) {
            const int64_t out = (plane * s.oh + oh) * y_row, r = (oh - begin) % converted.outputs;
            if (r == 0) convert_window(&s, x, oh, outside, &converted);
            row.w = converted.w + r * converted.n_rows * s.kw;
            row.residual = residual ? residual + out : NULL;
            row.y = (int8_t *)args->out[0] + out;
            compute(&s, &row);
        }
    }
}

NNS_DEFINE_KERNEL(depthwise_int8, depthwise_check(args, work), depthwise_run(args, begin, end, scratch))

NNS_DEFINE_FAMILY(depthwise_int8);
