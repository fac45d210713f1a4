/* Convolutions of int8 over converted rows, in the blocked layout: any kernel, stride, padding, dilation, and groups of
 * whole quads. Groups may be no whole vectors of outputs: no product is computed beyond a group.
 *
 * reads   x, weights, bias (int32[2][lanes of the output], as int8_bias says), multipliers (a float per lane: of a sum,
 *         in steps of the output's scale), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * A set is the fewest groups whose outputs are whole vectors. The input rows that a unit's output rows need are converted
 * once for a set, with their padding, and then read by all taps and vectors. A column of converted rows holds as many
 * quads of each group of the set as fit into ROWS_COLUMN bytes. Further quads follow in further parts, each of which has
 * all rows and columns.
 *
 * A vector whose lanes belong to one group takes its quads from there; the lanes of a mixed vector pick theirs. With AMX,
 * tiles of 16 columns compute the vectors of one group.
 * Weights are int8[output block][part][kh][kw][quad][lane][4], with zeros for the quads that the last part lacks. */
#include "int8/product.h"

/* AMX: a tile is the quads of 16 columns, the weights of as many quads, or the sums of 16 columns. */
#if defined(__AMX_INT8__) && NNS_BLOCK == 16
#define ROWS_TILES 1
#else
#define ROWS_TILES 0
#endif

NNS_DEFINE_READS(rows_int8);

enum {
    ROWS_COLUMN = 64,     /* bytes of a column of a part: those of a cache line */
    ROWS_MOST_GROUPS = 4, /* of a set */
    ROWS_TILE = 16,       /* columns of a tile */
    ROWS_BEHIND = 32,     /* columns behind the last one, times the stride, that strips and tiles may read */
    MOST = COMPUTE_MANY_REGISTERS ? 28 : 12, /* maximum columns of a strip, and the smaller strips */
    HALF = (MOST + 1) / 2,
    QUARTER = (MOST + 3) / 4,
};
/* Maximum bytes of the converted rows. */
#define ROWS_BYTES (INT64_C(1) << 26)
/* What converted bytes are exclusive-ored with. */
#define ROWS_FLIP (INT8_UNSIGNED ? 0x80u : 0u)

/* Groups, and what follows from them. */
typedef struct {
    int64_t inputs, outputs; /* channels of a group */
    int64_t groups, vectors; /* of a set */
    int64_t sets;
    int64_t quads;           /* of a group */
    int64_t per_part, parts; /* quads of a group in a part, and parts */
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
    made.groups = groups == 1 ? 1 : NNS_BLOCK / common_divisor(made.outputs, NNS_BLOCK);
    made.vectors = nns_ceil_div(made.groups * made.outputs, NNS_BLOCK);
    made.sets = nns_ceil_div(groups, made.groups);
    made.quads = made.inputs / INT8_QUAD;
    made.per_part = nns_max_int(1, ROWS_COLUMN / INT8_QUAD / made.groups);
    made.parts = nns_ceil_div(made.quads, made.per_part);
    return made;
}

/* ---- converted rows ---------------------------------------------------------------------------------------------- */

/* The rows of a unit, in scratch: part after part, row after row. */
typedef struct {
    uint8_t *first;
    int64_t columns;   /* of a row */
    int64_t row, part; /* bytes */
} window;

/* Converted rows of `outputs` output rows, and columns of each. */
static int64_t rows_for(const kernel_geometry *s, int64_t outputs) {
    return (outputs - 1) * s->sh + (s->kh - 1) * s->dh + 1;
}
static int64_t columns_of(const kernel_geometry *s) { return (s->ow - 1) * s->sw + (s->kw - 1) * s->dw + 1; }

static window window_of(const kernel_geometry *s, int64_t outputs, void *scratch) {
    window made = {.first = scratch, .columns = columns_of(s)};
    made.row = made.columns * ROWS_COLUMN;
    made.part = rows_for(s, nns_min_int(outputs, s->oh)) * made.row;
    return made;
}

/* Bytes of scratch; negative if the converted rows are too large. */
static int64_t scratch_bytes(const kernel_geometry *s, const grouping *g, int64_t outputs) {
    const int64_t rows = rows_for(s, nns_min_int(outputs, s->oh));
    const int64_t bytes = NNS_PRODUCT(g->parts, rows, columns_of(s), ROWS_COLUMN);
    if (bytes < 0 || bytes > ROWS_BYTES) return -1;
    return bytes + ROWS_BEHIND * s->sw * ROWS_COLUMN;
}

/* Copies `count` blocks at `from`, or the first quad of each, to columns. `whole` is a constant. */
NNS_INLINE void convert_columns(const bool whole, const int8_t *from, int64_t count, uint8_t *to) {
    for (int64_t column = 0; column < count; column++, from += NNS_BLOCK, to += ROWS_COLUMN) {
        if (whole) {
            int8_block block;
            memcpy(&block, from, sizeof block);
            block ^= (int8_t)ROWS_FLIP;
            memcpy(to, &block, sizeof block);
        } else {
            const uint32_t quad = int8_load_quad(from) ^ ROWS_FLIP * 0x01010101u;
            memcpy(to, &quad, sizeof quad);
        }
    }
}

/* Converts input row `h`, which may be outside the input, of the groups [first, end) of the image at `x`. Bytes of quads
 * that a group or the set does not have stay as they are: their weights are zeros. */
static void convert_row(const kernel_geometry *s, const grouping *g, const int8_t *x, int64_t h, int64_t first,
                        int64_t end, int8_t zero, const window *made, uint8_t *to) {
    const bool inside = h >= 0 && h < s->h;
    const int64_t begin_column = inside ? nns_min_int(s->pl, made->columns) : made->columns;
    const int64_t end_column = inside ? nns_min_int(s->pl + s->w, made->columns) : made->columns;
    for (int64_t part = 0; part < g->parts; part++) {
        uint8_t *row = to + part * made->part;
        memset(row, (uint8_t)zero ^ ROWS_FLIP, (size_t)(begin_column * ROWS_COLUMN));
        memset(row + end_column * ROWS_COLUMN, (uint8_t)zero ^ ROWS_FLIP,
               (size_t)((made->columns - end_column) * ROWS_COLUMN));
    }
    for (int64_t group = first; group < end; group++) {
        for (int64_t quad = 0, count; quad < g->quads; quad += count) {
            const int64_t channel = group * g->inputs + quad * INT8_QUAD, lane = channel % NNS_BLOCK;
            const int8_t *from = x + (channel / NNS_BLOCK * s->h + h) * s->w * NNS_BLOCK + lane;
            uint8_t *place = to + quad / g->per_part * made->part + begin_column * ROWS_COLUMN +
                             ((group - first) * g->per_part + quad % g->per_part) * INT8_QUAD;
            const int64_t left = nns_min_int(g->quads - quad, g->per_part - quad % g->per_part);
            if (lane == 0 && left >= INT8_QUADS) {
                convert_columns(true, from, end_column - begin_column, place);
                count = INT8_QUADS;
            } else {
                convert_columns(false, from, end_column - begin_column, place);
                count = 1;
            }
        }
    }
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* One vector of the output rows of a unit. */
typedef struct {
    const uint8_t *x;  /* the first converted row, at the quad 0 of the vector's group unless it is mixed */
    int64_t row, part; /* bytes from one to the next */
    nns_uvec lanes;    /* quad 0 in a column of each lane's group */
    const int8_t *w;
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* or NULL */
    int8_t *y;
    int8_rounding finish;
} output_vector;

/* Quad `quad` of each lane's group, of the column at `from`. */
NNS_INLINE nns_uvec pick_quads(const uint8_t *from, nns_uvec lanes, int64_t quad) {
#if NNS_BLOCK == 16 && defined(__AVX512F__)
    return (nns_uvec)_mm512_permutexvar_epi32((__m512i)(lanes + (uint32_t)quad), _mm512_loadu_si512(from));
#else
    nns_uvec quads;
    for (int lane = 0; lane < NNS_BLOCK; lane++)
        quads[lane] = int8_load_quad((const int8_t *)from + (lanes[lane] + quad) * INT8_QUAD);
    return quads;
#endif
}

/* Computes `count` columns of an output row from `pixel` on and stores `valid` of them. `mixed` and `sw`, the stride of
 * columns or 0 for any, are constants. */
NNS_INLINE void compute_strip(const int count, const bool mixed, const int sw, const int64_t valid,
                              const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t oh,
                              int64_t pixel) {
    const int64_t step = (sw ? sw : s->sw) * ROWS_COLUMN;
    const nns_uvec bias = int8_load_bias(v->bias), lanes = v->lanes;
    nns_uvec sums[MOST];
    COMPUTE_FOR(p, count) sums[p] = bias;
    const int8_t *w = v->w;
    for (int64_t part = 0; part < g->parts; part++) {
        const int64_t quads = nns_min_int(g->per_part, g->quads - part * g->per_part);
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *column = v->x + part * v->part + (oh * s->sh + i * s->dh) * v->row + pixel * step;
            for (int64_t j = 0; j < s->kw; j++, column += s->dw * ROWS_COLUMN) {
                for (int64_t quad = 0; quad < quads; quad++) {
                    COMPUTE_FOR(of, INT8_PARTS) {
                        const int8_weight weights = int8_part_of_weights(w + quad * NNS_BLOCK * INT8_QUAD, of);
                        COMPUTE_FOR(p, count) {
                            const uint8_t *at = column + p * step;
                            const nns_uvec input =
                                mixed ? pick_quads(at, lanes, quad)
                                      : int8_broadcast(int8_load_quad((const int8_t *)at + quad * INT8_QUAD));
                            sums[p] = int8_multiply_add(sums[p], int8_part_of_quads(input, of), weights);
                        }
                    }
                }
                w += g->per_part * NNS_BLOCK * INT8_QUAD;
            }
        }
    }
    const int64_t at = (oh * s->ow + pixel) * NNS_BLOCK;
    int8_store(count, valid, &v->finish, sums, 1, nns_load(v->multipliers), v->residual ? v->residual + at : NULL,
               v->y + at);
}

/* Computes output row `oh` of a unit. */
typedef void compute_row(const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t oh);

#define ROW(name, mixed, sw)                                                                                    \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const grouping *g,                     \
                                               const output_vector *v, int64_t oh) {                            \
        int64_t pixel = 0;                                                                                      \
        for (; s->ow - pixel >= MOST; pixel += MOST) compute_strip(MOST, mixed, sw, MOST, s, g, v, oh, pixel);  \
        const int64_t left = s->ow - pixel;                                                                     \
        if (left > HALF)                                                                                        \
            compute_strip(MOST, mixed, sw, left, s, g, v, oh, pixel);                                           \
        else if (left > QUARTER)                                                                                \
            compute_strip(HALF, mixed, sw, left, s, g, v, oh, pixel);                                           \
        else if (left > 0)                                                                                      \
            compute_strip(QUARTER, mixed, sw, left, s, g, v, oh, pixel);                                        \
    }
ROW(row_1, false, 1)
ROW(row_2, false, 2)
ROW(row_any, false, 0)
ROW(mixed_row_1, true, 1)
ROW(mixed_row_2, true, 2)
ROW(mixed_row_any, true, 0)

static compute_row *row_of(const kernel_geometry *s, bool mixed) {
    if (s->sw == 1) return mixed ? mixed_row_1 : row_1;
    if (s->sw == 2) return mixed ? mixed_row_2 : row_2;
    return mixed ? mixed_row_any : row_any;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

#if ROWS_TILES
/* The memory of _tile_loadconfig. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_shapes;

/* Tiles 0 to 3 are sums, 4 and 5 columns, 6 and 7 weights. */
static void shape_tiles(const grouping *g) {
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = (uint16_t)(i == 4 || i == 5 ? g->per_part * INT8_QUAD : ROWS_COLUMN);
        shapes.rows[i] = (uint8_t)(i < 6 ? ROWS_TILE : g->per_part);
    }
    _tile_loadconfig(&shapes);
}

/* Sums of 16 columns at `x`, or of 32 `both`, and of the vectors at `w` and, with `pair`, `w_block` bytes behind. They are
 * int32[columns / 16][vectors][16][lane]. `pair` and `both` are constants. */
NNS_INLINE void add_tiles(const bool pair, const bool both, const kernel_geometry *s, const grouping *g,
                          const output_vector *v, const uint8_t *x, int64_t w_block, int32_t *sums) {
    const int64_t step = s->sw * ROWS_COLUMN;
    const int8_t *w = v->w;
    _tile_zero(0);
    if (pair) _tile_zero(1);
    if (both) _tile_zero(2);
    if (pair && both) _tile_zero(3);
    for (int64_t part = 0; part < g->parts; part++) {
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *columns = x + part * v->part + i * s->dh * v->row;
            for (int64_t j = 0; j < s->kw; j++, columns += s->dw * ROWS_COLUMN) {
                _tile_loadd(4, columns, step);
                _tile_loadd(6, w, ROWS_COLUMN);
                _tile_dpbusd(0, 4, 6);
                if (pair) {
                    _tile_loadd(7, w + w_block, ROWS_COLUMN);
                    _tile_dpbusd(1, 4, 7);
                }
                if (both) {
                    _tile_loadd(5, columns + ROWS_TILE * step, step);
                    _tile_dpbusd(2, 5, 6);
                    if (pair) _tile_dpbusd(3, 5, 7);
                }
                w += g->per_part * ROWS_COLUMN;
            }
        }
    }
    enum { SUMS = ROWS_TILE * NNS_BLOCK };
    _tile_stored(0, sums, ROWS_COLUMN);
    if (pair) _tile_stored(1, sums + SUMS, ROWS_COLUMN);
    if (both) _tile_stored(2, sums + (pair ? 2 : 1) * SUMS, ROWS_COLUMN);
    if (pair && both) _tile_stored(3, sums + 3 * SUMS, ROWS_COLUMN);
}

/* Rounds and stores the sums of the places [place, end), at most 16 of them. Places are the columns of rows of `pitch`
 * columns; the first ow of each row belong to the output. The first row is output row `oh`. */
static void store_places(const kernel_geometry *s, const output_vector *v, const int32_t *from, int64_t oh,
                         int64_t place, int64_t end, int64_t pitch) {
    const nns_uvec bias = int8_load_bias(v->bias);
    const nns_vec multipliers = nns_load(v->multipliers);
    nns_uvec sums[ROWS_TILE];
    COMPUTE_FOR(p, ROWS_TILE) sums[p] = int8_load_bias(from + p * NNS_BLOCK) + bias;
    for (int64_t at = place, count; at < end; at += count) {
        const int64_t row = at / pitch, column = at % pitch;
        count = nns_min_int(end - at, pitch - column);
        const int64_t valid = nns_min_int(count, s->ow - column), out = ((oh + row) * s->ow + column) * NNS_BLOCK;
        const int8_t *residual = v->residual ? v->residual + out : NULL;
        if (valid == ROWS_TILE)
            int8_store(ROWS_TILE, ROWS_TILE, &v->finish, sums, 1, multipliers, residual, v->y + out);
        else if (valid > 0)
            int8_store(ROWS_TILE, valid, &v->finish, sums + (at - place), 1, multipliers, residual, v->y + out);
    }
}

/* Computes the vector `v` and, with `pair`, the next one, for the first `places` places from output row `oh` on. */
NNS_INLINE void compute_places(const bool pair, const kernel_geometry *s, const grouping *g, const output_vector *v,
                               int64_t w_block, int64_t oh, int64_t places, int64_t pitch) {
    enum { SUMS = ROWS_TILE * NNS_BLOCK };
    int32_t sums[4 * SUMS] __attribute__((aligned(64)));
    for (int64_t place = 0; place < places; place += 2 * ROWS_TILE) {
        const bool both = places - place > ROWS_TILE;
        const uint8_t *x = v[0].x + oh * s->sh * v[0].row + place * s->sw * ROWS_COLUMN;
        if (both)
            add_tiles(pair, true, s, g, v, x, w_block, sums);
        else
            add_tiles(pair, false, s, g, v, x, w_block, sums);
        for (int tile = 0; tile <= both; tile++)
            for (int vector = 0; vector <= pair; vector++) {
                const int64_t first = place + tile * ROWS_TILE;
                store_places(s, &v[vector], sums + (tile * (pair + 1) + vector) * SUMS, oh, first,
                             nns_min_int(places, first + ROWS_TILE), pitch);
            }
    }
}

/* Computes `count` (1 or 2) vectors of a group for `outputs` output rows. */
static void compute_tiles(const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t count,
                          int64_t w_block, int64_t outputs, int64_t columns) {
    /* Without strides, places run on from a row to the next. */
    const bool flat = s->sh == 1 && s->sw == 1;
    const int64_t pitch = flat ? columns : s->ow, places = flat ? (outputs - 1) * columns + s->ow : s->ow;
    for (int64_t oh = 0; oh < (flat ? 1 : outputs); oh++) {
        if (count == 2)
            compute_places(true, s, g, v, w_block, oh, places, pitch);
        else
            compute_places(false, s, g, v, w_block, oh, places, pitch);
    }
}
#endif

/* ---- units: (image, set, chunk of rows) -------------------------------------------------------------------------- */

static const char *rows_check(const nns_args *args, nns_work *work) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c % p->groups || s.o % p->groups) return "groups do not divide the channels";
    const grouping g = grouping_of(&s, p->groups);
    if (g.inputs % INT8_QUAD) return "a group has no whole quads of input channels";
    if (g.groups > ROWS_MOST_GROUPS) return "vectors have lanes of too many groups";
    const int64_t scratch = scratch_bytes(&s, &g, p->rows);
    if (scratch < 0) return "rows of the input are too wide";
    const int64_t lanes = blocks_of(s.o) * NNS_BLOCK, y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    *work = (nns_work){.units = s.n * g.sets * nns_ceil_div(s.oh, p->rows), .scratch = scratch};
    return NNS_CHECK_SIZES(rows_int8, args, y, NNS_PRODUCT(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w),
                           NNS_PRODUCT(lanes, g.parts, g.per_part, INT8_QUAD, s.kh, s.kw),
                           NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(lanes), y);
}

/* Points `v` to the inputs of vector `vector` of a set; returns whether its lanes belong to several groups. */
static bool select_inputs(const grouping *g, const window *from, int64_t vector, output_vector *v) {
    for (int lane = 0; lane < NNS_BLOCK; lane++) {
        const int64_t group = nns_min_int(g->groups - 1, (vector * NNS_BLOCK + lane) / g->outputs);
        v->lanes[lane] = (uint32_t)(group * g->per_part);
    }
    const bool mixed = v->lanes[0] != v->lanes[NNS_BLOCK - 1];
    v->x = from->first + (mixed ? 0 : v->lanes[0] * INT8_QUAD);
    return mixed;
}

static void rows_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const grouping g = grouping_of(&s, p->groups);
    const int64_t blocks = blocks_of(s.o), chunks = nns_ceil_div(s.oh, p->rows), plane = s.oh * s.ow * NNS_BLOCK;
    const int64_t w_block = NNS_BLOCK * g.parts * g.per_part * INT8_QUAD * s.kh * s.kw;
    const int8_t *residual = args->in[READ_RESIDUAL];
    const window from = window_of(&s, p->rows, scratch);
#if ROWS_TILES
    shape_tiles(&g);
#endif
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / chunks / g.sets, set = unit / chunks % g.sets;
        const int64_t begin = unit % chunks * p->rows, outputs = nns_min_int(s.oh - begin, p->rows);
        const int64_t first = set * g.groups, last = nns_min_int(p->groups, first + g.groups);
        const int8_t *x = (const int8_t *)args->in[READ_X] + image * blocks_of(s.c) * s.h * s.w * NNS_BLOCK;
        for (int64_t row = 0; row < rows_for(&s, outputs); row++)
            convert_row(&s, &g, x, begin * s.sh - s.pt + row, first, last, (int8_t)p->zero, &from,
                        from.first + row * from.row);
        const int64_t vectors = nns_min_int(g.vectors, blocks - set * g.vectors);
        for (int64_t vector = 0, count; vector < vectors; vector += count) {
            output_vector v[2] = {{.row = from.row, .part = from.part, .finish = int8_rounding_of(&p->rounding)}};
            v[1] = v[0];
            bool mixed[2] = {true, true};
            for (int64_t i = 0; i < nns_min_int(2, vectors - vector); i++) {
                const int64_t block = set * g.vectors + vector + i;
                const int64_t out = (image * blocks + block) * plane + begin * s.ow * NNS_BLOCK;
                mixed[i] = select_inputs(&g, &from, vector + i, &v[i]);
                v[i].w = (const int8_t *)args->in[READ_WEIGHTS] + block * w_block;
                v[i].bias = int8_bias(args->in[READ_BIAS], blocks * NNS_BLOCK) + block * NNS_BLOCK;
                v[i].multipliers = (const float *)args->in[READ_MULTIPLIERS] + block * NNS_BLOCK;
                v[i].residual = residual ? residual + out : NULL;
                v[i].y = (int8_t *)args->out[0] + out;
            }
            count = 1;
#if ROWS_TILES
            if (!mixed[0]) {
                count = !mixed[1] && v[1].x == v[0].x ? 2 : 1;
                compute_tiles(&s, &g, v, count, w_block, outputs, from.columns);
                continue;
            }
#endif
            compute_row *compute = row_of(&s, mixed[0]);
            for (int64_t oh = 0; oh < outputs; oh++) compute(&s, &g, v, oh);
        }
    }
#if ROWS_TILES
    _tile_release();
#endif
}

NNS_DEFINE_KERNEL(rows_int8, rows_check(args, work), rows_run(args, begin, end, scratch))

NNS_DEFINE_FAMILY(rows_int8);
