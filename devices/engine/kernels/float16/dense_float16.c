/* Dense layers on plain tensors by products of float16 (product.h): y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (one float per lane of the output vectors), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       as in the manifest
 *
 * Weights are as in tiles.h, with a step for each part, zero beyond k and m. A unit rounds its rows once, for all of the output
 * vectors that it computes. */
#include "float16/tiles.h"

#if F16_KERNELS

NNS_DEFINE_READS(dense_float16);

static int64_t parts_of(const dense_float16_parameters *p) { return nns_ceil_div(p->k, F16_LANES); }
static int64_t vectors_of(const dense_float16_parameters *p) { return nns_ceil_div(p->m, F16_LANES); }

/* Numbers of a part of the rounded rows of a unit. */
static int64_t part_of(const dense_float16_parameters *p) { return nns_min_int(p->rows, p->n) * F16_LANES; }

static int64_t steps_bytes(const dense_float16_parameters *p) { return parts_of(p) * (int64_t)sizeof(product_step); }

static const char *dense_float16_check(const nns_args *args, nns_work *work) {
    const dense_float16_parameters *p = (const void *)args->p;
    const int64_t vectors = vectors_of(p), y = NNS_FLOAT_BYTES(p->n, p->m);
    const int64_t rounded = NNS_PRODUCT(parts_of(p), part_of(p), (int64_t)sizeof(float16));
    if (rounded < 0 || rounded > F16_BYTES) return "the rows of a unit are too many";
    const int64_t factors = NNS_FLOAT_BYTES(vectors, F16_LANES);
    const int64_t weights = NNS_PRODUCT(vectors, parts_of(p), F16_TAP, (int64_t)sizeof(float16));
    *work = (nns_work){.units = nns_ceil_div(p->n, p->rows) * p->split,
                       .scratch = F16_WIDE_BYTES + steps_bytes(p) + rounded};
    return NNS_CHECK_SIZES(dense_float16, args, y, NNS_FLOAT_BYTES(p->n, p->k), weights < 0 ? -1 : weights + factors, factors,
                           y);
}

/* The block of a row of `k` floats that begins at `channel`, with zeros behind the row. */
NNS_INLINE nns_vec block_at(const float *x, int64_t k, int64_t channel) {
    const int64_t left = k - channel;
    return left >= NNS_BLOCK ? nns_load(x + channel) : left > 0 ? nns_load_some(x + channel, left, 0) : nns_zero();
}

/* Rounds `rows` rows of x times `factor`: part after part. Returns the largest size of them. */
static float round_rows(const dense_float16_parameters *p, const float *x, int64_t rows, float factor, float16 *to) {
    const nns_vec factors = nns_broadcast(factor);
    nns_vec largest = nns_zero();
    for (int64_t row = 0; row < rows; row++, x += p->k, to += F16_LANES) {
        for (int64_t part = 0; part < parts_of(p); part++) {
            const nns_vec low = block_at(x, p->k, part * F16_LANES), high = block_at(x, p->k, part * F16_LANES + NNS_BLOCK);
            largest = nns_max(f16_sizes(high), nns_max(f16_sizes(low), largest));
            f16_store(to + part * part_of(p), low * factors, high * factors);
        }
    }
    return nns_max_lanes(largest);
}

/* `rows` rows of the output vectors from `vector` on, as many as `of` has. */
static void compute_vectors(const output_vectors *of, int64_t vectors, const float16 *rounded, int64_t rows) {
    for (int64_t row = 0; row < rows;) {
        const tile_shape shape = f16_shape_for(vectors, rows - row);
        const int64_t valid = nns_min_int(shape.pixels, rows - row);
        const float16 *each[F16_MOST];
        for (int64_t i = 0; i < shape.pixels; i++) each[i] = rounded + (row + nns_min_int(i, valid - 1)) * F16_LANES;
        shape.compute(valid, of, each, row);
        row += valid;
    }
}

/* Rows [row, row + rows) of the output vectors [begin, end). */
static void compute_share(const nns_args *args, int64_t row, int64_t rows, int64_t begin, int64_t end, void *scratch) {
    const dense_float16_parameters *p = (const void *)args->p;
    const float *bias = args->in[READ_BIAS], *residual = args->in[READ_RESIDUAL], *x = args->in[READ_X];
    product_step *steps = (product_step *)(void *)((char *)scratch + F16_WIDE_BYTES);
    float16 *rounded = (float16 *)(void *)((char *)steps + steps_bytes(p));
    const float factor = f16_factor(round_rows(p, x + row * p->k, rows, 1, rounded));
    if (factor != 1) round_rows(p, x + row * p->k, rows, factor, rounded);
    for (int64_t part = 0; part < parts_of(p); part++)
        steps[part] = (product_step){part * part_of(p) * (int64_t)sizeof(float16), part * F16_TAP};
    output_vectors of = {
        .w_vector = F16_FACTORS + parts_of(p) * F16_TAP,
        .steps = steps,
        .count = parts_of(p),
        .at_once = f16_steps(p->terms),
        .factor = nns_broadcast(1 / factor),
        .y_block = NNS_BLOCK,
        .step = p->m,
        .wide = scratch,
        .finish = epilogue_of(&p->activation),
    };
    for (int64_t vector = begin; vector < end; vector += 2) {
        const int64_t count = nns_min_int(2, end - vector), column = vector * F16_LANES, at = row * p->m + column;
        of.w = (const float16 *)args->in[READ_WEIGHTS] + vector * of.w_vector;
        of.blocks = nns_min_int(2 * count, blocks_of(p->m - column));
        of.lanes = column + of.blocks * NNS_BLOCK > p->m ? p->m % NNS_BLOCK : 0;
        of.bias = bias ? bias + column : NULL;
        of.residual = residual ? residual + at : NULL;
        of.y = (float *)args->out[0] + at;
        compute_vectors(&of, count, rounded, rows);
    }
    if (!of.finish.second_pass) return;
    const int64_t first = begin * F16_LANES, columns = nns_min_int(p->m, end * F16_LANES) - first;
    for (int64_t i = 0; i < rows; i++)
        epilogue_second_pass(&of.finish, (float *)args->out[0] + (row + i) * p->m + first, columns);
}

static void dense_float16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const dense_float16_parameters *p = (const void *)args->p;
    const int64_t vectors = vectors_of(p);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / p->split * p->rows, share = unit % p->split;
        compute_share(args, row, nns_min_int(p->rows, p->n - row), vectors * share / p->split,
                      vectors * (share + 1) / p->split, scratch);
    }
}

NNS_DEFINE_FAMILY(dense_float16);

#endif
