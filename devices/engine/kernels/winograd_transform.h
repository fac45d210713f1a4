/* The one-dimensional transforms of Winograd's minimal filtering F(m, 3), as vectors of lanes.
 *
 * Input position i belongs to a point p of the interpolation: 0, then a pair +a, -a for every a below, then infinity. Its
 * weights are the coefficients of the product of (x - q) over the other points q; the output transform has the powers of
 * p. What the kernel's transform must divide by is in devices/winograd.py, from the same points.
 *
 *   m   points               largest error against exact sums over 256 channels, relative to the largest output
 *   2   ±1                   5e-7
 *   4   ±3/4, ±3/2           3e-6   (1.1e-5 with ±1, ±2)
 *   6   ±1/2, ±1, ±2         2e-5 */
#ifndef NNS_WINOGRAD_TRANSFORM_H
#define NNS_WINOGRAD_TRANSFORM_H

#include "kernel.h"

NNS_INLINE void winograd_input_2(const nns_vec d[4], nns_vec t[4]) {
    t[0] = d[2] - d[0];
    t[1] = d[2] + d[1];
    t[2] = d[2] - d[1];
    t[3] = d[3] - d[1];
}

NNS_INLINE void winograd_output_2(const nns_vec m[4], nns_vec y[2]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = m[3] + (m[1] - m[2]);
}

/* With a = 3/4 and b = 2a: the point ±p has the even part d4 - q² d2 and the odd part ±p (d3 - q² d1), q the other one. */
NNS_INLINE void winograd_input_4(const nns_vec d[6], nns_vec t[6]) {
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

NNS_INLINE void winograd_output_4(const nns_vec m[6], nns_vec y[4]) {
    const nns_vec sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    const nns_vec sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    y[0] = m[0] + (sum_a + sum_b);
    y[1] = (difference_a + difference_b * 2.0f) * 0.75f;
    y[2] = (sum_a + sum_b * 4.0f) * 0.5625f;
    y[3] = m[5] + (difference_a + difference_b * 8.0f) * 0.421875f;
}

/* The points are powers of 2, so that all scaling is exact. */
NNS_INLINE void winograd_input_6(const nns_vec d[8], nns_vec t[8]) {
    const nns_vec even_half = (d[6] - d[4] * 5.0f) + d[2] * 4.0f, odd_half = (d[5] - d[3] * 5.0f) + d[1] * 4.0f;
    const nns_vec even_one = (d[6] + d[2]) - d[4] * 4.25f, odd_one = (d[5] + d[1]) - d[3] * 4.25f;
    const nns_vec even_two = (d[6] - d[4] * 1.25f) + d[2] * 0.25f, odd_two = (d[5] - d[3] * 1.25f) + d[1] * 0.25f;
    t[0] = (d[6] - d[0]) + (d[2] - d[4]) * 5.25f;
    t[1] = even_half + odd_half * 0.5f;
    t[2] = even_half - odd_half * 0.5f;
    t[3] = even_one + odd_one;
    t[4] = even_one - odd_one;
    t[5] = even_two + odd_two * 2.0f;
    t[6] = even_two - odd_two * 2.0f;
    t[7] = (d[7] - d[1]) + (d[3] - d[5]) * 5.25f;
}

NNS_INLINE void winograd_output_6(const nns_vec m[8], nns_vec y[6]) {
    const nns_vec sum_half = m[1] + m[2], difference_half = m[1] - m[2];
    const nns_vec sum_one = m[3] + m[4], difference_one = m[3] - m[4];
    const nns_vec sum_two = m[5] + m[6], difference_two = m[5] - m[6];
    y[0] = (m[0] + sum_one) + (sum_half + sum_two);
    y[1] = difference_one + difference_half * 0.5f + difference_two * 2.0f;
    y[2] = sum_one + sum_half * 0.25f + sum_two * 4.0f;
    y[3] = difference_one + difference_half * 0.125f + difference_two * 8.0f;
    y[4] = sum_one + sum_half * 0.0625f + sum_two * 16.0f;
    y[5] = (m[7] + difference_one) + difference_half * 0.03125f + difference_two * 32.0f;
}

#endif
