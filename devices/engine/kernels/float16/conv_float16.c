/* Convolutions of float32 tensors by products of float16 (product.h): any kernel, stride, padding, dilation and groups.
 *
 * reads   x (blocked), weights, bias or NULL (one float per lane of the output vectors), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory
 * p       as in the manifest
 *
 * An output vector is two blocks of output channels; a part is two blocks of input channels. A column of the rounded rows
 * holds one pixel of a part. The input rows that a unit's output rows need are rounded once for a unit, with their padding. A tile
 * computes some pixels, which need not be in one row, of one vector, or of two that read the same parts.
 *
 * An output vector reads the channels of all groups of its lanes. Its weights are float[lane], the factors by which its sums are
 * multiplied, then float16[part][kh][kw][input channel][lane] of the parts in which these channels lie, with zeros for channels
 * of other groups. All output vectors have as many parts. */
#include "float16/tiles.h"
#include "rounded_rows.h"

#if F16_KERNELS

#include "float16/tiles.inc"

NNS_DEFINE_READS(conv_float16);

/* ---- rounded rows ------------------------------------------------------------------------------------------------ */

/* The bits of those lanes of a block that are channels of the input: others may have any value that is finite. */
static nns_uvec channels_of(const kernel_geometry *s, int64_t block) {
    uint32_t lanes[NNS_BLOCK];
    for (int64_t i = 0; i < NNS_BLOCK; i++) lanes[i] = block * NNS_BLOCK + i < s->c ? UINT32_MAX : 0;
    return compute_load_bits(lanes);
}

/* Rounds the columns of a part of input row `h`, which may be outside the input, of the image at `x`, times `factor`. Returns
 * the largest sizes of its inputs, each lane those of two channels. */
static nns_vec round_row(const kernel_geometry *s, const rounded_rows *made, const float *x, int64_t h, int64_t part,
                         nns_vec factor, float16 *to) {
    const column_range inside = columns_inside(s, made, h);
    const int64_t across = made->across, plane = s->h * s->w * NNS_BLOCK;
    memset(to, 0, (size_t)(inside.begin * F16_LANES) * sizeof *to);
    memset(to + inside.end * F16_LANES, 0, (size_t)((made->columns - inside.end) * F16_LANES) * sizeof *to);
    const float *low = x + 2 * part * plane + (h * s->w + inside.begin * across - s->pl) * NNS_BLOCK;
    const float *high = 2 * part + 1 < blocks_of(s->c) ? low + plane : low;
    const nns_uvec of_low = channels_of(s, 2 * part), of_high = channels_of(s, 2 * part + 1);
    nns_vec largest = nns_zero();
    for (int64_t i = inside.begin; i < inside.end; i++) {
        const nns_vec first = (nns_vec)((nns_uvec)nns_load(low) & of_low);
        const nns_vec second = (nns_vec)((nns_uvec)nns_load(high) & of_high);
        largest = nns_max(f16_sizes(second), nns_max(f16_sizes(first), largest));
        f16_store(to + i * F16_LANES, first * factor, second * factor);
        low += across * NNS_BLOCK;
        high += across * NNS_BLOCK;
    }
    return largest;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static int64_t vectors_of(const kernel_geometry *s) { return nns_ceil_div(s->o, F16_LANES); }

/* The parts that an output vector reads. */
static channel_range parts_of(const conv_float16_parameters *p, int64_t vector) {
    return channels_read(&p->geometry, p->groups, F16_LANES, vector, F16_LANES);
}

static int64_t most_parts(const conv_float16_parameters *p) {
    int64_t most = 0;
    for (int64_t vector = 0; vector < vectors_of(&p->geometry); vector++) {
        const channel_range parts = parts_of(p, vector);
        most = nns_max_int(most, parts.end - parts.begin);
    }
    return most;
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* What the tiles of a unit share. */
typedef struct {
    const nns_args *args;
    kernel_geometry rounded; /* the convolution of the rounded rows */
    rounded_rows rows;
    unit_of_work unit;
    product_step *steps;
    int64_t w_vector; /* this and the next as in output_vectors */
    float *wide;
    int64_t taps_begin, taps_end, parts; /* of the steps: rows of taps, and parts; 0 parts: none are made */
    float factor;
} unit_job;

static float round_unit(const unit_job *job, float factor) {
    const conv_float16_parameters *p = (const void *)job->args->p;
    const kernel_geometry *s = &p->geometry;
    const rounded_rows *made = &job->rows;
    const float *x = (const float *)job->args->in[READ_X] + job->unit.image * blocks_of(s->c) * s->h * s->w * NNS_BLOCK;
    const int64_t rows = rows_for(s, job->unit.outputs), first = job->unit.begin * s->sh - s->pt;
    nns_vec largest = nns_zero();
    for (int64_t part = 0; part < made->parts; part++)
        for (int64_t row = 0; row < rows; row++) {
            float16 *to = made->first + part * made->part + row * made->row;
            largest = nns_max(round_row(s, made, x, first + row * made->down, part, nns_broadcast(factor), to), largest);
        }
    return nns_max_lanes(largest);
}

/* Lists the steps of the rows of taps that are inside the image for some output row from `first` to `last` of the unit; of
 * kernels of one row always all. */
static void list_steps(unit_job *job, int64_t first, int64_t last, int64_t parts) {
    const kernel_geometry *s = &job->rounded;
    const int64_t inside = s->pt - job->unit.begin * s->sh, outside = inside + s->h;
    const int64_t above = inside - last * s->sh, left = outside - first * s->sh;
    const bool all = s->kh == 1;
    const int64_t begin = all || above <= 0 ? 0 : nns_ceil_div(above, s->dh);
    const int64_t end = all ? 1 : left > 0 ? nns_min_int(s->kh, nns_ceil_div(left, s->dh)) : 0;
    if (begin == job->taps_begin && end == job->taps_end && parts == job->parts) return;
    job->taps_begin = begin;
    job->taps_end = end;
    job->parts = parts;
    product_step *step = job->steps;
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = begin; i < end; i++)
            for (int64_t j = 0; j < s->kw; j++)
                *step++ = (product_step){
                    .x = (part * job->rows.part + i * s->dh * job->rows.row + j * s->dw * F16_LANES) *
                         (int64_t)sizeof(float16),
                    .w = ((part * s->kh + i) * s->kw + j) * F16_TAP,
                };
}

/* Computes `vectors` output vectors that read `parts` parts from `x`, the first rounded row, on. */
static void run_vectors(unit_job *job, output_vectors *of, int64_t vectors, const float16 *x, int64_t parts) {
    const kernel_geometry *s = &job->rounded;
    const int64_t pixels = job->unit.outputs * s->ow;
    for (int64_t pixel = 0, oh = 0, ow = 0; pixel < pixels;) {
        const tile_shape shape = f16_shape_for(vectors, pixels - pixel);
        const int64_t valid = nns_min_int(shape.pixels, pixels - pixel), first = oh;
        const float16 *each[F16_MOST];
        for (int64_t p = 0; p < shape.pixels; p++) {
            each[p] = p < valid ? x + oh * s->sh * job->rows.row + ow * s->sw * F16_LANES : each[p - 1];
            if (p < valid && ++ow == s->ow) ow = 0, oh++;
        }
        list_steps(job, first, ow ? oh : oh - 1, parts);
        of->steps = job->steps;
        of->count = nns_max_int(0, job->taps_end - job->taps_begin) * parts * s->kw;
        shape.compute(valid, of, each, pixel);
        pixel += valid;
    }
}

/* The output vectors from `vector` on. */
static output_vectors vectors_at(const unit_job *job, int64_t vector, int64_t count) {
    const conv_float16_parameters *p = (const void *)job->args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t block = 2 * vector, blocks = blocks_of(s->o), y_block = s->oh * s->ow * NNS_BLOCK;
    const int64_t out = (job->unit.image * blocks + block) * y_block + job->unit.begin * s->ow * NNS_BLOCK;
    const float *bias = job->args->in[READ_BIAS], *residual = job->args->in[READ_RESIDUAL];
    return (output_vectors){
        .w = (const float16 *)job->args->in[READ_WEIGHTS] + vector * job->w_vector,
        .w_vector = job->w_vector,
        .at_once = f16_steps(p->terms),
        .factor = nns_broadcast(1 / job->factor),
        .blocks = nns_min_int(blocks - block, 2 * count),
        .y_block = y_block,
        .step = NNS_BLOCK,
        .bias = bias ? bias + block * NNS_BLOCK : NULL,
        .residual = residual ? residual + out : NULL,
        .y = (float *)job->args->out[0] + out,
        .wide = job->wide,
        .finish = epilogue_of(&p->activation),
    };
}

static void run_unit(unit_job *job) {
    const conv_float16_parameters *p = (const void *)job->args->p;
    const kernel_geometry *s = &p->geometry;
    job->factor = f16_factor(round_unit(job, 1));
    if (job->factor != 1) round_unit(job, job->factor);
    job->parts = 0;
    for (int64_t vector = job->unit.vector, count; vector < job->unit.end; vector += count) {
        const channel_range parts = parts_of(p, vector);
        count = 1;
        if (vector + 1 < job->unit.end) {
            const channel_range next = parts_of(p, vector + 1);
            if (next.begin == parts.begin && next.end == parts.end) count = 2;
        }
        output_vectors of = vectors_at(job, vector, count);
        run_vectors(job, &of, count, job->rows.first + parts.begin * job->rows.part, parts.end - parts.begin);
        if (of.finish.second_pass)
            for (int64_t block = 0; block < of.blocks; block++)
                epilogue_second_pass(&of.finish, of.y + block * of.y_block, job->unit.outputs * s->ow * NNS_BLOCK);
    }
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* Bytes of the list of steps; negative if these are too many for an int64. */
static int64_t steps_bytes(const conv_float16_parameters *p) {
    return NNS_PRODUCT(most_parts(p), p->geometry.kh, p->geometry.kw, (int64_t)sizeof(product_step));
}

static const char *conv_float16_check(const nns_args *args, nns_work *work) {
    const conv_float16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    if (s->c % p->groups || s->o % p->groups) return "groups do not divide the channels";
    const rounded_rows rows = rounded_rows_of(s, p->rows, F16_LANES, NULL);
    const int64_t rounded = rounded_rows_bytes(&rows), steps = steps_bytes(p);
    if (rounded < 0 || rounded > F16_BYTES || steps < 0 || steps > F16_BYTES) return "rows of the input are too wide";
    const int64_t vectors = vectors_of(s), y = NNS_FLOAT_BYTES(s->n, blocks_of(s->o), NNS_BLOCK, s->oh, s->ow);
    const int64_t factors = NNS_FLOAT_BYTES(vectors, F16_LANES);
    const int64_t weights = NNS_PRODUCT(vectors, most_parts(p), s->kh, s->kw, F16_TAP, (int64_t)sizeof(float16));
    *work = (nns_work){.units = units_of(s, p->rows, p->split), .scratch = F16_WIDE_BYTES + steps + rounded};
    return NNS_CHECK_SIZES(conv_float16, args, y, NNS_FLOAT_BYTES(s->n, blocks_of(s->c), NNS_BLOCK, s->h, s->w),
                           weights < 0 || factors < 0 ? -1 : weights + factors, factors, y);
}

static void conv_float16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const conv_float16_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    unit_job job = {
        .args = args,
        .rounded = of_rounded(s),
        .rows = rounded_rows_of(s, p->rows, F16_LANES, (char *)scratch + F16_WIDE_BYTES + steps_bytes(p)),
        .steps = (product_step *)(void *)((char *)scratch + F16_WIDE_BYTES),
        .w_vector = F16_FACTORS + most_parts(p) * s->kh * s->kw * F16_TAP,
        .wide = scratch,
    };
    for (int64_t index = begin; index < end; index++) {
        job.unit = unit_at(s, p->rows, p->split, vectors_of(s), index);
        run_unit(&job);
    }
}

NNS_DEFINE_FAMILY(conv_float16);

#endif
