/* Sums of a strip by products of pairs (compute.inc, which includes this file): a pair of channels of a column in all lanes is
 * multiplied by the pairs of weights of a vector. A sum belongs to a column and a vector. */

enum {
    STRIP_PAIRS = 1, /* that an addition takes */
    STRIP_SUMS = BF16_MOST,
};
typedef nns_vec strip_sum;

/* Sums per vector of a row of `columns` columns. */
NNS_INLINE int strip_across(const int columns) { return columns; }

NNS_INLINE strip_sum strip_begin(nns_vec bias) { return bias; }

/* The sum of column `p`; `sums` are those of a row, from the first of the vector on. */
NNS_INLINE nns_vec strip_column(const strip_sum *sums, const int vectors, const int p) { return sums[p * vectors]; }

/* Adds the products of the pair at `x` of the columns to sums[row][column][vector]. `row`, `step` and `to_next` are the
 * distances of rows, columns and vectors of weights; counts are constants. */
NNS_INLINE void strip_add(const int rows, const int across, const int vectors, const bfloat16 *x, int64_t row, int64_t step,
                          const bfloat16 *w, int64_t to_next, strip_sum *sums) {
    bf16_pairs weights[2];
    COMPUTE_FOR(k, vectors) weights[k] = compute_load_bits(w + k * to_next);
    COMPUTE_FOR(r, rows) {
        COMPUTE_FOR(p, across) {
            const bf16_pairs input = bf16_broadcast(x + r * row + p * step);
            strip_sum *sum = sums + (r * across + p) * vectors;
            COMPUTE_FOR(k, vectors) sum[k] = bf16_multiply_add(sum[k], input, weights[k]);
        }
    }
}
