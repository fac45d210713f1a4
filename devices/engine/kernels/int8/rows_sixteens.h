/* The strips of rows_int8.c by long products (NEON without dot products), of sets of one group. It includes this file,
 * which uses its vectors.
 *
 * The products of eight channels of a column and a lane are added to those of the next eight within int16, and then
 * by pairs to the lane's four sums. Two products exceed int16 only where both weights are -128: such vectors are left to
 * the other strips. The weights of a vector are repacked before its strips, so that the sixteen channels of a lane are
 * neighbours. */
#if INT8_LONG
#include "transpose.h"

enum {
    SIXTEEN_QUADS = 4,
    SIXTEEN_CHANNELS = SIXTEEN_QUADS * INT8_QUAD,
    SIXTEEN_WIDE = COMPUTE_MANY_REGISTERS ? 4 : 2, /* columns of a strip, at most */
    SIXTEEN_NARROW = COMPUTE_MANY_REGISTERS ? 2 : 1,
};

static int64_t sixteens_of(int64_t quads) { return nns_ceil_div(quads, SIXTEEN_QUADS); }

/* Bytes of scratch behind the converted rows: the weights int8[part][kh][kw][sixteen][lane][16] of a vector. */
static int64_t sixteens_bytes(const kernel_geometry *s, const grouping *g) {
    return NNS_PRODUCT(g->parts, sixteens_of(g->per_part), NNS_BLOCK, SIXTEEN_CHANNELS, s->kh, s->kw);
}

/* Packs `quads` quads of weights; returns the address after them. Adds bits to `lowest` where two products exceed int16. */
static int8_t *pack_tap(const int8_t *w, int64_t quads, int8_t *to, uint8x8_t *lowest) {
    for (int64_t quad = 0; quad < quads; quad += SIXTEEN_QUADS, to += NNS_BLOCK * SIXTEEN_CHANNELS) {
        nns_vec lanes[NNS_BLOCK];
        COMPUTE_FOR(i, SIXTEEN_QUADS)
            lanes[i] = quad + i < quads ? (nns_vec)compute_load_bits(w + (quad + i) * NNS_BLOCK * INT8_QUAD) : (nns_vec){0};
        transpose_block(lanes);
        COMPUTE_FOR(lane, NNS_BLOCK) {
            const int8x16_t weights = (int8x16_t)lanes[lane];
            const uint8x16_t least = vceqq_s8(weights, vdupq_n_s8(INT8_MIN));
            *lowest = vorr_u8(*lowest, vand_u8(vget_low_u8(least), vget_high_u8(least)));
            vst1q_s8(to + lane * SIXTEEN_CHANNELS, weights);
        }
    }
    return to;
}

/* Packs the weights of a vector at `w`; returns whether all sums of two products fit into int16. */
static bool pack_sixteens(const kernel_geometry *s, const grouping *g, const int8_t *w, int8_t *to) {
    uint8x8_t lowest = vdup_n_u8(0);
    for (int64_t part = 0; part < g->parts; part++)
        for (int64_t tap = 0; tap < s->kh * s->kw; tap++, w += stored_quads(g, part) * NNS_BLOCK * INT8_QUAD)
            to = pack_tap(w, quads_of(g, part), to, &lowest);
    return vget_lane_u64(vreinterpret_u64_u8(lowest), 0) == 0;
}

/* The sum of each lane's four sums. */
NNS_INLINE nns_uvec reduce_lanes(const int32x4_t *sums) {
    int32x4_t pairs[2];
    COMPUTE_FOR(i, 2) {
        const int32x4_t a = sums[2 * i], b = sums[2 * i + 1];
        pairs[i] = vcombine_s32(vpadd_s32(vget_low_s32(a), vget_high_s32(a)), vpadd_s32(vget_low_s32(b), vget_high_s32(b)));
    }
    return (nns_uvec)vcombine_s32(vpadd_s32(vget_low_s32(pairs[0]), vget_high_s32(pairs[0])),
                                  vpadd_s32(vget_low_s32(pairs[1]), vget_high_s32(pairs[1])));
}

/* Adds the products of sixteen channels of `rows` times `columns` columns, `row` and `column` bytes apart, to the sums
 * int32[row][column][lane][4]. */
NNS_INLINE void add_sixteen(const int rows, const int columns, int64_t row, int64_t column, const int8_t *x,
                            const int8_t *w, int32x4_t *sums) {
    int8x16_t weights[NNS_BLOCK];
    COMPUTE_FOR(lane, NNS_BLOCK) weights[lane] = vld1q_s8(w + lane * SIXTEEN_CHANNELS);
    COMPUTE_FOR(r, rows) {
        COMPUTE_FOR(p, columns) {
            const int8x16_t inputs = vld1q_s8(x + r * row + p * column);
            COMPUTE_FOR(lane, NNS_BLOCK) {
                int32x4_t *sum = sums + (r * columns + p) * NNS_BLOCK + lane;
                const int16x8_t low = vmull_s8(vget_low_s8(inputs), vget_low_s8(weights[lane]));
                *sum = vpadalq_s16(*sum, vmlal_s8(low, vget_high_s8(inputs), vget_high_s8(weights[lane])));
            }
        }
    }
}

/* Computes `columns` columns of `rows` neighbouring output rows from `pixel` of row `oh` on, with packed weights, and
 * stores `valid` of the columns. Counts are constants. */
NNS_INLINE void compute_sixteens(const int rows, const int columns, const int64_t valid, const kernel_geometry *s,
                                 const grouping *g, const output_vector *v, const int8_t *w, int64_t oh, int64_t pixel) {
    const int64_t column = s->sw * ROWS_COLUMN, row = s->sh * v->row;
    int32x4_t sums[SIXTEEN_WIDE * NNS_BLOCK];
    COMPUTE_FOR(i, rows * columns * NNS_BLOCK) sums[i] = vdupq_n_s32(0);
    for (int64_t part = 0; part < g->parts; part++) {
        const int64_t sixteens = sixteens_of(quads_of(g, part));
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *tap = v->x + part * v->part + (oh * s->sh + i * s->dh) * v->row + pixel * column;
            for (int64_t j = 0; j < s->kw; j++, tap += s->dw * ROWS_COLUMN) {
                const int8_t *x = (const int8_t *)tap;
                for (int64_t k = 0; k < sixteens; k++, x += SIXTEEN_CHANNELS, w += NNS_BLOCK * SIXTEEN_CHANNELS)
                    add_sixteen(rows, columns, row, column, x, w, sums);
            }
        }
    }
    const nns_uvec bias = compute_load_bits(v->bias);
    const nns_vec multipliers = nns_load(v->multipliers);
    COMPUTE_FOR(r, rows) {
        nns_uvec made[SIXTEEN_WIDE];
        COMPUTE_FOR(p, columns) made[p] = bias + reduce_lanes(sums + (r * columns + p) * NNS_BLOCK);
        const int64_t at = ((oh + r) * s->ow + pixel) * NNS_BLOCK;
        int8_store(columns, valid, &v->finish, made, 1, multipliers, v->residual ? v->residual + at : NULL, v->y + at);
    }
}

/* Computes `outputs` output rows of a vector. Narrow rows are computed two at a time. */
static __attribute__((noinline)) void sixteens_v1(const kernel_geometry *s, const grouping *g, const output_vector *v,
                                                  const int8_t *w, int64_t outputs) {
    int64_t oh = 0;
    if (s->ow <= SIXTEEN_NARROW)
        for (; oh + 2 <= outputs; oh += 2) compute_sixteens(2, SIXTEEN_NARROW, s->ow, s, g, v, w, oh, 0);
    for (; oh < outputs; oh++) {
        int64_t pixel = 0, left = s->ow;
        for (; left > SIXTEEN_NARROW; pixel += SIXTEEN_WIDE, left -= SIXTEEN_WIDE)
            compute_sixteens(1, SIXTEEN_WIDE, nns_min_int(left, SIXTEEN_WIDE), s, g, v, w, oh, pixel);
        if (left > 0) compute_sixteens(1, SIXTEEN_NARROW, left, s, g, v, w, oh, pixel);
    }
}
#endif
