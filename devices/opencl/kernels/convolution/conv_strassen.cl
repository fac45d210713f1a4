/* 1×1 convolutions of blocked tensors by one step of Strassen's algorithm, which saves an eighth of the multiplications, on
 * tiles that stay in the inner caches. For devices on the CPU.
 *
 * With the pixels in two ranges, the input channels in two halves and the output channels in two halves, the product X·W of
 * 2 × 2 by 2 × 2 quarters takes seven products of quarters instead of eight. In Winograd's form, with prepared sums of weights:
 *
 *     S1 = X21 + X22    S2 = S1 - X11    S3 = X11 - X21    S4 = X12 - S2
 *     P1 = X11·W11      P2 = X12·W21     P3 = S4·W22       P4 = X22·(W11 - W12 + W22 - W21)
 *     P5 = S1·(W12 - W11)                P6 = S2·(W11 - W12 + W22)                P7 = S3·(W22 - W12)
 *     Y11 = P1 + P2     U2 = P1 + P6     U3 = U2 + P7
 *     Y12 = U2 + P5 + P3                 Y21 = U3 - P4     Y22 = U3 + P5
 *
 * Sums of products are free if one product accumulates in the registers of another.
 *
 * Pixels are divided into tiles of about equal size, and each tile into two ranges of PIXELS. The second range may begin inside
 * the first; the common pixels are then written twice. Input channels: two halves of full blocks, then the rest. Output
 * vectors: pairs of panels of VECTORS, one in each half, then single vectors.
 *
 * Macros: PIXELS, VECTORS. Work items: (range of groups of tiles, range of panels, image). Each has its own scratch, a
 * multiple of B floats: [tile of a group][sum][block of a half][pixel][lane], then three tiles of results.
 *
 * Weights of a pair: [channel][VECTORS][B] for X11, X12, the rest (first half of outputs); S2, S3, X22, the rest again; S1, S4,
 * the rest (second half of outputs). Weights of a single vector: [channel][B].
 */
#include "common.cl"
#define STRIDE_W 1
#define REACH 1
#include "tile.cl"

#define AHEAD (16 * VECTORS * B) /* numbers of weights */
#define RESULT (PIXELS * VECTORS * B) /* floats of a tile's results */

/* A matrix of pixels × channels: its first pixel in the first block, and floats between blocks. */
typedef struct {
    const global float *at;
    long plane;
} matrix;

/* A tile's two ranges of pixels: all channels starting at the first or second half, and sums S1 … S4 of halves. */
typedef struct {
    matrix upper[2], lower[2], sums[4];
    int half_lanes, rest_lanes;
} operands;

/* Destination and epilogue of results. */
typedef struct {
    global float *to;
    const global float *residual, *bias;
    long plane;
    int has_residual, kind, a, b;
} results;

/* Defines a function that computes start + more + x · w over `lanes` channels for COUNT output vectors, and writes it to `save`,
 * or to the results if that is NULL. `start` and `more` may be NULL. */
#define ACCUMULATE(NAME, COUNT)                                                                                       \
    PART void NAME(const global float *start, const global float *more, matrix x, int lanes, const global float *w,   \
                   global float *save, const results *r)                                                              \
    {                                                                                                                 \
        floatb sum[PIXELS][VECTORS];                                                                                  \
        UNROLL for (int p = 0; p < PIXELS; p++) {                                                                     \
            UNROLL for (int v = 0; v < COUNT; v++)                                                                    \
                sum[p][v] = (floatb)(0.0f);                                                                           \
        }                                                                                                             \
        if (start) {                                                                                                  \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                                                 \
                UNROLL for (int v = 0; v < COUNT; v++)                                                                \
                    sum[p][v] = LOAD(start + (p * VECTORS + v) * B);                                                  \
            }                                                                                                         \
        }                                                                                                             \
        if (more) {                                                                                                   \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                                                 \
                UNROLL for (int v = 0; v < COUNT; v++)                                                                \
                    sum[p][v] += LOAD(more + (p * VECTORS + v) * B);                                                  \
            }                                                                                                         \
        }                                                                                                             \
        for (; lanes > 0; lanes -= B, x.at += x.plane) {                                                              \
            const int last = min(lanes, B);                                                                           \
            const global float *from = x.at;                                                                          \
            for (int lane = 0; lane < last; lane++, from++, w += COUNT * B) {                                         \
                floatb weight[COUNT];                                                                                 \
                UNROLL for (int v = 0; v < COUNT; v++) {                                                              \
                    weight[v] = LOAD(w + v * B);                                                                      \
                    PREFETCH(w + AHEAD + v * B);                                                                      \
                }                                                                                                     \
                UNROLL for (int p = 0; p < PIXELS; p++) {                                                             \
                    UNROLL for (int v = 0; v < COUNT; v++)                                                            \
                        sum[p][v] = fma(weight[v], (floatb)(from[p * B]), sum[p][v]);                                 \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        if (save) {                                                                                                   \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                                                 \
                UNROLL for (int v = 0; v < COUNT; v++)                                                                \
                    STORE_BLOCK(sum[p][v], save + (p * VECTORS + v) * B);                                             \
            }                                                                                                         \
            return;                                                                                                   \
        }                                                                                                             \
        UNROLL for (int v = 0; v < COUNT; v++) {                                                                      \
            const floatb bias = LOAD(r->bias + v * B);                                                                \
            UNROLL for (int p = 0; p < PIXELS; p++)                                                                   \
                sum[p][v] += bias;                                                                                    \
        }                                                                                                             \
        finish_tile(sum, r->residual, r->to, r->plane, 0, PIXELS, COUNT, r->has_residual, r->kind, r->a, r->b);       \
    }

ACCUMULATE(add_panel, VECTORS)
ACCUMULATE(add_vector, 1)

/* All products of a pair of panels; `saved` holds three tiles of results. */
static inline void multiply_pair(const operands *x, results r[2][2], global float *saved, const global float *w)
{
    const int half_lanes = x->half_lanes, rest_lanes = x->rest_lanes;
    const int half_size = half_lanes * VECTORS * B, rest_size = rest_lanes * VECTORS * B;
    const long half_blocks = half_lanes / B;
    global float *p1 = saved, *u = p1 + RESULT, *p5 = u + RESULT;
    add_panel(0, 0, x->upper[0], half_lanes, w, p1, 0);
    w += half_size;
    add_panel(p1, 0, x->upper[1], half_lanes + rest_lanes, w, 0, &r[0][0]);
    w += half_size + rest_size;
    add_panel(p1, 0, x->sums[1], half_lanes, w, p1, 0); /* U2 */
    w += half_size;
    add_panel(p1, 0, x->sums[2], half_lanes, w, u, 0); /* U3 */
    w += half_size;
    add_panel(u, 0, x->lower[1], half_lanes + rest_lanes, w, 0, &r[1][0]);
    w += half_size + rest_size;
    add_panel(0, 0, x->sums[0], half_lanes, w, p5, 0);
    w += half_size;
    if (rest_lanes) {
        const matrix upper = {x->upper[1].at + half_blocks * x->upper[1].plane, x->upper[1].plane};
        const matrix lower = {x->lower[1].at + half_blocks * x->lower[1].plane, x->lower[1].plane};
        add_panel(p1, p5, x->sums[3], half_lanes, w, p1, 0);
        w += half_size;
        add_panel(p1, 0, upper, rest_lanes, w, 0, &r[0][1]);
        add_panel(p5, u, lower, rest_lanes, w, 0, &r[1][1]);
    } else {
        add_panel(p1, p5, x->sums[3], half_lanes, w, 0, &r[0][1]);
        add_panel(p5, u, x->lower[0], 0, w, 0, &r[1][1]);
    }
}

/* Computes the tile's sums at `to`. */
PART void sum_inputs(const operands *x, global float *to)
{
    const int half_blocks = x->half_lanes / B;
    const long size = (long)half_blocks * PIXELS * B;
    for (int block = 0; block < half_blocks; block++, to += PIXELS * B) {
        const global float *x11 = x->upper[0].at + block * x->upper[0].plane, *x12 = x->upper[1].at + block * x->upper[1].plane;
        const global float *x21 = x->lower[0].at + block * x->lower[0].plane, *x22 = x->lower[1].at + block * x->lower[1].plane;
        for (int i = 0; i < PIXELS * B; i += B) {
            const floatb a11 = LOAD(x11 + i), a21 = LOAD(x21 + i), s1 = a21 + LOAD(x22 + i), s2 = s1 - a11;
            STORE_BLOCK(s1, to + i);
            STORE_BLOCK(s2, to + size + i);
            STORE_BLOCK(a11 - a21, to + 2 * size + i);
            STORE_BLOCK(LOAD(x12 + i) - s2, to + 3 * size + i);
        }
    }
}

/* The first pixels of both ranges of tile `index` of `tiles`. */
static inline int2 ranges_of(int index, int tiles, int pixels)
{
    const int begin = (int)((long)index * pixels / tiles), end = (int)((long)(index + 1) * pixels / tiles);
    return (int2)(begin, end - PIXELS);
}

/* The operands of a tile; `x` is the image and `sums` the tile's sums. */
static inline operands operands_of(const global float *x, int2 first, int channels, int pixels, const global float *sums)
{
    const int half_blocks = channels / B / 2;
    const long plane = (long)pixels * B;
    operands result;
    result.half_lanes = half_blocks * B;
    result.rest_lanes = channels - 2 * half_blocks * B;
    for (int range = 0; range < 2; range++) {
        const matrix left = {x + (long)(range ? first.y : first.x) * B, plane}, right = {left.at + half_blocks * plane, plane};
        (range ? result.lower : result.upper)[0] = left;
        (range ? result.lower : result.upper)[1] = right;
    }
    for (int i = 0; i < 4; i++) {
        const matrix sum = {sums + (long)i * half_blocks * PIXELS * B, PIXELS * B};
        result.sums[i] = sum;
    }
    return result;
}

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset, scratch_offset;
    int channels, pixels, out_channels, tiles, tiles_per_group, groups_per_item, panels_per_item, scratch_item;
    int has_residual, kind, a, b;
} conv_strassen_arguments;

kernel void conv_strassen(const global float *x_buffer, const global float *weight_buffer, const global float *bias_buffer,
                          const global float *residual_buffer, global float *y_buffer, global float *scratch_buffer,
                          const conv_strassen_arguments given)
{
    const int channels = given.channels, pixels = given.pixels, tiles = given.tiles, tiles_per_group = given.tiles_per_group;
    const int in_blocks = (channels + B - 1) / B, out_blocks = (given.out_channels + B - 1) / B, half_blocks = channels / B / 2;
    const int pairs = out_blocks / (2 * VECTORS), panels = pairs + out_blocks - 2 * VECTORS * pairs;
    const long pair_size = (7L * half_blocks * B + 3L * (channels - 2 * half_blocks * B)) * VECTORS * B;
    const long plane = (long)pixels * B, tile_sums = 4L * half_blocks * PIXELS * B;
    const int image = get_global_id(2), panel_begin = (int)get_global_id(1) * given.panels_per_item;
    const int panel_end = min(panel_begin + given.panels_per_item, panels);
    const long item = ((long)image * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
    const global float *x = x_buffer + given.x_offset + image * in_blocks * plane;
    const global float *weight = weight_buffer + given.weight_offset;
    global float *sums = scratch_buffer + given.scratch_offset + item * given.scratch_item;
    global float *saved = sums + tiles_per_group * tile_sums;

    const int first_tile = (int)get_global_id(0) * given.groups_per_item * tiles_per_group;
    const int last_tile = min(first_tile + given.groups_per_item * tiles_per_group, tiles);
    for (int begin = first_tile; begin < last_tile; begin += tiles_per_group) {
        const int end = min(begin + tiles_per_group, last_tile);
        for (int panel = panel_begin; panel < panel_end; panel++) {
            const int paired = panel < pairs;
            const int vector = paired ? panel * VECTORS : 2 * pairs * VECTORS + panel - pairs;
            for (int tile = begin; tile < end; tile++) {
                const int2 first = ranges_of(tile, tiles, pixels);
                global float *mine = sums + (tile - begin) * tile_sums;
                const operands from = operands_of(x, first, channels, pixels, mine);
                if (panel == panel_begin)
                    sum_inputs(&from, mine);
                results r[2][2]; /* by range of pixels and half of the outputs */
                for (int side = 0; side < 2; side++) {
                    const int block = vector + (paired ? side * pairs * VECTORS : 0);
                    for (int range = 0; range < 2; range++) {
                        const long at = ((long)image * out_blocks + block) * plane + (range ? first.y : first.x) * B;
                        const results to = {y_buffer + given.y_offset + at, residual_buffer + given.residual_offset + at,
                                            bias_buffer + given.bias_offset + block * B, plane, given.has_residual,
                                            given.kind, given.a, given.b};
                        r[range][side] = to;
                    }
                }
                if (paired) {
                    multiply_pair(&from, r, saved, weight + panel * pair_size);
                } else {
                    const global float *w = weight + pairs * pair_size + (long)(panel - pairs) * channels * B;
                    add_vector(0, 0, from.upper[0], channels, w, 0, &r[0][0]);
                    add_vector(0, 0, from.lower[0], channels, w, 0, &r[1][0]);
                }
            }
        }
    }
}
