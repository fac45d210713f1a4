/* The transforms of Winograd's minimal filtering F(m, r), on vectors of lanes, by alpha = m + r - 1. They depend on
 * alpha and m, not on the taps r of the kernel.
 *
 * Input position i belongs to a point p of the interpolation: 0, then the points below, pairs +a, -a first, then
 * infinity. Its weights are the coefficients of the product of (x - q) over the other points q; the output transform has
 * the powers of p. The kernel transform in devices/algorithms/winograd.py divides by the leading factors, from the same
 * points.
 *
 *   alpha   points               largest error against exact sums over 256 channels, relative to the largest output
 *   4       ±1                   7e-7
 *   6       ±3/4, ±3/2           3e-6   (1.1e-5 with ±1, ±2)
 *   7       ±1, ±1/2, 2          2e-5
 *   8       ±1, ±1/2, ±2         2e-5 */
#ifndef NNS_WINOGRAD_TRANSFORM_H
#define NNS_WINOGRAD_TRANSFORM_H

#include "winograd.h"

NNS_INLINE void winograd_input_4(const nns_vec d[4], nns_vec t[4]) {
    t[0] = d[2] - d[0];
    t[1] = d[2] + d[1];
    t[2] = d[2] - d[1];
    t[3] = d[3] - d[1];
}

/* With a = 3/4 and b = 2a: the point ±p has the even part d4 - q² d2 and the odd part ±p (d3 - q² d1), q the other
 * one. */
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

/* The points are powers of 2, so that all scaling is exact. With f(x) = x (x² - 1) (x² - 1/4), the product over the points
 * but 2, the weights of point 2 are those of f, and of all others those of f / (x - p) or of f, applied to the pixels
 * e = (x - 2) d. */
NNS_INLINE void winograd_input_7(const nns_vec d[7], nns_vec t[7]) {
    nns_vec e[6];
    COMPUTE_FOR(i, 6) e[i] = d[i + 1] - d[i] * 2.0f;
    const nns_vec even_one = e[4] - e[2] * 0.25f, odd_one = e[3] - e[1] * 0.25f;
    const nns_vec even_half = e[4] - e[2], odd_half = e[3] - e[1];
    t[0] = (e[4] - e[2] * 1.25f) + e[0] * 0.25f;
    t[1] = even_one + odd_one;
    t[2] = even_one - odd_one;
    t[3] = even_half + odd_half * 0.5f;
    t[4] = even_half - odd_half * 0.5f;
    t[5] = (d[5] - d[3] * 1.25f) + d[1] * 0.25f;
    t[6] = (e[5] - e[3] * 1.25f) + e[1] * 0.25f;
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

/* Output i of `count` from `pairs` pairs of points, `singles` others and infinity, which contributes to the last output
 * only. Even outputs use the sum of a pair, odd ones its difference. Inlined with constants, so that the table of powers
 * disappears. */
NNS_INLINE nns_vec winograd_one_output(const int i, const int count, const int pairs, const int singles,
                                       const winograd_powers *powers, const nns_vec *m, const nns_vec *sums,
                                       const nns_vec *differences) {
    const nns_vec *terms = i % 2 ? differences : sums;
    nns_vec y = powers[0][i] == 1 ? terms[0] : terms[0] * powers[0][i];
    COMPUTE_UNROLL
    for (int k = 1; k < pairs; k++) y += powers[k][i] == 1 ? terms[k] : terms[k] * powers[k][i];
    COMPUTE_FOR(k, singles) y += m[2 * pairs + 1 + k] * powers[pairs + k][i];
    if (i == 0) y += m[0];
    if (i == count - 1) y += m[2 * pairs + singles + 1];
    return y;
}

/* The `count` outputs of a tile from its sums at all positions. */
NNS_INLINE void winograd_outputs(const int count, const int pairs, const int singles, const winograd_powers *powers,
                                 const nns_vec *m, nns_vec *y) {
    nns_vec sums[3], differences[3];
    COMPUTE_FOR(k, pairs) {
        sums[k] = m[2 * k + 1] + m[2 * k + 2];
        differences[k] = m[2 * k + 1] - m[2 * k + 2];
    }
    COMPUTE_FOR(i, count) y[i] = winograd_one_output(i, count, pairs, singles, powers, m, sums, differences);
}

#define WINOGRAD_POWERS(a) {1, (a), (a) * (a), (a) * (a) * (a), (a) * (a) * (a) * (a), (a) * (a) * (a) * (a) * (a), \
                            (a) * (a) * (a) * (a) * (a) * (a)}

/* The transforms of one dimension, for the positions of an axis. */
NNS_INLINE void winograd_output(const int alpha, const int count, const nns_vec *m, nns_vec *y) {
    static const winograd_powers four[] = {WINOGRAD_POWERS(1.0f)};
    static const winograd_powers six[] = {WINOGRAD_POWERS(0.75f), WINOGRAD_POWERS(1.5f)};
    static const winograd_powers eight[] = {WINOGRAD_POWERS(1.0f), WINOGRAD_POWERS(0.5f), WINOGRAD_POWERS(2.0f)};
    if (alpha == 4) winograd_outputs(count, 1, 0, four, m, y);
    else if (alpha == 6) winograd_outputs(count, 2, 0, six, m, y);
    else if (alpha == 7) winograd_outputs(count, 2, 1, eight, m, y); /* without -2 */
    else winograd_outputs(count, 3, 0, eight, m, y);
}

NNS_INLINE void winograd_input(const int alpha, const nns_vec *d, nns_vec *t) {
    if (alpha == 4) winograd_input_4(d, t);
    else if (alpha == 6) winograd_input_6(d, t);
    else if (alpha == 7) winograd_input_7(d, t);
    else winograd_input_8(d, t);
}

/* ---- encoding: patches of alpha pixels in one dimension, or alpha² in two -------------------------------------------
 *
 * Down columns, then along rows. Two rows are computed at a time, so that the column results stay in registers;
 * columns are read again for each pair of rows. */

/* Source of the rows of a patch outside the input: as many pixels as the largest patch spans. */
static const float zeros[WINOGRAD_MAX_STRIDE * WINOGRAD_MAX_ALPHA * NNS_BLOCK] __attribute__((aligned(64)));

/* Rows `first` and `second` of the encoded patch, which share most of their sums and may be the same. `inside` has a bit
 * per column. */
NNS_INLINE void winograd_encode_rows(const int alpha, const int first, const int second, const bool edge,
                                     uint32_t inside, const float *const rows[WINOGRAD_MAX_ALPHA],
                                     const winograd_patch *patch) {
    const int64_t x_column = patch->x_column, v_position = patch->v_position;
    nns_vec down[2][WINOGRAD_MAX_ALPHA];
    COMPUTE_FOR(j, alpha) {
        if (edge && !(inside >> j & 1)) {
            down[0][j] = down[1][j] = nns_zero();
            continue;
        }
        nns_vec d[WINOGRAD_MAX_ALPHA], t[WINOGRAD_MAX_ALPHA];
        COMPUTE_FOR(i, alpha) d[i] = nns_load(rows[i] + j * x_column);
        winograd_input(alpha, d, t);
        down[0][j] = t[first];
        down[1][j] = t[second];
    }
    COMPUTE_FOR(k, first == second ? 1 : 2) {
        nns_vec t[WINOGRAD_MAX_ALPHA];
        winograd_input(alpha, down[k], t);
        float *to = patch->v + (k ? second : first) * alpha * v_position;
        COMPUTE_FOR(j, alpha) nns_store(to + j * v_position, t[j]);
    }
}

NNS_INLINE void winograd_encode_patch(const int alpha, const bool edge, const winograd_patch *patch) {
    const uint32_t inside = (UINT32_C(1) << patch->columns.end) - (UINT32_C(1) << patch->columns.begin);
    const float *rows[WINOGRAD_MAX_ALPHA];
    COMPUTE_FOR(i, alpha)
        rows[i] = !edge | ((i >= patch->rows.begin) & (i < patch->rows.end)) ? patch->x + i * patch->x_row : zeros;
    /* 0 and infinity, or with a point that is in no pair, 0 alone and that point with infinity. */
    winograd_encode_rows(alpha, 0, alpha % 2 ? 0 : alpha - 1, edge, inside, rows, patch);
    COMPUTE_UNROLL
    for (int i = 1; i < alpha - 1; i += 2) winograd_encode_rows(alpha, i, i + 1, edge, inside, rows, patch);
}

NNS_INLINE void winograd_encode_any(const int alpha, const winograd_patch *patch) {
    const tap_range rows = patch->rows, columns = patch->columns;
    if (rows.begin || columns.begin || rows.end < alpha || columns.end < alpha)
        winograd_encode_patch(alpha, true, patch);
    else
        winograd_encode_patch(alpha, false, patch);
}

/* A patch of one row, or of one column that `patch_of` turned into a row. */
NNS_INLINE void winograd_encode_line(const int alpha, const winograd_patch *patch) {
    const int64_t begin = patch->columns.begin, end = patch->rows.end > patch->rows.begin ? patch->columns.end : begin;
    nns_vec d[WINOGRAD_MAX_ALPHA], t[WINOGRAD_MAX_ALPHA];
    COMPUTE_FOR(j, alpha)
        d[j] = j >= begin && j < end ? nns_load(patch->x + j * patch->x_column) : nns_zero();
    winograd_input(alpha, d, t);
    COMPUTE_FOR(j, alpha) nns_store(patch->v + j * patch->v_position, t[j]);
}

/* Copies the part of a plain patch inside the input, with rows of alpha pixels, to a lane of blocked `pixels`. */
NNS_INLINE void winograd_pack_lane(const int alpha, const winograd_patch *patch, float *pixels) {
    const tap_range rows = patch->rows, columns = patch->columns;
    const int64_t x_column = patch->x_column;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const float *from = patch->x + i * patch->x_row;
        float *to = pixels + i * alpha * NNS_BLOCK;
        if (columns.end - columns.begin == alpha) {
            COMPUTE_FOR(j, alpha) to[j * NNS_BLOCK] = from[j * x_column];
        } else {
            for (int64_t j = columns.begin; j < columns.end; j++) to[j * NNS_BLOCK] = from[j * x_column];
        }
    }
}

/* ---- decoding: sums at alpha positions to m outputs, or at alpha² to m² ------------------------------------------ */

NNS_INLINE void winograd_store(const int m, const int count, nns_vec *sums, const winograd_result *result,
                               const float *residual, float *y, int64_t y_step) {
    const nns_vec low = nns_broadcast(result->finish->low), high = nns_broadcast(result->finish->high);
    COMPUTE_FOR(j, m) sums[j] += result->bias;
    if (residual) {
        COMPUTE_FOR(j, m)
            if (j < count) sums[j] += nns_load(residual + j * y_step);
    }
    COMPUTE_FOR(j, m)
        if (j < count) nns_store(y + j * y_step, epilogue_min(high, epilogue_max(low, sums[j])));
}

/* The second pass over `rows` rows, at most `m`, of `n` floats of the results. */
NNS_INLINE void winograd_second_pass(const int m, int rows, int64_t n, const winograd_result *result) {
    if (!result->finish->second_pass) return;
    int64_t at[WINOGRAD_MAX_OUTPUTS];
    COMPUTE_FOR(i, m) at[i] = i * result->y_row;
    epilogue_rows(result->finish, result->y, at, rows, n);
}

NNS_INLINE void winograd_decode_tile(const int alpha, const int m, const int rows, const int columns,
                                     const winograd_result *result) {
    const int64_t m_position = result->m_position, y_row = result->y_row;
    /* Every second row at a time if all rows do not fit the registers. */
    const int step = m * alpha > 24 ? 2 : 1;
    COMPUTE_FOR(first, step) {
        nns_vec down[WINOGRAD_MAX_OUTPUTS][WINOGRAD_MAX_ALPHA];
        COMPUTE_FOR(j, alpha) {
            nns_vec terms[WINOGRAD_MAX_ALPHA], sums[WINOGRAD_MAX_OUTPUTS];
            COMPUTE_FOR(i, alpha) terms[i] = nns_load(result->m + (i * alpha + j) * m_position);
            winograd_output(alpha, m, terms, sums);
            COMPUTE_UNROLL
            for (int i = first; i < m; i += step) down[i][j] = sums[i];
        }
        COMPUTE_UNROLL
        for (int i = first; i < m; i += step) {
            if (i >= rows) break;
            nns_vec sums[WINOGRAD_MAX_OUTPUTS];
            winograd_output(alpha, m, down[i], sums);
            const float *residual = result->residual ? result->residual + i * y_row : NULL;
            winograd_store(m, columns, sums, result, residual, result->y + i * y_row, NNS_BLOCK);
        }
    }
    winograd_second_pass(m, rows, (int64_t)columns * NNS_BLOCK, result);
}

NNS_INLINE void winograd_decode_any(const int alpha, const int m, const winograd_result *result) {
    if (result->tile->rows == m && result->tile->columns == m)
        winograd_decode_tile(alpha, m, m, m, result);
    else
        winograd_decode_tile(alpha, m, result->tile->rows, result->tile->columns, result);
}

/* A tile of one row or one column, whose outputs are `y_row` floats apart. */
NNS_INLINE void winograd_decode_line(const int alpha, const int m, const winograd_result *result) {
    const int count = result->tile->rows * result->tile->columns;
    nns_vec terms[WINOGRAD_MAX_ALPHA], sums[WINOGRAD_MAX_OUTPUTS];
    COMPUTE_FOR(j, alpha) terms[j] = nns_load(result->m + j * result->m_position);
    winograd_output(alpha, m, terms, sums);
    winograd_store(m, count, sums, result, result->residual, result->y, result->y_row);
    winograd_second_pass(m, count, NNS_BLOCK, result);
}

#endif
