/* Dense layers on plain tensors by products of bfloat16: y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (one float per lane), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       as in the manifest
 *
 * Weights are bfloat16[output vector][part][pair][lane][2], zero beyond k and m (strips.h). A unit rounds its rows once, for all
 * of the output vectors that it computes. */
#include "bfloat16/strips.h"

NNS_DEFINE_READS(dense_bfloat16);

static const char *dense_bfloat16_check(const nns_args *args, nns_work *work) {
    const dense_bfloat16_parameters *p = (const void *)args->p;
    const int64_t rows = nns_min_int(p->rows, p->n), vectors = blocks_of(p->m), parts = bf16_parts(p->k);
    const int64_t rounded = NNS_PRODUCT(parts, rows + BF16_BEHIND, BF16_COLUMN, (int64_t)sizeof(bfloat16));
    if (rounded < 0 || rounded > BF16_BYTES) return "the rows of a unit are too many";
    *work = (nns_work){.units = nns_ceil_div(p->n, p->rows) * p->split, .scratch = rounded};
    const int64_t y = NNS_FLOAT_BYTES(p->n, p->m);
    return NNS_CHECK_SIZES(dense_bfloat16, args, y, NNS_FLOAT_BYTES(p->n, p->k),
                           NNS_PRODUCT(vectors, parts, BF16_TAP, (int64_t)sizeof(bfloat16)),
                           NNS_FLOAT_BYTES(vectors, NNS_BLOCK), y);
}

/* Rounds `rows` rows of x of `k` floats: part after part. */
static void round_rows(const float *x, int64_t k, int64_t rows, int64_t part, bfloat16 *to) {
    for (int64_t row = 0; row < rows; row++, x += k, to += BF16_COLUMN) {
        for (int64_t channel = 0; channel < bf16_parts(k) * BF16_COLUMN; channel += NNS_BLOCK) {
            const int64_t left = k - channel;
            const nns_vec some = left >= NNS_BLOCK ? nns_load(x + channel)
                                 : left > 0        ? nns_load_some(x + channel, left, 0)
                                                   : nns_zero();
            bf16_store(to + channel / BF16_COLUMN * part + channel % BF16_COLUMN, some);
        }
    }
}

/* Rows [row, row + rows) of the output vectors [begin, end). */
static void compute_share(const nns_args *args, int64_t row, int64_t rows, int64_t begin, int64_t end, bfloat16 *rounded) {
    const dense_bfloat16_parameters *p = (const void *)args->p;
    const float *bias = args->in[READ_BIAS], *residual = args->in[READ_RESIDUAL];
    const strips of = {
        .geometry = {.kh = 1, .kw = 1, .sh = 1, .sw = 1, .dh = 1, .dw = 1, .ow = rows},
        .columns = rows,
        .row = rows * BF16_COLUMN,
        .part = (nns_min_int(p->rows, p->n) + BF16_BEHIND) * BF16_COLUMN,
        .w_block = bf16_parts(p->k) * BF16_TAP,
        .step = p->m,
        .finish = epilogue_of(&p->activation),
    };
    round_rows((const float *)args->in[READ_X] + row * p->k, p->k, rows, of.part, rounded);
    for (int64_t vector = begin, count; vector < end; vector += count) {
        output_vector v[2];
        count = nns_min_int(2, end - vector);
        for (int64_t i = 0; i < count; i++) {
            const int64_t column = (vector + i) * NNS_BLOCK, at = row * p->m + column;
            v[i] = (output_vector){
                .x = rounded,
                .w = (const bfloat16 *)args->in[READ_WEIGHTS] + (vector + i) * of.w_block,
                .end = nns_ceil_div(p->k, 2),
                .bias = bias ? bias + column : NULL,
                .residual = residual ? residual + at : NULL,
                .y = (float *)args->out[0] + at,
                .lanes = p->m - column < NNS_BLOCK ? p->m - column : 0,
            };
        }
        bf16_compute(&of, v, count, 1);
    }
    if (!of.finish.second_pass) return;
    const int64_t first = begin * NNS_BLOCK, columns = nns_min_int(p->m, end * NNS_BLOCK) - first;
    for (int64_t i = 0; i < rows; i++)
        epilogue_second_pass(&of.finish, (float *)args->out[0] + (row + i) * p->m + first, columns);
}

static void dense_bfloat16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const dense_bfloat16_parameters *p = (const void *)args->p;
    const int64_t vectors = blocks_of(p->m);
    bf16_begin();
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / p->split * p->rows, share = unit % p->split;
        compute_share(args, row, nns_min_int(p->rows, p->n - row), vectors * share / p->split,
                      vectors * (share + 1) / p->split, scratch);
    }
    bf16_end();
}

NNS_DEFINE_FAMILY(dense_bfloat16);
