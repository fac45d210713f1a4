/* Convolutions of int8 in groups, in the blocked layout: any kernel, stride, padding and dilation. Groups may be no whole
 * vectors of outputs; no product is computed beyond a group.
 *
 * reads   x, weights, bias (int32[2][lanes of the output], as int8_bias says), multipliers (a float per lane: of a sum,
 *         in steps of the output's scale), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * A set is the fewest groups whose outputs are whole vectors. The input rows that an output row needs are converted once
 * for a set, with their padding, and then read by all its taps and vectors. In a converted row, a column holds the
 * quads of all groups of the set beside each other: first quad 0 of each group, then quad 1 of each. The quads of a
 * column that do not fit into GROUPED_COLUMN bytes follow in further parts, each of which has all columns.
 *
 * A vector whose lanes belong to one group takes its quads from there; the lanes of a mixed vector pick theirs.
 * Weights are int8[output block][part][kh][kw][quad][lane][4]. */
#include "int8/product.h"

NNS_DEFINE_READS(grouped_int8);

enum {
    GROUPED_COLUMN = 64, /* bytes of a column of a part: those of a cache line */
    GROUPED_MOST_GROUPS = 4, /* of a set: those whose quads one instruction picks from */
    MOST = COMPUTE_MANY_REGISTERS ? 28 : 12, /* maximum columns of a strip, and the smaller strips */
    HALF = (MOST + 1) / 2,
    QUARTER = (MOST + 3) / 4,
};
/* Maximum bytes of the converted rows. */
#define GROUPED_BYTES (INT64_C(1) << 26)

/* Groups, and what follows from them. */
typedef struct {
    int64_t inputs, outputs;  /* channels of a group */
    int64_t groups, vectors;  /* of a set */
    int64_t sets;
    int64_t quads;            /* of a group */
    int64_t per_part, parts;  /* quads of a group in a part, and parts of a converted row */
} grouping;

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static grouping grouping_of(const kernel_geometry *s, int64_t groups) {
    grouping made = {.inputs = s->c / groups, .outputs = s->o / groups};
    made.groups = NNS_BLOCK / common_divisor(made.outputs, NNS_BLOCK);
    made.vectors = made.groups * made.outputs / NNS_BLOCK;
    made.sets = nns_ceil_div(groups, made.groups);
    made.quads = made.inputs / INT8_QUAD;
    made.per_part = GROUPED_COLUMN / INT8_QUAD / made.groups;
    if (made.per_part) made.parts = nns_ceil_div(made.quads, made.per_part);
    return made;
}

/* ---- strips ------------------------------------------------------------------------------------------------------ */

/* One vector of one row of the output. */
typedef struct {
    uint8_t *const *rows;  /* converted rows, from the first column of the padding on */
    int64_t part;          /* bytes between parts of a converted row */
    int64_t first;         /* bytes from a column to the quad 0 of the vector's group */
    nns_uvec lanes;        /* group in the set of each lane of a mixed vector */
    const int8_t *w;
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* or NULL */
    int8_t *y;
    int8_rounding finish;
} output_row;

/* The quads at `from` that lanes pick, each below GROUPED_MOST_GROUPS. */
NNS_INLINE nns_uvec pick_quads(const uint8_t *from, nns_uvec lanes) {
#if NNS_BLOCK == 16 && defined(__AVX512F__)
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)from));
    return (nns_uvec)_mm512_permutevar_ps((__m512)all, (__m512i)lanes);
#elif NNS_BLOCK == 8 && defined(__AVX2__)
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)from));
    return (nns_uvec)_mm256_permutevar_ps((__m256)all, (__m256i)lanes);
#else
    nns_uvec quads;
    for (int lane = 0; lane < NNS_BLOCK; lane++)
        quads[lane] = int8_load_quad((const int8_t *)from + lanes[lane] * INT8_QUAD);
    return quads;
#endif
}

/* Computes `count` output columns from `pixel` on and stores `valid` of them. `mixed` and `sw`, the stride of columns or 0
 * for any, are constants. */
NNS_INLINE void compute_strip(const int count, const bool mixed, const int sw, const int64_t valid,
                              const kernel_geometry *s, const grouping *g, const output_row *row, int64_t pixel) {
    const int64_t step = (sw ? sw : s->sw) * GROUPED_COLUMN, quad = g->groups * INT8_QUAD;
    const nns_uvec bias = int8_load_bias(row->bias), lanes = row->lanes;
    nns_uvec sums[MOST];
    COMPUTE_FOR(p, count) sums[p] = bias;
    const int8_t *w = row->w;
    for (int64_t part = 0; part < g->parts; part++) {
        const int64_t quads = nns_min_int(g->per_part, g->quads - part * g->per_part);
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *column = row->rows[i] + part * row->part + pixel * step + row->first;
            for (int64_t j = 0; j < s->kw; j++, column += s->dw * GROUPED_COLUMN) {
                const uint8_t *x = column;
                for (int64_t q = 0; q < quads; q++, x += quad, w += NNS_BLOCK * INT8_QUAD) {
                    COMPUTE_FOR(of, INT8_PARTS) {
                        const int8_weight weights = int8_part_of_weights(w, of);
                        COMPUTE_FOR(p, count) {
                            const uint8_t *at = x + p * step;
                            const nns_uvec input =
                                mixed ? pick_quads(at, lanes) : int8_broadcast(int8_load_quad((const int8_t *)at));
                            sums[p] = int8_multiply_add(sums[p], int8_part_of_quads(input, of), weights);
                        }
                    }
                }
            }
        }
    }
    const int64_t at = pixel * NNS_BLOCK;
    int8_store(count, valid, &row->finish, sums, 1, nns_load(row->multipliers),
               row->residual ? row->residual + at : NULL, row->y + at);
}

typedef void compute_row(const kernel_geometry *s, const grouping *g, const output_row *row);

#define ROW(name, mixed, sw)                                                                                      \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const grouping *g, const output_row *row) { \
        int64_t pixel = 0;                                                                                        \
        for (; s->ow - pixel >= MOST; pixel += MOST) compute_strip(MOST, mixed, sw, MOST, s, g, row, pixel);      \
        const int64_t left = s->ow - pixel;                                                                       \
        if (left > HALF)                                                                                          \
            compute_strip(MOST, mixed, sw, left, s, g, row, pixel);                                               \
        else if (left > QUARTER)                                                                                  \
            compute_strip(HALF, mixed, sw, left, s, g, row, pixel);                                               \
        else if (left > 0)                                                                                        \
            compute_strip(QUARTER, mixed, sw, left, s, g, row, pixel);                                            \
    }
ROW(row_1, false, 1)
ROW(row_2, false, 2)
ROW(row_any, false, 0)
ROW(mixed_row_1, true, 1)
ROW(mixed_row_2, true, 2)
ROW(mixed_row_any, true, 0)

/* For vectors of one group, and for mixed ones. */
static compute_row *const row_1_of[] = {row_1, mixed_row_1}, *const row_2_of[] = {row_2, mixed_row_2},
                          *const row_any_of[] = {row_any, mixed_row_any};

static compute_row *const *rows_of(const kernel_geometry *s) {
    return s->sw == 1 ? row_1_of : s->sw == 2 ? row_2_of : row_any_of;
}

/* ---- converted rows ---------------------------------------------------------------------------------------------- */

/* Columns of a converted row: those of all strips. The last strip may be partly outside the output. */
static int64_t columns_of(const kernel_geometry *s) {
    return (nns_ceil_div(s->ow, MOST) * MOST - 1) * s->sw + (s->kw - 1) * s->dw + 1;
}

/* Scratch: rows, pointers to them in the order of the kernel's rows, and the input row that each holds. */
typedef struct {
    uint8_t *slots, **rows;
    int64_t *held;
    int64_t columns, part, row; /* columns; bytes of a part and of a row */
} window;

static window window_of(const kernel_geometry *s, const grouping *g, void *scratch) {
    window made = {.slots = scratch, .columns = columns_of(s)};
    made.part = made.columns * GROUPED_COLUMN;
    made.row = g->parts * made.part;
    made.rows = (uint8_t **)(void *)(made.slots + s->kh * made.row + GROUPED_COLUMN);
    made.held = (int64_t *)(void *)(made.rows + s->kh);
    return made;
}

/* Bytes of scratch, with some behind the last column, which instructions that pick quads may read; negative if the
 * converted rows are too large. */
static int64_t scratch_bytes(const kernel_geometry *s, const grouping *g) {
    const int64_t slots = NNS_PRODUCT(s->kh, g->parts, columns_of(s), GROUPED_COLUMN);
    if (slots < 0 || slots > GROUPED_BYTES) return -1;
    return slots + GROUPED_COLUMN + s->kh * (int64_t)(sizeof(uint8_t *) + sizeof(int64_t));
}

/* Converts input row `h`, which may be outside the input, of the groups [first, end) of the image at `x`. */
static void convert_row(const kernel_geometry *s, const grouping *g, const int8_t *x, int64_t h, int64_t first,
                        int64_t end, int8_t zero, const window *made, uint8_t *to) {
    const uint8_t flip = INT8_UNSIGNED ? 0x80 : 0;
    const bool inside = h >= 0 && h < s->h;
    const int64_t from_column = inside ? nns_min_int(s->pl, made->columns) : made->columns;
    const int64_t to_column = inside ? nns_min_int(s->pl + s->w, made->columns) : made->columns;
    for (int64_t part = 0; part < g->parts; part++) {
        uint8_t *columns = to + part * made->part;
        memset(columns, (uint8_t)zero ^ flip, (size_t)(from_column * GROUPED_COLUMN));
        memset(columns + to_column * GROUPED_COLUMN, (uint8_t)zero ^ flip,
               (size_t)((made->columns - to_column) * GROUPED_COLUMN));
    }
    for (int64_t group = first; group < end; group++) {
        for (int64_t quad = 0; quad < g->quads; quad++) {
            const int64_t channel = group * g->inputs + quad * INT8_QUAD, block = channel / NNS_BLOCK;
            const int8_t *from = x + (block * s->h + h) * s->w * NNS_BLOCK + channel % NNS_BLOCK;
            uint8_t *place = to + quad / g->per_part * made->part +
                             (quad % g->per_part * g->groups + group - first) * INT8_QUAD;
            for (int64_t column = from_column; column < to_column; column++) {
                const uint32_t flipped = int8_load_quad(from + (column - from_column) * NNS_BLOCK) ^ flip * 0x01010101u;
                memcpy(place + column * GROUPED_COLUMN, &flipped, sizeof flipped);
            }
        }
    }
}

/* Converts the rows of output row `oh`, as far as they are not there already. */
static void convert_window(const kernel_geometry *s, const grouping *g, const int8_t *x, int64_t oh, int64_t first,
                           int64_t end, int8_t zero, const window *to) {
    for (int64_t i = 0; i < s->kh; i++) {
        const int64_t h = oh * s->sh - s->pt + i * s->dh, slot = s->dh == 1 ? (h + s->pt) % s->kh : i;
        to->rows[i] = to->slots + slot * to->row;
        if (to->held[slot] == h) continue;
        convert_row(s, g, x, h, first, end, zero, to, to->rows[i]);
        to->held[slot] = h;
    }
}

/* ---- units: (image, set, chunk of rows) -------------------------------------------------------------------------- */

static const char *grouped_check(const nns_args *args, nns_work *work) {
    const grouped_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c % p->groups || s.o % p->groups) return "groups do not divide the channels";
    const grouping g = grouping_of(&s, p->groups);
    if (g.inputs % INT8_QUAD) return "a group has no whole quads of input channels";
    if (g.groups > GROUPED_MOST_GROUPS) return "vectors have lanes of too many groups";
    const int64_t scratch = scratch_bytes(&s, &g);
    if (scratch < 0) return "rows of the input are too wide";
    const int64_t lanes = blocks_of(s.o) * NNS_BLOCK, y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    *work = (nns_work){.units = s.n * g.sets * nns_ceil_div(s.oh, p->rows), .scratch = scratch};
    return NNS_CHECK_SIZES(grouped_int8, args, y, NNS_PRODUCT(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w),
                           NNS_PRODUCT(lanes, g.inputs, s.kh, s.kw), NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)),
                           NNS_FLOAT_BYTES(lanes), y);
}

/* Points `row` to the lanes of vector `vector` of a set; returns whether these belong to several groups. */
static bool select_lanes(const grouping *g, int64_t vector, output_row *row) {
    for (int lane = 0; lane < NNS_BLOCK; lane++)
        row->lanes[lane] = (uint32_t)((vector * NNS_BLOCK + lane) / g->outputs);
    const bool mixed = row->lanes[0] != row->lanes[NNS_BLOCK - 1];
    row->first = mixed ? 0 : row->lanes[0] * INT8_QUAD;
    return mixed;
}

static void grouped_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const grouped_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const grouping g = grouping_of(&s, p->groups);
    const int64_t blocks = blocks_of(s.o), chunks = nns_ceil_div(s.oh, p->rows), y_row = s.ow * NNS_BLOCK;
    const int64_t w_block = NNS_BLOCK * g.inputs * s.kh * s.kw;
    const int8_t *residual = args->in[READ_RESIDUAL];
    compute_row *const *compute = rows_of(&s);
    const window converted = window_of(&s, &g, scratch);
    memset(converted.slots, 0, (size_t)(s.kh * converted.row + GROUPED_COLUMN));
    output_row row = {.rows = converted.rows, .part = converted.part, .finish = int8_rounding_of(&p->rounding)};
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t plane = unit / chunks, image = plane / g.sets, set = plane % g.sets;
        const int64_t begin = unit % chunks * p->rows, end = nns_min_int(s.oh, begin + p->rows);
        const int64_t first = set * g.groups, last = nns_min_int(p->groups, first + g.groups);
        const int8_t *x = (const int8_t *)args->in[READ_X] + image * blocks_of(s.c) * s.h * s.w * NNS_BLOCK;
        for (int64_t slot = 0; slot < s.kh; slot++) converted.held[slot] = INT64_MIN;
        for (int64_t oh = begin; oh < end; oh++) {
            convert_window(&s, &g, x, oh, first, last, (int8_t)p->zero, &converted);
            for (int64_t vector = 0; vector < g.vectors; vector++) {
                const int64_t block = set * g.vectors + vector;
                if (block >= blocks) break;
                const bool mixed = select_lanes(&g, vector, &row);
                const int64_t out = ((image * blocks + block) * s.oh + oh) * y_row;
                row.w = (const int8_t *)args->in[READ_WEIGHTS] + block * w_block;
                row.bias = int8_bias(args->in[READ_BIAS], blocks * NNS_BLOCK) + block * NNS_BLOCK;
                row.multipliers = (const float *)args->in[READ_MULTIPLIERS] + block * NNS_BLOCK;
                row.residual = residual ? residual + out : NULL;
                row.y = (int8_t *)args->out[0] + out;
                compute[mixed](&s, &g, &row);
            }
        }
    }
}

NNS_DEFINE_KERNEL(grouped_int8, grouped_check(args, work), grouped_run(args, begin, end, scratch))

NNS_DEFINE_FAMILY(grouped_int8);
