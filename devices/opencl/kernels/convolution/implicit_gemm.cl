/* Convolution as one matrix product whose operands pass through local memory, without a matrix of patches in global memory
 * (implicit GEMM): outputs × K times K × pixels. For devices that are no CPUs. The output is blocked.
 *
 * A step is DEPTH rows of K: of a blocked input, DEPTH channels at one tap; of a plain input with few channels (PLANAR), DEPTH
 * pairs of a tap and a channel, so that steps are full.
 *
 * Macros: TILE_OUTPUTS, TILE_PIXELS, ITEM_OUTPUTS, ITEM_PIXELS (see gemm_tile.cl); PARTIAL: 1 if the steps are split among work
 * groups, whose sums another kernel adds up; PLANAR; and for a plain input CHANNELS, KERNEL_H and KERNEL_W.
 *
 * Work groups: (tile of pixels across all images, tile of outputs, split of the steps).
 *
 * Weights: [tile of outputs][step][DEPTH][TILE_OUTPUTS], zero beyond the last channel and output. Steps are in the order of
 * [channels / DEPTH][KH][KW], or [KH][KW][channels] by DEPTH.
 */
#include "common.cl"
#include "gemm_tile.cl"

#if PARTIAL
#define result float
#else
#define result number
#endif

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int channels, height, width, out_channels, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w;
    int dilation_h, dilation_w, pad_top, pad_left, pixels, steps, steps_per_split, has_residual, kind, a, b;
} implicit_gemm_arguments;

/* The pixel whose inputs an item fetches in all steps: the first input of its window. */
typedef struct {
    int image, y0, x0;
} gemm_pixel;

static inline gemm_pixel pixel_of(int pixel, const implicit_gemm_arguments given)
{
    const int plane = given.out_height * given.out_width, within = pixel % plane;
    /* A pixel beyond the last has a window above the image. */
    const int y0 = pixel < given.pixels ? within / given.out_width * given.stride_h - given.pad_top : -(1 << 30);
    const gemm_pixel found = {pixel / plane, y0, within % given.out_width * given.stride_w - given.pad_left};
    return found;
}

#if PLANAR

#define source float

typedef struct {
    int k; /* first row of K */
} gemm_step;

static inline gemm_step first_step(int step, const implicit_gemm_arguments given)
{
    const gemm_step at = {step * DEPTH};
    return at;
}

static inline gemm_step next_step(gemm_step at, const implicit_gemm_arguments given)
{
    at.k += DEPTH;
    return at;
}

/* Row `k` of K of a plain image at a pixel. */
INLINE float fetch_one(const global float *x, const gemm_pixel at, int k, const implicit_gemm_arguments given)
{
    const int channel = k % CHANNELS, tap = k / CHANNELS;
    const int iy = at.y0 + tap / KERNEL_W * given.dilation_h, ix = at.x0 + tap % KERNEL_W * given.dilation_w;
    const int inside = k < CHANNELS * KERNEL_H * KERNEL_W && iy >= 0 && iy < given.height && ix >= 0 && ix < given.width;
    return inside ? x[((long)channel * given.height + iy) * given.width + ix] : 0.0f;
}

/* Rows `row` to `row` + 3 of a step. */
INLINE float4 fetch_quad(const global float *x, const gemm_pixel at, const gemm_step step, int row,
                         const implicit_gemm_arguments given)
{
    const int k = step.k + row;
    return (float4)(fetch_one(x, at, k, given), fetch_one(x, at, k + 1, given), fetch_one(x, at, k + 2, given),
                    fetch_one(x, at, k + 3, given));
}

#define IMAGE_SIZE(given) ((long)CHANNELS * (given).height * (given).width)

#else

#define source number

typedef struct {
    int channel, ky, kx; /* first channel, and tap */
} gemm_step;

static inline gemm_step first_step(int step, const implicit_gemm_arguments given)
{
    const int taps = given.kernel_h * given.kernel_w, tap = step % taps;
    const gemm_step at = {step / taps * DEPTH, tap / given.kernel_w, tap % given.kernel_w};
    return at;
}

static inline gemm_step next_step(gemm_step at, const implicit_gemm_arguments given)
{
    at.kx++;
    if (at.kx == given.kernel_w) {
        at.kx = 0;
        at.ky++;
    }
    if (at.ky == given.kernel_h) {
        at.ky = 0;
        at.channel += DEPTH;
    }
    return at;
}

/* Rows `row` to `row` + 3 of a step: four channels of one pixel of a blocked image. */
INLINE float4 fetch_quad(const global number *x, const gemm_pixel at, const gemm_step step, int row,
                         const implicit_gemm_arguments given)
{
    const int channel = step.channel + row;
    const int iy = at.y0 + step.ky * given.dilation_h, ix = at.x0 + step.kx * given.dilation_w;
    const int inside = channel < given.channels && iy >= 0 && iy < given.height && ix >= 0 && ix < given.width;
    const global number *block = x + (long)(channel / B) * given.height * given.width * B;
    return inside ? READ_QUAD(block + ((long)iy * given.width + ix) * B + channel % B) : (float4)(0.0f);
}

#define IMAGE_SIZE(given) ((long)(((given).channels + B - 1) / B) * (given).height * (given).width * B)

#endif

__attribute__((reqd_work_group_size(ITEMS, 1, 1)))
kernel void implicit_gemm(const global source *x_buffer, const global number *weight_buffer, const global number *bias_buffer,
                          const global number *residual_buffer, global result *y_buffer, const implicit_gemm_arguments given)
{
    local float4 weights[2][WEIGHTS_SIZE], inputs[2][INPUTS_SIZE];
    const int item = get_local_id(0), tile = get_group_id(1), first_pixel = (int)get_group_id(0) * TILE_PIXELS;
    const int begin = (int)get_group_id(2) * given.steps_per_split, end = min(begin + given.steps_per_split, given.steps);
    const int plane = given.out_height * given.out_width, out_blocks = (given.out_channels + B - 1) / B;
    const gemm_pixel at = pixel_of(first_pixel + item % TILE_PIXELS, given);
    const global source *x = x_buffer + given.x_offset + at.image * IMAGE_SIZE(given);
    const global number *weight = weight_buffer + given.weight_offset + ((long)tile * given.steps + begin) * DEPTH * TILE_OUTPUTS;

    float4 sum[ITEM_PIXELS][OUTPUT_QUADS];
    UNROLL for (int i = 0; i < OUTPUT_QUADS; i++) {
        UNROLL for (int p = 0; p < ITEM_PIXELS; p++)
            sum[p][i] = (float4)(0.0f);
    }

    float4 w[WEIGHT_FETCHES], v[INPUT_FETCHES];
    gemm_step next = first_step(begin, given);
    for (int step = begin; step <= end; step++, weight += DEPTH * TILE_OUTPUTS) {
        const int buffer = (step - begin) & 1;
        if (step < end) {
            UNROLL for (int i = 0; i < WEIGHT_FETCHES; i++)
                w[i] = READ_QUAD(weight + (i * ITEMS + item) * 4);
            UNROLL for (int i = 0; i < INPUT_FETCHES; i++)
                v[i] = fetch_quad(x, at, next, (i * (ITEMS / TILE_PIXELS) + item / TILE_PIXELS) * 4, given);
            next = next_step(next, given);
        }
        if (step > begin)
            multiply_step(weights[!buffer], inputs[!buffer], item, sum);
        if (step < end)
            put_step(w, v, item, weights[buffer], inputs[buffer]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    UNROLL for (int p = 0; p < ITEM_PIXELS; p++) {
        const int to = first_pixel + PIXEL_OF(item, p / 4) + p % 4;
        const long to_image = to / plane, to_pixel = to % plane;
        UNROLL for (int i = 0; i < OUTPUT_QUADS; i++) {
            const int output = tile * TILE_OUTPUTS + OUTPUT_OF(item, i);
            if (to < given.pixels && output < out_blocks * B) {
                const long y_at = ((to_image * out_blocks + output / B) * plane + to_pixel) * B + output % B;
#if PARTIAL
                const long split = (long)given.pixels * out_blocks * B;
                *(global float4 *)(y_buffer + given.y_offset + (int)get_group_id(2) * split + y_at) = sum[p][i];
#else
                float4 value = sum[p][i] + READ_QUAD(bias_buffer + given.bias_offset + output);
                if (given.has_residual)
                    value += READ_QUAD(residual_buffer + given.residual_offset + y_at);
                WRITE_QUAD(ACTIVATE_QUAD(value, given.kind, given.a, given.b), y_buffer + given.y_offset + y_at);
#endif
            }
        }
    }
}

#if PARTIAL

typedef struct {
    int sums_offset, bias_offset, residual_offset, y_offset;
    int count, splits, plane, out_blocks, has_residual, kind, a, b;
} add_splits_arguments;

/* Adds up the sums of all splits, `count` numbers each, in the layout of y. Work items: (quad of numbers). */
kernel void add_splits(const global float *sums_buffer, const global number *bias_buffer, const global number *residual_buffer,
                       global number *y_buffer, const add_splits_arguments given)
{
    const long at = (long)get_global_id(0) * 4;
    if (at >= given.count)
        return;
    const int block = at / ((long)given.plane * B) % given.out_blocks;
    const global float *from = sums_buffer + given.sums_offset + at;
    float4 value = READ_QUAD(bias_buffer + given.bias_offset + block * B + at % B);
    for (int split = 0; split < given.splits; split++)
        value += *(const global float4 *)(from + (long)split * given.count);
    if (given.has_residual)
        value += READ_QUAD(residual_buffer + given.residual_offset + at);
    WRITE_QUAD(ACTIVATE_QUAD(value, given.kind, given.a, given.b), y_buffer + given.y_offset + at);
}

#endif
