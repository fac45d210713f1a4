/* The output vectors of compute.inc by matrix products: an instruction adds to the sums of two columns and two lanes the products
 * of four channels. One operand is bfloat16[column][4], the other bfloat16[lane][4]. It includes this file. */

enum {
    QUAD = 4, /* channels */
    QUAD_PAIRS = QUAD / 2,
    QUAD_SUMS = 12, /* maximum pairs of columns of a strip, times vectors: registers */
};

/* Weights of the pairs of lanes of a vector, or the sums float[column][lane] of a pair of columns. */
typedef struct {
    bfloat16x8_t low, high;
} quad_weights;
typedef struct {
    float32x4_t low, high;
} quad_sums;

NNS_INLINE quad_sums quad_bias(nns_vec bias) {
    const float64x2_t lanes = (float64x2_t)bias;
    return (quad_sums){(float32x4_t)vdupq_laneq_f64(lanes, 0), (float32x4_t)vdupq_laneq_f64(lanes, 1)};
}

/* The sums of column 0 or 1 of the pair. */
NNS_INLINE nns_vec quad_sums_of(quad_sums sums, const int column) {
    const float64x2_t low = (float64x2_t)sums.low, high = (float64x2_t)sums.high;
    return (nns_vec)(column ? vzip2q_f64(low, high) : vzip1q_f64(low, high));
}

/* Weights of four channels from bfloat16[pair][lane][2]. */
NNS_INLINE quad_weights quad_load(const bfloat16 *w) {
    const uint32x4_t first = (uint32x4_t)compute_load_bits(w), second = (uint32x4_t)compute_load_bits(w + 2 * NNS_BLOCK);
    return (quad_weights){(bfloat16x8_t)vzip1q_u32(first, second), (bfloat16x8_t)vzip2q_u32(first, second)};
}

/* Four channels of two columns. */
NNS_INLINE bfloat16x8_t quad_columns(const bfloat16 *first, const bfloat16 *second) {
    return (bfloat16x8_t)vcombine_u16(vld1_u16(first), vld1_u16(second));
}

/* Adds the products of four channels of the columns at `x` to sums[row][two columns][vector]. `row`, `step` and `to_next` are
 * the distances of rows, columns and vectors of weights; counts are constants. */
NNS_INLINE void quad_add(const int rows, const int twos, const int vectors, const bfloat16 *x, int64_t row, int64_t step,
                         const bfloat16 *w, int64_t to_next, quad_sums *sums) {
    quad_weights weights[2];
    COMPUTE_FOR(k, vectors) weights[k] = quad_load(w + k * to_next);
    COMPUTE_FOR(r, rows) {
        COMPUTE_FOR(p, twos) {
            const bfloat16 *at = x + r * row + 2 * p * step;
            const bfloat16x8_t inputs = quad_columns(at, at + step);
            quad_sums *sum = sums + (r * twos + p) * vectors;
            COMPUTE_FOR(k, vectors) {
                sum[k].low = vbfmmlaq_f32(sum[k].low, inputs, weights[k].low);
                sum[k].high = vbfmmlaq_f32(sum[k].high, inputs, weights[k].high);
            }
        }
    }
}

/* Computes `columns` columns of `rows` neighbouring output rows from `pixel` of row `oh` on, of `vectors` vectors that
 * read the same pairs, and stores `valid` of the columns. Counts and `sw`, the stride of columns or 0 for any, are constants.
 * Weights of pairs that a vector does not read are zeros, so all quads are multiplied in which it reads one. */
NNS_INLINE void compute_strip(const int rows, const int columns, const int vectors, const int sw, int64_t valid,
                              const strips *of, const output_vector *v, int64_t oh, int64_t pixel) {
    const kernel_geometry *s = &of->geometry;
    const int64_t step = (sw ? sw : s->sw) * BF16_COLUMN, row = s->sh * of->row, to_next = v[vectors - 1].w - v->w;
    const int twos = (columns + 1) / 2; /* of columns; an odd one has a neighbour that is not stored */
    quad_sums sums[QUAD_SUMS];
    COMPUTE_FOR(i, vectors) {
        const quad_sums bias = quad_bias(v[i].bias ? nns_load(v[i].bias) : nns_zero());
        COMPUTE_FOR(p, rows * twos) sums[p * vectors + i] = bias;
    }
    const bfloat16 *w = v->w, *part = v->x + oh * row + pixel * step;
    for (int64_t begin = v->begin / QUAD_PAIRS * QUAD_PAIRS, left = v->end; begin < left;
         begin = 0, left -= BF16_PAIRS, part += of->part) {
        const int64_t end = nns_min_int(left, BF16_PAIRS);
        for (int64_t i = 0; i < s->kh; i++) {
            const int64_t first = oh * s->sh + i * s->dh, last = first + (rows - 1) * s->sh;
            if (s->kh > 1 && (last < of->inside || first >= of->outside)) { /* zeros: padding */
                w += s->kw * BF16_TAP;
                continue;
            }
            const bfloat16 *tap = part + i * s->dh * of->row;
            for (int64_t j = 0; j < s->kw; j++, tap += s->dw * BF16_COLUMN, w += BF16_TAP) {
                const bfloat16 *x = tap + begin * 2, *pairs = w + begin * 2 * NNS_BLOCK;
                for (int64_t pair = begin; pair < end; pair += QUAD_PAIRS, x += QUAD, pairs += QUAD * NNS_BLOCK)
                    quad_add(rows, twos, vectors, x, row, step, pairs, to_next, sums);
            }
        }
    }
    COMPUTE_FOR(i, vectors) {
        COMPUTE_FOR(r, rows) {
            nns_vec of_vector[BF16_MOST];
            COMPUTE_FOR(p, columns)
                of_vector[p] = quad_sums_of(sums[(r * twos + p / 2) * vectors + i], p % 2);
            store_strip(columns, 1, valid, of, v + i, (oh + r) * s->ow + pixel, of_vector);
        }
    }
}
