/* Convolutions of int8 over converted rows, in the blocked layout: any kernel, stride, padding, dilation, and groups of
 * whole quads. Groups may be no whole vectors of outputs: no product is computed beyond a group.
 *
 * reads   x, weights, bias (int32[2][lanes of the output], as int8_bias says), multipliers (a float per lane: of a sum,
 *         in steps of the output's scale), residual like the output or NULL
 * writes  y, which may be the residual's memory; or float32 (p->result)
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * A set is the fewest groups whose outputs are whole vectors. The input rows that a unit's output rows need are converted
 * once for a unit, with their padding, and then read by all taps and by the vectors of the set that the unit computes. A
 * column of converted rows holds up to ROWS_QUADS quads, as many of each group of the set. Further quads follow in further
 * parts, each of which has all rows and columns.
 *
 * Vectors whose lanes belong to one group take their quads from there, two vectors at a time. The lanes of a mixed vector
 * pick theirs; of two groups, half of the lanes belong to each, and quads of the two groups lie beside each other: one
 * broadcast of both serves lanes that alternate. With INT8_WIDE, converted inputs are int16, a vector's sums are in two
 * halves, and vectors of two groups are like those of more. With AMX, tiles of 16 columns compute the vectors of one group.
 * With i8mm, sets of one group are computed by products of eight channels (rows_pairs.h); with NEON without dot products
 * by long products (rows_sixteens.h).
 * Weights are int8[output block][part][kh][kw][quad][lane][4], with zeros for the quads that the last part lacks unless
 * they are packed: then it has fewer. */
#include "int8/rows_window.h"

NNS_DEFINE_READS(rows_int8);

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

/* Sums of a column and a vector. */
enum { ROWS_HALVES = INT8_WIDE ? 2 : 1 };

#if !INT8_WIDE
/* A quad of each lane's group; that of the first group lies at `from`. */
NNS_INLINE nns_uvec pick_quads(const uint8_t *from, nns_uvec lanes) {
#if NNS_BLOCK == 16 && defined(__AVX512F__)
    return (nns_uvec)_mm512_permutexvar_epi32((__m512i)lanes, _mm512_loadu_si512(from));
#else
    nns_uvec quads;
    for (int lane = 0; lane < NNS_BLOCK; lane++)
        quads[lane] = int8_load_quad((const int8_t *)from + lanes[lane] * INT8_QUAD);
    return quads;
#endif
}
#endif

/* Of vectors of two groups: how lanes alternate between the groups, and back. */
#if NNS_BLOCK == 16
#define ROWS_ALTERNATE(v) __builtin_shufflevector(v, v, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)
#define ROWS_SEPARATE(v) __builtin_shufflevector(v, v, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)
#define ROWS_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ROWS_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#elif NNS_BLOCK == 8
#define ROWS_ALTERNATE(v) __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7)
#define ROWS_SEPARATE(v) __builtin_shufflevector(v, v, 0, 2, 4, 6, 1, 3, 5, 7)
#define ROWS_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ROWS_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#else
#define ROWS_ALTERNATE(v) __builtin_shufflevector(v, v, 0, 2, 1, 3)
#define ROWS_SEPARATE(v) __builtin_shufflevector(v, v, 0, 2, 1, 3)
#define ROWS_EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6)
#define ROWS_ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7)
#endif

/* The inputs of a vector: quads of one group, of two groups in lanes that alternate, or of the group of each lane. */
typedef enum { ONE_GROUP, TWO_GROUPS, MORE_GROUPS } lane_groups;

#if INT8_WIDE
/* The weights at `from` of half the lanes. */
NNS_INLINE int8_weight load_half(const int8_t *from) {
    typedef int8_t bytes __attribute__((vector_size(NNS_BLOCK * INT8_QUAD / 2)));
    bytes half;
    memcpy(&half, from, sizeof half);
    return (int8_weight)__builtin_convertvector(half, int8_pairs);
}

/* The inputs of half `half` of the lanes at the quads of a column at `from`; `groups` is a constant. */
NNS_INLINE nns_uvec load_inputs(const lane_groups groups, const uint8_t *from, nns_uvec lanes, const int half) {
    typedef uint64_t quads __attribute__((vector_size(NNS_BLOCK * sizeof(uint32_t))));
    uint64_t quad;
    if (groups == ONE_GROUP) {
        memcpy(&quad, from, sizeof quad);
        return (nns_uvec)((quads){0} + quad);
    }
    quads each;
    for (int lane = 0; lane < NNS_BLOCK / 2; lane++) {
        memcpy(&quad, from + lanes[half * (NNS_BLOCK / 2) + lane] * ROWS_QUAD, sizeof quad);
        each[lane] = quad;
    }
    return (nns_uvec)each;
}

/* The same as `add_quad` below for one vector, whose halves have sums of two channels each. */
NNS_INLINE void add_quad(const int rows, const int columns, const int vectors, const lane_groups groups, int64_t column,
                         int64_t row, nns_uvec lanes, const uint8_t *x, const int8_t *w, int64_t to_next,
                         nns_uvec *sums) {
    (void)vectors;
    (void)to_next;
    int8_weight weights[ROWS_HALVES];
    COMPUTE_FOR(half, ROWS_HALVES) weights[half] = load_half(w + half * NNS_BLOCK * INT8_QUAD / 2);
    COMPUTE_FOR(r, rows) {
        COMPUTE_FOR(p, columns) {
            nns_uvec *sum = sums + (r * columns + p) * ROWS_HALVES;
            COMPUTE_FOR(half, ROWS_HALVES) {
                const nns_uvec input = load_inputs(groups, x + r * row + p * column, lanes, half);
                sum[half] = int8_multiply_add(sum[half], input, weights[half]);
            }
        }
    }
}
#else
/* The inputs of all lanes at the quads of a column at `from`; `groups` is a constant. */
NNS_INLINE nns_uvec load_inputs(const lane_groups groups, const uint8_t *from, nns_uvec lanes) {
    if (groups == MORE_GROUPS) return pick_quads(from, lanes);
    if (groups == ONE_GROUP) return compute_broadcast_bits(int8_load_quad((const int8_t *)from));
    typedef uint64_t pairs __attribute__((vector_size(NNS_BLOCK * INT8_QUAD)));
    uint64_t both;
    memcpy(&both, from, sizeof both);
    return (nns_uvec)((pairs){0} + both);
}

/* Adds the products of a quad, `step` quads behind those of `rows` times `columns` columns, and of its weights, `to_next`
 * bytes apart, to the sums int32[row][column][vector]. Counts, groups and the distance of columns unless it is 0 are
 * constants. */
NNS_INLINE void add_quad(const int rows, const int columns, const int vectors, const lane_groups groups, int64_t column,
                         int64_t row, nns_uvec lanes, const uint8_t *x, const int8_t *w, int64_t to_next,
                         nns_uvec *sums) {
    COMPUTE_FOR(part, INT8_PARTS) {
        int8_weight weights[2];
        COMPUTE_FOR(v, vectors) {
            const nns_uvec quads = compute_load_bits(w + v * to_next);
            weights[v] = int8_part_of_quads(groups == TWO_GROUPS ? (nns_uvec)ROWS_ALTERNATE(quads) : quads, part);
        }
        COMPUTE_FOR(r, rows) {
            COMPUTE_FOR(p, columns) {
                const nns_uvec input = load_inputs(groups, x + r * row + p * column, lanes);
                nns_uvec *sum = sums + (r * columns + p) * vectors;
                COMPUTE_FOR(v, vectors) sum[v] = int8_multiply_add(sum[v], int8_part_of_quads(input, part), weights[v]);
            }
        }
    }
}
#endif

/* What the `count` sums of vector `v` begin with, `step` apart. */
NNS_INLINE void start_sums(const int count, const int step, const lane_groups groups, const output_vector *v,
                           nns_uvec *sums) {
    const nns_uvec bias = compute_load_bits(v->bias);
    const nns_uvec first = INT8_WIDE ? (nns_uvec){0} : groups == TWO_GROUPS ? (nns_uvec)ROWS_ALTERNATE(bias) : bias;
    COMPUTE_FOR(i, count) sums[i * step] = first;
}

/* Puts the lanes of `count` columns and vectors in order, one behind the other. */
NNS_INLINE void finish_sums(const int count, const lane_groups groups, const output_vector *v, nns_uvec *sums) {
    (void)groups;
    (void)v;
    COMPUTE_FOR(i, count) {
#if INT8_WIDE
        const nns_uvec first = sums[i * ROWS_HALVES], second = sums[i * ROWS_HALVES + 1];
        sums[i] = compute_load_bits(v->bias) + ROWS_EVEN(first, second) + ROWS_ODD(first, second);
#else
        if (groups == TWO_GROUPS) sums[i] = (nns_uvec)ROWS_SEPARATE(sums[i]);
#endif
    }
}

/* Computes `columns` columns of `rows` neighbouring output rows from `pixel` of row `oh` on, of `vectors` vectors of equal
 * groups, and stores `valid` of the columns. Counts, groups and `sw`, the stride of columns or 0 for any, are constants. */
NNS_INLINE void compute_strip(const int rows, const int columns, const int vectors, const lane_groups groups,
                              const int sw, const int64_t valid, const kernel_geometry *s, const grouping *g,
                              const output_vector *v, int64_t oh, int64_t pixel) {
    const int64_t step = (sw ? sw : s->sw) * ROWS_COLUMN, row = s->sh * v->row, to_next = v[vectors - 1].w - v->w;
    const int64_t quad_step = g->step * ROWS_QUAD;
    const nns_uvec lanes = v->lanes;
    nns_uvec sums[MOST];
    COMPUTE_FOR(i, vectors) start_sums(rows * columns * ROWS_HALVES, vectors, groups, &v[i], sums + i);
    const int8_t *w = v->w;
    for (int64_t part = 0; part < g->parts; part++) {
        const int64_t quads = quads_of(g, part), unused = (stored_quads(g, part) - quads) * NNS_BLOCK * INT8_QUAD;
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *tap = v->x + part * v->part + (oh * s->sh + i * s->dh) * v->row + pixel * step;
            for (int64_t j = 0; j < s->kw; j++, tap += s->dw * ROWS_COLUMN, w += unused) {
                const uint8_t *x = tap;
                for (int64_t quad = 0; quad < quads; quad++, x += quad_step, w += NNS_BLOCK * INT8_QUAD)
                    add_quad(rows, columns, vectors, groups, step, row, lanes, x, w, to_next, sums);
            }
        }
    }
    finish_sums(rows * columns * vectors, groups, v, sums);
    COMPUTE_FOR(i, vectors) {
        COMPUTE_FOR(r, rows) {
            const int64_t at = ((oh + r) * s->ow + pixel) * NNS_BLOCK;
            int8_store(columns, valid, &v[i].finish, sums + r * columns * vectors + i, vectors,
                       nns_load(v[i].multipliers), v[i].residual ? v[i].residual + at : NULL, v[i].y + at);
        }
    }
}

/* Computes `outputs` output rows of one vector, or of two neighbours of one group, which have no halves. */
typedef void compute_rows(const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t outputs);

/* Narrow rows are computed two or four at a time. */
#define ROWS(name, vectors, groups, sw)                                                                              \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const grouping *g, const output_vector *v, \
                                               int64_t outputs) {                                                   \
        enum { WIDE = MOST / (vectors) / ROWS_HALVES, SOME = WIDE / 2, FEW = (WIDE + 3) / 4, LEAST = WIDE / 4 };     \
        int64_t oh = 0;                                                                                              \
        if ((vectors) == 1 && s->ow <= LEAST)                                                                        \
            for (; oh + 4 <= outputs; oh += 4) compute_strip(4, LEAST, 1, groups, sw, s->ow, s, g, v, oh, 0);        \
        if (s->ow <= SOME)                                                                                           \
            for (; oh + 2 <= outputs; oh += 2) compute_strip(2, SOME, vectors, groups, sw, s->ow, s, g, v, oh, 0);   \
        for (; oh < outputs; oh++) {                                                                                 \
            int64_t pixel = 0, left = s->ow;                                                                         \
            for (; left > SOME; pixel += WIDE, left -= WIDE)                                                         \
                compute_strip(1, WIDE, vectors, groups, sw, nns_min_int(left, WIDE), s, g, v, oh, pixel);            \
            if (left > FEW)                                                                                          \
                compute_strip(1, SOME, vectors, groups, sw, left, s, g, v, oh, pixel);                               \
            else if (left > 0)                                                                                       \
                compute_strip(1, FEW, vectors, groups, sw, left, s, g, v, oh, pixel);                                \
        }                                                                                                            \
    }
#if ROWS_TILES || INT8_EIGHTS || INT8_LONG
/* Other strips compute sets of one group, so that few layers are left: one function for all strides compiles sooner. */
#define ROWS_OF_STRIDES(name, vectors, groups) ROWS(name##_any, vectors, groups, 0)
#define ROWS_FUNCTIONS(name) {name##_any, name##_any, name##_any}
#else
#define ROWS_OF_STRIDES(name, vectors, groups) \
    ROWS(name##_1, vectors, groups, 1)         \
    ROWS(name##_2, vectors, groups, 2)         \
    ROWS(name##_any, vectors, groups, 0)
#define ROWS_FUNCTIONS(name) {name##_any, name##_1, name##_2}
#endif
ROWS_OF_STRIDES(single, 1, ONE_GROUP)
#if INT8_WIDE
#define ROWS_UNLESS_WIDE(name) {NULL, NULL, NULL}
#else
ROWS_OF_STRIDES(pair, 2, ONE_GROUP)
ROWS_OF_STRIDES(alternating, 1, TWO_GROUPS)
#define ROWS_UNLESS_WIDE(name) ROWS_FUNCTIONS(name)
#endif
ROWS(mixed_any, 1, MORE_GROUPS, 0) /* few networks have such groups */

/* The function for `count` vectors, whose lanes are of these groups. */
static compute_rows *rows_of(const kernel_geometry *s, lane_groups groups, int64_t count) {
    static compute_rows *const functions[][3] = {ROWS_UNLESS_WIDE(pair),
                                                 ROWS_FUNCTIONS(single),
                                                 ROWS_UNLESS_WIDE(alternating),
                                                 {mixed_any, mixed_any, mixed_any}};
    return functions[count == 2 ? 0 : 1 + (int)groups][s->sw <= 2 ? s->sw : 0];
}

#include "int8/rows_tiles.h"

#include "int8/rows_sixteens.h"

/* ---- units: (image, set, chunk of rows, share of the set's vectors) ---------------------------------------------- */

static int64_t split_of(const rows_int8_parameters *p) { return nns_max_int(1, p->split); }

/* Points `v` to the inputs of vector `vector` of a set; returns whether its lanes belong to several groups. */
static bool select_inputs(const grouping *g, const window *from, int64_t vector, output_vector *v) {
    for (int lane = 0; lane < NNS_BLOCK; lane++) {
        const int64_t group = nns_min_int(g->groups - 1, (vector * NNS_BLOCK + lane) / g->outputs);
        v->lanes[lane] = (uint32_t)(group * g->of_group);
    }
    const bool mixed = v->lanes[0] != v->lanes[NNS_BLOCK - 1];
    v->x = from->first + (mixed ? 0 : v->lanes[0] * ROWS_QUAD);
    return mixed;
}

/* The image, set, output rows and vectors of a unit. */
typedef struct {
    int64_t image, set, begin, outputs, vector, end;
} rows_unit;

static rows_unit unit_at(const rows_int8_parameters *p, const grouping *g, int64_t unit) {
    const kernel_geometry *s = &p->geometry;
    const int64_t split = split_of(p), chunks = nns_ceil_div(s->oh, p->rows), share = unit % split;
    const int64_t chunk = unit / split % chunks, set = unit / split / chunks % g->sets;
    const int64_t vectors = nns_min_int(g->vectors, blocks_of(s->o) - set * g->vectors), begin = chunk * p->rows;
    return (rows_unit){
        .image = unit / split / chunks / g->sets,
        .set = set,
        .begin = begin,
        .outputs = nns_min_int(s->oh - begin, p->rows),
        .vector = vectors * share / split,
        .end = vectors * (share + 1) / split,
    };
}

/* Points `v` to vector `vector` of a unit; returns the groups of its lanes. */
static lane_groups select_vector(const nns_args *args, const grouping *g, const window *from, const rows_unit *unit,
                                 int64_t vector, output_vector *v) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t blocks = blocks_of(s->o), block = unit->set * g->vectors + vector;
    const int64_t out = ((unit->image * blocks + block) * s->oh + unit->begin) * s->ow * NNS_BLOCK;
    const int8_t *residual = args->in[READ_RESIDUAL];
    *v = (output_vector){
        .row = from->row,
        .part = from->part,
        .w = (const int8_t *)args->in[READ_WEIGHTS] + block * block_bytes(s, g),
        .bias = int8_bias(args->in[READ_BIAS], blocks * NNS_BLOCK) + block * NNS_BLOCK,
        .multipliers = (const float *)args->in[READ_MULTIPLIERS] + block * NNS_BLOCK,
        .residual = residual ? residual + out : NULL,
        .y = (int8_t *)args->out[0] + out,
        .finish = int8_rounding_of(&p->rounding, &p->result, args->out[0]),
    };
    if (!select_inputs(g, from, vector, v)) return ONE_GROUP;
    return g->step == 2 ? TWO_GROUPS : MORE_GROUPS;
}

/* Converts the input rows of a unit. */
static void convert_rows(const nns_args *args, const grouping *g, const window *made, const rows_unit *unit) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t first = unit->set * g->groups, end = nns_min_int(p->groups, first + g->groups);
    const int8_t *x = (const int8_t *)args->in[READ_X] + unit->image * blocks_of(s->c) * s->h * s->w * NNS_BLOCK;
    for (int64_t row = 0; row < rows_for(s, unit->outputs); row++)
        convert_row(s, g, x, unit->begin * s->sh - s->pt + row, first, end, (int8_t)p->zero, made,
                    made->first + row * made->row);
}

/* The geometry of a unit's strips: pixels of pointwise convolutions run on from a row to the next. */
static kernel_geometry strips_of(const kernel_geometry *s, const window *from, rows_unit *unit) {
    kernel_geometry strips = *s;
    if (s->kh == 1 && s->sh == 1 && s->sw == 1 && from->columns == s->ow) {
        strips.ow *= unit->outputs;
        unit->outputs = 1;
    }
    return strips;
}

#include "int8/rows_pairs.h"

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

static const char *rows_check(const nns_args *args, nns_work *work) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c % p->groups || s.o % p->groups) return "groups do not divide the channels";
    const grouping g = grouping_of(p);
    if (g.inputs % INT8_QUAD) return "a group has no whole quads of input channels";
    if (g.groups > ROWS_MOST_GROUPS) return "vectors have lanes of too many groups";
    int64_t scratch = scratch_bytes(&s, &g, p->rows);
    if (scratch < 0) return "rows of the input are too wide";
#if INT8_LONG
    const int64_t packed = g.groups == 1 ? sixteens_bytes(&s, &g) : 0;
    if (packed < 0 || packed > ROWS_BYTES) return "a vector has too many weights";
    scratch += packed;
#endif
#if INT8_EIGHTS
    if (g.groups == 1) scratch = paired_bytes(&s, &g, p->rows);
    if (scratch < 0) return "a vector has too many weights";
#endif
    const int64_t lanes = blocks_of(s.o) * NNS_BLOCK, y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    *work = (nns_work){.units = s.n * g.sets * nns_ceil_div(s.oh, p->rows) * split_of(p), .scratch = scratch};
    return NNS_CHECK_SIZES(rows_int8, args, int8_result_bytes(y, &p->result), NNS_PRODUCT(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w),
                           NNS_PRODUCT(blocks_of(s.o), block_bytes(&s, &g)),
                           NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(lanes), y);
}

static void rows_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const grouping g = grouping_of(p);
#if INT8_EIGHTS
    if (g.groups == 1) {
        run_pairs(args, &g, unit_begin, unit_end, scratch);
        return;
    }
#endif
    const window from = window_of(s, p->rows, scratch);
#if INT8_LONG
    int8_t *packed = (int8_t *)scratch + scratch_bytes(s, &g, p->rows);
#endif
#if ROWS_TILES
    const bool tiled = !g.packed || g.quads % g.per_part == 0;
    if (tiled) shape_tiles(&g);
#endif
    for (int64_t index = unit_begin; index < unit_end; index++) {
        rows_unit unit = unit_at(p, &g, index);
        convert_rows(args, &g, &from, &unit);
        rows_unit flat = unit;
        const kernel_geometry strips = strips_of(s, &from, &flat);
        for (int64_t vector = unit.vector, count; vector < unit.end; vector += count) {
            output_vector v[2];
            const lane_groups groups = select_vector(args, &g, &from, &unit, vector, &v[0]);
            count = 1;
            if (!INT8_WIDE && groups == ONE_GROUP && vector + 1 < unit.end &&
                select_vector(args, &g, &from, &unit, vector + 1, &v[1]) == ONE_GROUP && v[1].x == v[0].x)
                count = 2;
#if INT8_LONG
            if (g.groups == 1 && pack_sixteens(s, &g, v[0].w, packed)) {
                count = 1;
                sixteens_v1(&strips, &g, v, packed, flat.outputs);
                continue;
            }
#endif
#if ROWS_TILES
            if (tiled && groups == ONE_GROUP) {
                compute_tiles(s, &g, v, count, block_bytes(s, &g), unit.outputs, from.columns);
                continue;
            }
#endif
            rows_of(&strips, groups, count)(&strips, &g, v, flat.outputs);
        }
    }
#if ROWS_TILES
    if (tiled) _tile_release();
#endif
}

NNS_DEFINE_KERNEL(rows_int8, rows_check(args, work), rows_run(args, begin, end, scratch))

NNS_DEFINE_FAMILY(rows_int8);
