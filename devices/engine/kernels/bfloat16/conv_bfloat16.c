/* Convolutions of float32 tensors by products of bfloat16, whose sums are float32: any kernel, stride, padding, dilation
 * and groups.
 *
 * reads   x (blocked), weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory
 * p       as in the manifest
 *
 * Inputs and weights are rounded to the nearest bfloat16. An instruction multiplies pairs: two neighbouring channels of a
 * pixel with two weights of every lane's output.
 *
 * The input rows that a unit's output rows need are rounded once for a unit, with their padding, and then read by all taps
 * and by the output vectors that the unit computes, two at a time. A column of rounded rows holds BF16_COLUMN channels.
 * Further channels follow in further parts, each of which has all rows and columns.
 *
 * With AMX, tiles of 16 columns compute the vectors.
 *
 * An output vector reads the channels of all groups of its lanes. Weights are bfloat16[output block][part][kh][kw][pair][lane][2]
 * of the parts in which these lie, with zeros for channels of other groups; all blocks have as many parts. */
#include "bfloat16/product.h"

NNS_DEFINE_READS(conv_bfloat16);

/* AMX: a tile is 16 columns of a part, the weights of a part, or the sums of 16 columns. */
#if defined(__AMX_BF16__) && NNS_BLOCK == 16
#define BF16_TILES 1
#else
#define BF16_TILES 0
#endif

enum {
    BF16_COLUMN = 32,                             /* channels of a column of a part: those of a cache line */
    BF16_PAIRS = BF16_COLUMN / 2,                 /* pairs of them */
    BF16_BLOCKS = BF16_COLUMN / NNS_BLOCK,        /* blocks of them */
    BF16_MOST = COMPUTE_MANY_REGISTERS ? 28 : 12, /* maximum sums of a strip: of columns and vectors */
    BF16_BEHIND = 32,                             /* columns behind the last one, times the stride, that strips and tiles may read */
    BF16_TAP = BF16_COLUMN * NNS_BLOCK,           /* weights of a tap of a part */
};
/* Maximum bytes of the rounded rows. */
#define BF16_BYTES (INT64_C(1) << 26)

/* ---- rounded rows ------------------------------------------------------------------------------------------------ */

/* The rows of a unit, in scratch: part after part, row after row. Of a pointwise convolution they have only the pixels that
 * it reads, and it has no strides then. */
typedef struct {
    bfloat16 *first;
    int64_t rows, columns, parts;
    int64_t row, part;    /* numbers from one to the next */
    int64_t down, across; /* pixels of the input from a row to the next, and from a column to the next */
} rounded_rows;

static bool is_pointwise(const kernel_geometry *s) { return s->kh == 1 && s->kw == 1; }

/* The convolution of rounded rows. */
static kernel_geometry of_rounded(const kernel_geometry *s) {
    kernel_geometry of = *s;
    if (is_pointwise(s)) of.sh = of.sw = 1;
    return of;
}

/* Rounded rows that `outputs` output rows read. */
static int64_t rows_for(const kernel_geometry *s, int64_t outputs) {
    return (outputs - 1) * of_rounded(s).sh + (s->kh - 1) * s->dh + 1;
}

static rounded_rows rows_of(const conv_bfloat16_parameters *p, void *scratch) {
    const kernel_geometry *s = &p->geometry, of = of_rounded(s);
    rounded_rows made = {
        .first = scratch,
        .rows = rows_for(s, nns_min_int(p->rows, s->oh)),
        .columns = (s->ow - 1) * of.sw + (s->kw - 1) * s->dw + 1,
        .parts = nns_ceil_div(s->c, BF16_COLUMN),
        .down = s->sh / of.sh,
        .across = s->sw / of.sw,
    };
    made.row = made.columns * BF16_COLUMN;
    made.part = made.rows * made.row;
    return made;
}

/* Rounds `count` columns, every `across`th of the input, of `blocks` neighbouring blocks, which lie `plane` floats apart;
 * `blocks` is a constant. */
NNS_INLINE void round_columns(const int blocks, const float *from, int64_t plane, int64_t across, int64_t count,
                              bfloat16 *to) {
    for (int64_t column = 0; column < count; column++, from += across * NNS_BLOCK, to += BF16_COLUMN) {
#if BF16_BLOCKS_AT_ONCE == 2
        if (blocks == 2) {
            bf16_store_two(to, nns_load(from), nns_load(from + plane));
            continue;
        }
#endif
        COMPUTE_FOR(block, blocks) bf16_store(to + block * NNS_BLOCK, nns_load(from + block * plane));
    }
}

/* Rounds the columns of a part of input row `h`, which may be outside the input, of the image at `x`. */
static void round_row(const kernel_geometry *s, const rounded_rows *made, const float *x, int64_t h, int64_t part,
                      bfloat16 *to) {
    const bool inside = h >= 0 && h < s->h;
    const int64_t columns = made->columns, across = made->across;
    const int64_t begin = inside ? nns_min_int(nns_ceil_div(s->pl, across), columns) : columns;
    const int64_t end = inside ? nns_min_int(nns_ceil_div(s->pl + s->w, across), columns) : columns;
    memset(to, 0, (size_t)(begin * BF16_COLUMN) * sizeof *to);
    memset(to + end * BF16_COLUMN, 0, (size_t)((columns - end) * BF16_COLUMN) * sizeof *to);
    const int64_t plane = s->h * s->w * NNS_BLOCK, first = part * BF16_BLOCKS;
    const int64_t blocks = nns_min_int(BF16_BLOCKS, blocks_of(s->c) - first);
    const float *from = x + first * plane + (h * s->w + begin * across - s->pl) * NNS_BLOCK;
    bfloat16 *place = to + begin * BF16_COLUMN;
    if (blocks == BF16_BLOCKS) {
        round_columns(BF16_BLOCKS, from, plane, across, end - begin, place);
        return;
    }
    memset(place, 0, (size_t)((end - begin) * BF16_COLUMN) * sizeof *to);
    for (int64_t block = 0; block < blocks; block++)
        round_columns(1, from + block * plane, plane, across, end - begin, place + block * NNS_BLOCK);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* The pairs of channels [begin, end) that an output vector reads: those of the groups of its lanes. */
typedef struct {
    int64_t begin, end;
} pair_range;

static pair_range pairs_of(const conv_bfloat16_parameters *p, int64_t vector) {
    const int64_t inputs = p->geometry.c / p->groups, outputs = p->geometry.o / p->groups;
    const int64_t first = vector * NNS_BLOCK, last = nns_min_int(first + NNS_BLOCK, p->geometry.o) - 1;
    return (pair_range){first / outputs * inputs / 2, nns_ceil_div((last / outputs + 1) * inputs, 2)};
}

/* The most parts of the rounded rows that an output vector touches. */
static int64_t most_parts(const conv_bfloat16_parameters *p) {
    int64_t most = 0;
    for (int64_t vector = 0; vector < blocks_of(p->geometry.o); vector++) {
        const pair_range pairs = pairs_of(p, vector);
        most = nns_max_int(most, nns_ceil_div(pairs.end, BF16_PAIRS) - pairs.begin / BF16_PAIRS);
    }
    return most;
}

/* ---- strips ------------------------------------------------------------------------------------------------------ */

/* One output vector of a unit. */
typedef struct {
    const bfloat16 *x; /* the first rounded row, of the first part that it reads */
    const bfloat16 *w;
    int64_t begin, end;           /* the pairs that it reads, counted from that part on */
    const float *bias, *residual; /* or NULL; the residual from the unit's first row on, as y */
    float *y;
} output_vector;

/* What all strips of a unit share. */
typedef struct {
    kernel_geometry geometry;
    rounded_rows rows;
    int64_t w_block; /* weights of an output block */
    epilogue finish;
} strips;

/* Adds the bias, the residual and the activation but its second pass, and stores `valid` of `columns` columns. */
NNS_INLINE void store_strip(const int columns, const int vectors, int64_t valid, const epilogue *finish,
                            const output_vector *v, int64_t at, const nns_vec *sums) {
    COMPUTE_FOR(p, columns) {
        if (p < valid) {
            nns_vec value = sums[p * vectors];
            if (v->residual) value += nns_load(v->residual + at + p * NNS_BLOCK);
            nns_store(v->y + at + p * NNS_BLOCK, epilogue_clamp(finish, value));
        }
    }
}

#if !BF16_TILES
/* Computes `columns` columns of `rows` neighbouring output rows from `pixel` of row `oh` on, of `vectors` vectors that
 * read the same pairs, and stores `valid` of the columns. Counts and `sw`, the stride of columns or 0 for any, are constants. */
NNS_INLINE void compute_strip(const int rows, const int columns, const int vectors, const int sw, int64_t valid,
                              const strips *of, const output_vector *v, int64_t oh, int64_t pixel) {
    const kernel_geometry *s = &of->geometry;
    const int64_t step = (sw ? sw : s->sw) * BF16_COLUMN, row = s->sh * of->rows.row, to_next = v[vectors - 1].w - v->w;
    nns_vec sums[BF16_MOST];
    COMPUTE_FOR(i, vectors) {
        const nns_vec bias = v[i].bias ? nns_load(v[i].bias) : nns_zero();
        COMPUTE_FOR(p, rows * columns) sums[p * vectors + i] = bias;
    }
    const bfloat16 *w = v->w, *part = v->x + oh * row + pixel * step;
    for (int64_t begin = v->begin, left = v->end; begin < left; begin = 0, left -= BF16_PAIRS, part += of->rows.part) {
        const int64_t end = nns_min_int(left, BF16_PAIRS);
        for (int64_t i = 0; i < s->kh; i++) {
            const bfloat16 *tap = part + i * s->dh * of->rows.row;
            for (int64_t j = 0; j < s->kw; j++, tap += s->dw * BF16_COLUMN, w += BF16_TAP) {
                const bfloat16 *x = tap + begin * 2, *pairs = w + begin * 2 * NNS_BLOCK;
                for (int64_t pair = begin; pair < end; pair++, x += 2, pairs += 2 * NNS_BLOCK) {
                    bf16_pairs weights[2];
                    COMPUTE_FOR(k, vectors) weights[k] = bf16_load(pairs + k * to_next);
                    COMPUTE_FOR(r, rows) {
                        COMPUTE_FOR(p, columns) {
                            const bf16_pairs input = bf16_broadcast(x + r * row + p * step);
                            nns_vec *sum = sums + (r * columns + p) * vectors;
                            COMPUTE_FOR(k, vectors) sum[k] = bf16_multiply_add(sum[k], input, weights[k]);
                        }
                    }
                }
            }
        }
    }
    COMPUTE_FOR(i, vectors) {
        COMPUTE_FOR(r, rows) {
            const int64_t at = ((oh + r) * s->ow + pixel) * NNS_BLOCK;
            store_strip(columns, vectors, valid, &of->finish, v + i, at, sums + r * columns * vectors + i);
        }
    }
}

/* Computes `outputs` output rows of one vector, or of two neighbours that read the same pairs. */
typedef void compute_rows(const strips *of, const output_vector *v, int64_t outputs);

/* Narrow rows are computed two or four at a time. */
#define ROWS(name, vectors, sw)                                                                                        \
    static __attribute__((noinline)) void name(const strips *of, const output_vector *v, int64_t outputs) {            \
        enum { WIDE = BF16_MOST / (vectors), SOME = WIDE / 2, FEW = (WIDE + 3) / 4 };                                   \
        const int64_t ow = of->geometry.ow;                                                                            \
        int64_t oh = 0;                                                                                                \
        if ((vectors) == 1 && ow <= FEW)                                                                               \
            for (; oh + 4 <= outputs; oh += 4) compute_strip(4, FEW, 1, sw, ow, of, v, oh, 0);                         \
        if (ow <= SOME)                                                                                                \
            for (; oh + 2 <= outputs; oh += 2) compute_strip(2, SOME, vectors, sw, ow, of, v, oh, 0);                  \
        for (; oh < outputs; oh++) {                                                                                   \
            int64_t pixel = 0, left = ow;                                                                              \
            for (; left > SOME; pixel += WIDE, left -= WIDE)                                                           \
                compute_strip(1, WIDE, vectors, sw, nns_min_int(left, WIDE), of, v, oh, pixel);                        \
            if (left > FEW)                                                                                            \
                compute_strip(1, SOME, vectors, sw, left, of, v, oh, pixel);                                           \
            else if (left > 0)                                                                                         \
                compute_strip(1, FEW, vectors, sw, left, of, v, oh, pixel);                                            \
        }                                                                                                              \
    }
#define ROWS_OF_STRIDES(name, vectors) ROWS(name##_1, vectors, 1) ROWS(name##_2, vectors, 2) ROWS(name##_any, vectors, 0)
ROWS_OF_STRIDES(pair, 2)
ROWS_OF_STRIDES(single, 1)

static compute_rows *rows_function(int64_t sw, int64_t vectors) {
    static compute_rows *const functions[][3] = {{single_any, single_1, single_2}, {pair_any, pair_1, pair_2}};
    return functions[vectors - 1][sw <= 2 ? sw : 0];
}

#else
#include "bfloat16/tiles.h"
#endif

/* ---- units: (image, chunk of rows, share of the output vectors) -------------------------------------------------- */

/* The image, output rows and output vectors of a unit. */
typedef struct {
    int64_t image, begin, outputs, vector, end;
} unit_of_work;

static unit_of_work unit_at(const conv_bfloat16_parameters *p, int64_t unit) {
    const kernel_geometry *s = &p->geometry;
    const int64_t chunks = nns_ceil_div(s->oh, p->rows), vectors = blocks_of(s->o), share = unit % p->split;
    const int64_t begin = unit / p->split % chunks * p->rows;
    return (unit_of_work){
        .image = unit / p->split / chunks,
        .begin = begin,
        .outputs = nns_min_int(s->oh - begin, p->rows),
        .vector = vectors * share / p->split,
        .end = vectors * (share + 1) / p->split,
    };
}

/* Rounds the input rows of a unit. */
static void round_unit(const nns_args *args, const rounded_rows *made, const unit_of_work *unit) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const float *x = (const float *)args->in[READ_X] + unit->image * blocks_of(s->c) * s->h * s->w * NNS_BLOCK;
    const int64_t rows = rows_for(s, unit->outputs), first = unit->begin * s->sh - s->pt;
    for (int64_t part = 0; part < made->parts; part++)
        for (int64_t row = 0; row < rows; row++)
            round_row(s, made, x, first + row * made->down, part, made->first + part * made->part + row * made->row);
}

static output_vector vector_of(const nns_args *args, const strips *of, const unit_of_work *unit, int64_t vector) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const pair_range pairs = pairs_of(p, vector);
    const int64_t part = pairs.begin / BF16_PAIRS;
    const int64_t out = ((unit->image * blocks_of(s->o) + vector) * s->oh + unit->begin) * s->ow * NNS_BLOCK;
    const float *bias = args->in[READ_BIAS], *residual = args->in[READ_RESIDUAL];
    return (output_vector){
        .x = of->rows.first + part * of->rows.part,
        .w = (const bfloat16 *)args->in[READ_WEIGHTS] + vector * of->w_block,
        .begin = pairs.begin - part * BF16_PAIRS,
        .end = pairs.end - part * BF16_PAIRS,
        .bias = bias ? bias + vector * NNS_BLOCK : NULL,
        .residual = residual ? residual + out : NULL,
        .y = (float *)args->out[0] + out,
    };
}

static void run_unit(const nns_args *args, strips *of, const unit_of_work *unit) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    round_unit(args, &of->rows, unit);
#if !BF16_TILES
    /* Pixels of pointwise convolutions run on from a row to the next. */
    const bool flat = is_pointwise(s);
    of->geometry.ow = flat ? s->ow * unit->outputs : s->ow;
#endif
    for (int64_t vector = unit->vector, count; vector < unit->end; vector += count) {
        output_vector v[2] = {vector_of(args, of, unit, vector)};
        count = 1;
        if (vector + 1 < unit->end) {
            v[1] = vector_of(args, of, unit, vector + 1);
            if (v[1].x == v[0].x && v[1].begin == v[0].begin && v[1].end == v[0].end) count = 2;
        }
#if BF16_TILES
        compute_tiles(of, v, count, unit->outputs);
#else
        rows_function(of->geometry.sw, count)(of, v, flat ? 1 : unit->outputs);
#endif
        if (of->finish.second_pass)
            for (int64_t k = 0; k < count; k++)
                epilogue_second_pass(&of->finish, v[k].y, unit->outputs * s->ow * NNS_BLOCK);
    }
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

static const char *conv_bfloat16_check(const nns_args *args, nns_work *work) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    if (s->c % p->groups || s->o % p->groups) return "groups do not divide the channels";
    const rounded_rows rows = rows_of(p, NULL);
    const int64_t rounded = NNS_PRODUCT(rows.parts, rows.rows, rows.columns, BF16_COLUMN, (int64_t)sizeof(bfloat16));
    if (rounded < 0 || rounded > BF16_BYTES) return "rows of the input are too wide";
    const int64_t blocks = blocks_of(s->o), y = NNS_FLOAT_BYTES(s->n, blocks, NNS_BLOCK, s->oh, s->ow);
    *work = (nns_work){.units = s->n * nns_ceil_div(s->oh, p->rows) * p->split,
                       .scratch = rounded + BF16_BEHIND * s->sw * BF16_COLUMN * (int64_t)sizeof(bfloat16)};
    return NNS_CHECK_SIZES(
        conv_bfloat16, args, y, NNS_FLOAT_BYTES(s->n, blocks_of(s->c), NNS_BLOCK, s->h, s->w),
        NNS_PRODUCT(blocks, most_parts(p), s->kh, s->kw, BF16_TAP, (int64_t)sizeof(bfloat16)),
        NNS_FLOAT_BYTES(blocks, NNS_BLOCK), y);
}

static void conv_bfloat16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    strips of = {of_rounded(s), rows_of(p, scratch), most_parts(p) * s->kh * s->kw * BF16_TAP, epilogue_of(&p->activation)};
#if BF16_TILES
    shape_tiles();
#endif
    for (int64_t index = begin; index < end; index++) {
        const unit_of_work unit = unit_at(p, index);
        run_unit(args, &of, &unit);
    }
#if BF16_TILES
    _tile_release();
#endif
}

NNS_DEFINE_FAMILY(conv_bfloat16);
