/* Sums of a strip by products of small matrices (compute.inc, which includes this file): an instruction adds to the sums of two
 * columns and two lanes the products of four channels. One operand is bfloat16[column][4], the other bfloat16[lane][4]. A sum
 * belongs to two columns and a vector; an odd last column has a neighbour that is not stored. */

enum {
    STRIP_PAIRS = 2, /* that an addition takes */
    STRIP_SUMS = BF16_MOST / 2,
};

/* float[column][lane] of the first and of the second two lanes. */
typedef struct {
    float32x4_t low, high;
} strip_sum;

/* Weights of the same lanes. */
typedef struct {
    bfloat16x8_t low, high;
} quad_weights;

/* Sums per vector of a row of `columns` columns. */
NNS_INLINE int strip_across(const int columns) { return (columns + 1) / 2; }

NNS_INLINE strip_sum strip_begin(nns_vec bias) {
    const float64x2_t lanes = (float64x2_t)bias;
    return (strip_sum){(float32x4_t)vdupq_laneq_f64(lanes, 0), (float32x4_t)vdupq_laneq_f64(lanes, 1)};
}

/* The sum of column `p`; `sums` are those of a row, from the first of the vector on. */
NNS_INLINE nns_vec strip_column(const strip_sum *sums, const int vectors, const int p) {
    const strip_sum two = sums[p / 2 * vectors];
    const float64x2_t low = (float64x2_t)two.low, high = (float64x2_t)two.high;
    return (nns_vec)(p % 2 ? vzip2q_f64(low, high) : vzip1q_f64(low, high));
}

/* Weights of four channels from bfloat16[pair][lane][2]. */
NNS_INLINE quad_weights quad_load(const bfloat16 *w) {
    const uint32x4_t first = (uint32x4_t)compute_load_bits(w), second = (uint32x4_t)compute_load_bits(w + 2 * NNS_BLOCK);
    return (quad_weights){(bfloat16x8_t)vzip1q_u32(first, second), (bfloat16x8_t)vzip2q_u32(first, second)};
}

/* Adds the products of the four channels at `x` of the columns to sums[row][two columns][vector]. `row`, `step` and `to_next`
 * are the distances of rows, columns and vectors of weights; counts are constants. */
NNS_INLINE void strip_add(const int rows, const int across, const int vectors, const bfloat16 *x, int64_t row, int64_t step,
                          const bfloat16 *w, int64_t to_next, strip_sum *sums) {
    quad_weights weights[2];
    COMPUTE_FOR(k, vectors) weights[k] = quad_load(w + k * to_next);
    COMPUTE_FOR(r, rows) {
        COMPUTE_FOR(p, across) {
            const bfloat16 *at = x + r * row + 2 * p * step;
            const bfloat16x8_t inputs = (bfloat16x8_t)vcombine_u16(vld1_u16(at), vld1_u16(at + step));
            strip_sum *sum = sums + (r * across + p) * vectors;
            COMPUTE_FOR(k, vectors) {
                sum[k].low = vbfmmlaq_f32(sum[k].low, inputs, weights[k].low);
                sum[k].high = vbfmmlaq_f32(sum[k].high, inputs, weights[k].high);
            }
        }
    }
}
