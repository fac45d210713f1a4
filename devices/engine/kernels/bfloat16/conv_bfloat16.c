/* Convolutions of float32 tensors by products of bfloat16, whose sums are float32: any kernel, stride, padding, dilation
 * and groups.
 *
 * reads   x (blocked), weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory
 * p       as in the manifest
 *
 * Inputs and weights are rounded to the nearest bfloat16. The input rows that a unit's output rows need are rounded once for a
 * unit, with their padding, and then read by all taps and by the output vectors that the unit computes (strips.h).
 *
 * An output vector reads the channels of all groups of its lanes. Its weights are zeros for channels of other groups; all output
 * vectors have as many parts of weights. */
#include "bfloat16/strips.h"
#include "rounded_rows.h"

#include "bfloat16/compute.inc"

NNS_DEFINE_READS(conv_bfloat16);

/* ---- rounded rows ------------------------------------------------------------------------------------------------ */

/* Rounds the columns of a part of input row `h`, which may be outside the input, of the image at `x`. */
static void round_row(const kernel_geometry *s, const rounded_rows *made, const float *x, int64_t h, int64_t part,
                      bfloat16 *to) {
    const column_range inside = columns_inside(s, made, h);
    const int64_t begin = inside.begin, end = inside.end, columns = made->columns, across = made->across;
    memset(to, 0, (size_t)(begin * BF16_COLUMN) * sizeof *to);
    memset(to + end * BF16_COLUMN, 0, (size_t)((columns - end) * BF16_COLUMN) * sizeof *to);
    const int64_t plane = s->h * s->w * NNS_BLOCK, first = part * BF16_BLOCKS;
    const float *from = x + first * plane + (h * s->w + begin * across - s->pl) * NNS_BLOCK;
    bf16_round(nns_min_int(BF16_BLOCKS, blocks_of(s->c) - first), from, plane, across, end - begin, to + begin * BF16_COLUMN);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* The pairs of channels that an output vector reads. */
static channel_range pairs_of(const conv_bfloat16_parameters *p, int64_t vector) {
    return channels_read(&p->geometry, p->groups, NNS_BLOCK, vector, 2);
}

/* The most parts of the rounded rows that an output vector touches. */
static int64_t most_parts(const conv_bfloat16_parameters *p) {
    int64_t most = 0;
    for (int64_t vector = 0; vector < blocks_of(p->geometry.o); vector++) {
        const channel_range pairs = pairs_of(p, vector);
        most = nns_max_int(most, nns_ceil_div(pairs.end, BF16_PAIRS) - pairs.begin / BF16_PAIRS);
    }
    return most;
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

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

static output_vector vector_of(const nns_args *args, const rounded_rows *rows, const strips *of,
                               const unit_of_work *unit, int64_t vector) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const channel_range pairs = pairs_of(p, vector);
    const int64_t part = pairs.begin / BF16_PAIRS;
    const int64_t out = ((unit->image * blocks_of(s->o) + vector) * s->oh + unit->begin) * s->ow * NNS_BLOCK;
    const float *bias = args->in[READ_BIAS], *residual = args->in[READ_RESIDUAL];
    return (output_vector){
        .x = rows->first + part * rows->part,
        .w = (const bfloat16 *)args->in[READ_WEIGHTS] + vector * of->w_block,
        .begin = pairs.begin - part * BF16_PAIRS,
        .end = pairs.end - part * BF16_PAIRS,
        .bias = bias ? bias + vector * NNS_BLOCK : NULL,
        .residual = residual ? residual + out : NULL,
        .y = (float *)args->out[0] + out,
    };
}

static void run_unit(const nns_args *args, const rounded_rows *rows, strips *of, const unit_of_work *unit) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    round_unit(args, rows, unit);
    /* Pixels of pointwise convolutions run on from a row to the next. */
    const bool flat = is_pointwise(s);
    if (flat) of->geometry.ow = of->columns = s->ow * unit->outputs;
    of->inside = s->pt - unit->begin * s->sh;
    of->outside = of->inside + s->h;
    for (int64_t vector = unit->vector, count; vector < unit->end; vector += count) {
        output_vector v[2] = {vector_of(args, rows, of, unit, vector)};
        count = 1;
        if (vector + 1 < unit->end) {
            v[1] = vector_of(args, rows, of, unit, vector + 1);
            if (v[1].x == v[0].x && v[1].begin == v[0].begin && v[1].end == v[0].end) count = 2;
        }
        bf16_compute(of, v, count, flat ? 1 : unit->outputs);
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
    const rounded_rows rows = rounded_rows_of(s, p->rows, BF16_COLUMN, NULL);
    const int64_t rounded = rounded_rows_bytes(&rows);
    if (rounded < 0 || rounded > BF16_BYTES) return "rows of the input are too wide";
    const int64_t blocks = blocks_of(s->o), y = NNS_FLOAT_BYTES(s->n, blocks, NNS_BLOCK, s->oh, s->ow);
    *work = (nns_work){.units = units_of(s, p->rows, p->split),
                       .scratch = rounded + BF16_BEHIND * s->sw * BF16_COLUMN * (int64_t)sizeof(bfloat16)};
    return NNS_CHECK_SIZES(
        conv_bfloat16, args, y, NNS_FLOAT_BYTES(s->n, blocks_of(s->c), NNS_BLOCK, s->h, s->w),
        NNS_PRODUCT(blocks, most_parts(p), s->kh, s->kw, BF16_TAP, (int64_t)sizeof(bfloat16)),
        NNS_FLOAT_BYTES(blocks, NNS_BLOCK), y);
}

static void conv_bfloat16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const conv_bfloat16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const rounded_rows rows = rounded_rows_of(s, p->rows, BF16_COLUMN, scratch);
    strips of = {
        .geometry = of_rounded(s),
        .columns = rows.columns,
        .row = rows.row,
        .part = rows.part,
        .w_block = most_parts(p) * s->kh * s->kw * BF16_TAP,
        .step = NNS_BLOCK,
        .finish = epilogue_of(&p->activation),
    };
    bf16_begin();
    for (int64_t index = begin; index < end; index++) {
        const unit_of_work unit = unit_at(s, p->rows, p->split, blocks_of(s->o), index);
        run_unit(args, &rows, &of, &unit);
    }
    bf16_end();
}

NNS_DEFINE_FAMILY(conv_bfloat16);
