/* Products of eight channels (i8mm): an instruction adds to the sums of two inputs (columns or rows) and two lanes the products
 * of eight channels. One operand is a pair of inputs, int8[input][8], the other a pair of lanes, int8[lane][8]. Both are made
 * before a register tile, which shuffles nothing. */
#ifndef NNS_INT8_EIGHTS_H
#define NNS_INT8_EIGHTS_H

#include "int8/product.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define INT8_EIGHTS 1

enum {
    EIGHT_QUADS = 2,
    EIGHT_CHANNELS = EIGHT_QUADS * INT8_QUAD,
    EIGHT_PAIR = 2 * EIGHT_CHANNELS, /* bytes of a pair of inputs or of lanes */
    EIGHT_WEIGHTS = 2 * EIGHT_PAIR,  /* bytes of the weights of a vector */
    EIGHT_VECTORS = 2,               /* of a register tile, at most */
    EIGHT_WIDE = 6,                  /* pairs of inputs of a register tile, at most; of narrower ones: */
    EIGHT_MIDDLE = 4,
    EIGHT_NARROW = 2,
};

/* For the pairs of lanes of a vector: weights, or the sums int32[input][lane] of a pair of inputs. */
typedef struct {
    int8x16_t low, high;
} eight_weights;
typedef struct {
    int32x4_t low, high;
} eight_sums;

static inline int64_t eights_of(int64_t quads) { return nns_ceil_div(quads, EIGHT_QUADS); }

/* Sums that begin with the bias of a vector. */
NNS_INLINE eight_sums eight_bias(nns_uvec bias) {
    const uint64x2_t lanes = vreinterpretq_u64_u32(bias);
    return (eight_sums){vreinterpretq_s32_u64(vdupq_laneq_u64(lanes, 0)),
                        vreinterpretq_s32_u64(vdupq_laneq_u64(lanes, 1))};
}

/* The sums of input 0 or 1 of the pair. */
NNS_INLINE nns_uvec eight_sums_of(eight_sums sums, const int input) {
    const uint64x2_t low = vreinterpretq_u64_s32(sums.low), high = vreinterpretq_u64_s32(sums.high);
    return vreinterpretq_u32_u64(input ? vzip2q_u64(low, high) : vzip1q_u64(low, high));
}

/* Packs the weights of a vector: of `quads` quads of channels, int8[lane][4] each, `step` bytes apart, makes eights
 * int8[pair of lanes][lane][8], `to_next` bytes apart. Returns the address after the last one, whose missing quad is zeros. */
NNS_INLINE int8_t *eight_pack(const int8_t *w, int64_t step, int64_t quads, int8_t *to, int64_t to_next) {
    for (int64_t quad = 0; quad < quads; quad += EIGHT_QUADS, to += to_next) {
        const nns_uvec first = compute_load_bits(w + quad * step);
        const nns_uvec second = quad + 1 < quads ? compute_load_bits(w + (quad + 1) * step) : compute_broadcast_bits(0);
        vst1q_s8(to, vreinterpretq_s8_u32(vzip1q_u32(first, second)));
        vst1q_s8(to + EIGHT_PAIR, vreinterpretq_s8_u32(vzip2q_u32(first, second)));
    }
    return to;
}

/* Adds the products of `eights` eights of `count` pairs of inputs, neighbours from each[pair] on, and of `vectors` vectors,
 * whose weights are packed as int8[eight][vector], to sums[pair][vector]; returns the address after the weights. Counts
 * are constants. */
NNS_INLINE const int8_t *eight_add(const int count, const int vectors, int64_t eights, const int8_t *const *each,
                                   const int8_t *w, eight_sums *sums) {
    for (int64_t at = 0; at < eights * EIGHT_PAIR; at += EIGHT_PAIR, w += vectors * EIGHT_WEIGHTS) {
        eight_weights weights[EIGHT_VECTORS];
        COMPUTE_FOR(v, vectors) {
            weights[v].low = vld1q_s8(w + v * EIGHT_WEIGHTS);
            weights[v].high = vld1q_s8(w + v * EIGHT_WEIGHTS + EIGHT_PAIR);
        }
        COMPUTE_FOR(p, count) {
            const int8x16_t x = vld1q_s8(each[p] + at);
            COMPUTE_FOR(v, vectors) {
                eight_sums *sum = sums + p * vectors + v;
                sum->low = vmmlaq_s32(sum->low, x, weights[v].low);
                sum->high = vmmlaq_s32(sum->high, x, weights[v].high);
            }
        }
    }
    return w;
}
#else
#define INT8_EIGHTS 0
#endif

#endif
