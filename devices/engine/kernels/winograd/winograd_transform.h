/* The one-dimensional transforms of Winograd's minimal filtering F(m, r), on vectors of lanes, by alpha = m + r - 1. They depend
 * on alpha and m, not on the taps r of the kernel.
 *
 * Input position i belongs to a point p of the interpolation: 0, then a pair +a, -a for every a below, then infinity. Its
 * weights are the coefficients of the product of (x - q) over the other points q; the output transform has the powers of
 * p. The kernel transform in devices/algorithms/winograd.py divides by the leading factors, from the same points.
 *
 *   alpha   points               largest error against exact sums over 256 channels, relative to the largest output
 *   4       ±1                   7e-7
 *   6       ±3/4, ±3/2           3e-6   (1.1e-5 with ±1, ±2)
 *   8       ±1, ±1/2, ±2         2e-5 */
#ifndef NNS_WINOGRAD_TRANSFORM_H
#define NNS_WINOGRAD_TRANSFORM_H

#include "compute.h"

NNS_INLINE void winograd_input_4(const nns_vec d[4], nns_vec t[4]) {
    t[0] = d[2] - d[0];
    t[1] = d[2] + d[1];
    t[2] = d[2] - d[1];
    t[3] = d[3] - d[1];
}

/* With a = 3/4 and b = 2a: the point ±p has the even part d4 - q² d2 and the odd part ±p (d3 - q² d1), q the other one. */
NNS_INLINE void winograd_input_6(const nns_vec d[6], nns_vec t[6]) {
    const nns_vec scaled = d[3] * 0.75f;
    const nns_vec even_a = d[4] - d[2] * 2.25f, odd_a = scaled - d[1] * 1.6875f;
    const nns_vec even_b = d[4] - d[2] * 0.5625f, odd_b = (scaled + scaled) - d[1] * 0.84375f;
    t[0] = (d[4] - d[2] * 2.8125f) + d[0] * 1.265625f;
    t[1] = even_a + odd_a;
    t[2] = even_a - odd_a;
    t[3] = even_b + odd_b;
    t[4] = even_b - odd_b;
    t[5] = (d[5] - d[3] * 2.8125f) + d[1] * 1.265625f;
}

/* The points are powers of 2, so that all scaling is exact. */
NNS_INLINE void winograd_input_8(const nns_vec d[8], nns_vec t[8]) {
    const nns_vec even_half = (d[6] - d[4] * 5.0f) + d[2] * 4.0f, odd_half = (d[5] - d[3] * 5.0f) + d[1] * 4.0f;
    const nns_vec even_one = (d[6] + d[2]) - d[4] * 4.25f, odd_one = (d[5] + d[1]) - d[3] * 4.25f;
    const nns_vec even_two = (d[6] - d[4] * 1.25f) + d[2] * 0.25f, odd_two = (d[5] - d[3] * 1.25f) + d[1] * 0.25f;
    t[0] = (d[6] - d[0]) + (d[2] - d[4]) * 5.25f;
    t[1] = even_one + odd_one;
    t[2] = even_one - odd_one;
    t[3] = even_half + odd_half * 0.5f;
    t[4] = even_half - odd_half * 0.5f;
    t[5] = even_two + odd_two * 2.0f;
    t[6] = even_two - odd_two * 2.0f;
    t[7] = (d[7] - d[1]) + (d[3] - d[5]) * 5.25f;
}

/* Powers 0 to 6 of a point: enough for the largest tile. */
typedef float winograd_powers[7];

/* Output i of `count` from `pairs` pairs of points and infinity, which contributes to the last output only. Even outputs use
 * the sum of a pair, odd ones its difference. Inlined with constants, so that the table of powers disappears. */
NNS_INLINE nns_vec winograd_output(const int i, const int count, const int pairs, const winograd_powers *powers,
                                   const nns_vec *m, const nns_vec *sums, const nns_vec *differences) {
    const nns_vec *terms = i % 2 ? differences : sums;
    nns_vec y = powers[0][i] == 1 ? terms[0] : terms[0] * powers[0][i];
    COMPUTE_UNROLL
    for (int k = 1; k < pairs; k++) y += powers[k][i] == 1 ? terms[k] : terms[k] * powers[k][i];
    if (i == 0) y += m[0];
    if (i == count - 1) y += m[2 * pairs + 1];
    return y;
}

/* The `count` outputs of a tile from its sums at all positions. */
NNS_INLINE void winograd_outputs(const int count, const int pairs, const winograd_powers *powers, const nns_vec *m,
                                 nns_vec *y) {
    nns_vec sums[3], differences[3];
    COMPUTE_UNROLL
    for (int k = 0; k < pairs; k++) {
        sums[k] = m[2 * k + 1] + m[2 * k + 2];
        differences[k] = m[2 * k + 1] - m[2 * k + 2];
    }
    COMPUTE_UNROLL
    for (int i = 0; i < count; i++) y[i] = winograd_output(i, count, pairs, powers, m, sums, differences);
}

#define WINOGRAD_POWERS(a) {1, (a), (a) * (a), (a) * (a) * (a), (a) * (a) * (a) * (a), (a) * (a) * (a) * (a) * (a), \
                            (a) * (a) * (a) * (a) * (a) * (a)}

NNS_INLINE void winograd_output_4(const int count, const nns_vec m[4], nns_vec *y) {
    static const winograd_powers powers[] = {WINOGRAD_POWERS(1.0f)};
    winograd_outputs(count, 1, powers, m, y);
}

NNS_INLINE void winograd_output_6(const int count, const nns_vec m[6], nns_vec *y) {
    static const winograd_powers powers[] = {WINOGRAD_POWERS(0.75f), WINOGRAD_POWERS(1.5f)};
    winograd_outputs(count, 2, powers, m, y);
}

NNS_INLINE void winograd_output_8(const int count, const nns_vec m[8], nns_vec *y) {
    static const winograd_powers powers[] = {WINOGRAD_POWERS(1.0f), WINOGRAD_POWERS(0.5f), WINOGRAD_POWERS(2.0f)};
    winograd_outputs(count, 3, powers, m, y);
}

#endif
