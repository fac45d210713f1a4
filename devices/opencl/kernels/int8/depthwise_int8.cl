/* Depthwise convolution of int8: one kernel per channel; a vector holds B channels of one pixel.
 *
 * Macros: PIXELS, STRIDE_W, KERNEL_W, DILATION_W. Work items: (range of tiles, channel block, image).
 *
 * Weights: [block][KH][KERNEL_W][B]. Pixels outside the image hold the input's zero point (see conv_int8.cl).
 */
#include "int8.cl"

#define SEGMENT ((PIXELS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

typedef struct {
    int x_offset, weight_offset, bias_offset, multiplier_offset, residual_offset, y_offset;
    int blocks, height, width, out_height, out_width, kernel_h, stride_h, dilation_h, pad_top, pad_left, tiles_per_item, x_zero;
    int zero, low, high, residual_scale, residual_zero, sum_scale, sum_zero, has_residual;
} depthwise_int8_arguments;

/* Adds the products of one input row, from column x0 on, and one row of taps to the tile. Columns [begin, end) are inside. */
INLINE void add_row(intb sum[PIXELS], const global char *row, const global char *taps, int x0, int begin, int end, int x_zero)
{
    intb w[KERNEL_W];
    UNROLL for (int kx = 0; kx < KERNEL_W; kx++)
        w[kx] = TO_INTS(LOAD_BYTES(taps + kx * B));
    const int is_inside = begin <= x0 && x0 + SEGMENT <= end;
    UNROLL for (int i = 0; i < SEGMENT; i++) {
        intb x = (intb)(x_zero);
        if (is_inside || (x0 + i >= begin && x0 + i < end))
            x = TO_INTS(LOAD_BYTES(row + ((long)x0 + i) * B));
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
            const int from = i - kx * DILATION_W;
            if (from >= 0 && from % STRIDE_W == 0 && from / STRIDE_W < PIXELS)
                sum[from / STRIDE_W] += w[kx] * x;
        }
    }
}

PART void convolve(const global char *x_buffer, const global char *weight_buffer, const global int *bias_buffer,
                   const global float *multiplier_buffer, const global char *residual_buffer, global char *y_buffer,
                   const depthwise_int8_arguments given, int item, int block, int image)
{
    const int blocks = given.blocks, height = given.height, width = given.width, out_height = given.out_height;
    const int out_width = given.out_width, kernel_h = given.kernel_h;
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = item * given.tiles_per_item;
    const int tile_end = min(tile_begin + given.tiles_per_item, tiles_x * out_height);

    const global char *x = x_buffer + given.x_offset + ((long)image * blocks + block) * height * width * B;
    const global char *weight = weight_buffer + given.weight_offset + (long)block * kernel_h * KERNEL_W * B;
    const intb bias = NNS_JOIN(vload, NNS_BLOCK)(block, bias_buffer + given.bias_offset);
    const floatb steps = NNS_JOIN(vload, NNS_BLOCK)(block, multiplier_buffer + given.multiplier_offset);
    const long y_first = ((long)image * blocks + block) * out_height * out_width * B;
    const int8 rounding = ROUNDING_OF(given);

    for (int tile = tile_begin; tile < tile_end; tile++) {
        const int oy = tile / tiles_x, ox = tile % tiles_x * PIXELS;
        const int x0 = ox * STRIDE_W - given.pad_left;
        intb sum[PIXELS];
        UNROLL for (int p = 0; p < PIXELS; p++)
            sum[p] = bias;
        for (int ky = 0; ky < kernel_h; ky++) {
            const int iy = oy * given.stride_h - given.pad_top + ky * given.dilation_h;
            const int is_row = iy >= 0 && iy < height;
            add_row(sum, x + (long)iy * width * B, weight + ky * KERNEL_W * B, x0, 0, is_row ? width : 0, given.x_zero);
        }
        const long at = y_first + ((long)oy * out_width + ox) * B;
        const int pixels = min(PIXELS, out_width - ox);
        UNROLL for (int p = 0; p < PIXELS; p++) {
            if (p < pixels) {
                charb addend = (charb)(0);
                if (given.has_residual)
                    addend = LOAD_BYTES(residual_buffer + given.residual_offset + at + p * B);
                STORE_BYTES(results_of(sum[p], steps, addend, rounding), y_buffer + given.y_offset + at + p * B);
            }
        }
    }
}

kernel void depthwise_int8(const global char *x_buffer, const global char *weight_buffer, const global int *bias_buffer,
                           const global float *multiplier_buffer, const global char *residual_buffer, global char *y_buffer,
                           const depthwise_int8_arguments given)
{
    convolve(x_buffer, weight_buffer, bias_buffer, multiplier_buffer, residual_buffer, y_buffer, given, get_global_id(0),
             get_global_id(1), get_global_id(2));
}
