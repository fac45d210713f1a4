/* Depthwise convolution: one kernel per channel; a vector holds B channels of one pixel.
 *
 * Macros: PIXELS, STRIDE_W, KERNEL_W, DILATION_W. Work items: (range of tiles, channel block, image).
 *
 * Weights: [block][KH][KERNEL_W][B].
 */
#include "common.cl"
#define VECTORS 1
#define REACH ((KERNEL_W - 1) * DILATION_W + 1)
#include "tile.cl"

/* Adds the products of one input row, from column x0 on, and one row of taps to the tile. Every pixel is loaded once. */
static inline void add_row(floatb sum[PIXELS][VECTORS], const global number *row, weights_in weights, weights_at taps, int x0,
                           int width, int inside)
{
    floatb w[KERNEL_W];
    UNROLL for (int kx = 0; kx < KERNEL_W; kx++)
        w[kx] = READ_WEIGHTS(READ, weights, taps + kx * B);
    UNROLL for (int i = 0; i < SEGMENT; i++) {
        floatb x = (floatb)(0.0f);
        if (inside || (x0 + i >= 0 && x0 + i < width))
            x = READ(row + ((long)x0 + i) * B);
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
            const int from = i - kx * DILATION_W;
            if (from >= 0 && from % STRIDE_W == 0 && from / STRIDE_W < PIXELS)
                sum[from / STRIDE_W][0] = fma(w[kx], x, sum[from / STRIDE_W][0]);
        }
    }
}

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int blocks, height, width, out_height, out_width, kernel_h, stride_h, dilation_h, pad_top, pad_left;
    int tiles_per_item, has_residual, kind, a, b;
} conv_depthwise_arguments;

PART void convolve(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                   const global number *residual_buffer, global number *y_buffer, const conv_depthwise_arguments given,
                   int item, int block, int image)
{
    const int blocks = given.blocks, height = given.height, width = given.width, out_height = given.out_height;
    const int out_width = given.out_width, kernel_h = given.kernel_h, dilation_h = given.dilation_h;
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = item * given.tiles_per_item;
    const int tile_end = min(tile_begin + given.tiles_per_item, tiles_x * out_height);

    const global number *x = x_buffer + given.x_offset + ((long)image * blocks + block) * height * width * B;
    const weights_at weight = WEIGHTS_AT(weights, given.weight_offset + (long)block * kernel_h * KERNEL_W * B);
    const global number *bias = bias_buffer + given.bias_offset + block * B;
    const long y_first = ((long)image * blocks + block) * out_height * out_width * B;

    int oy = tile_begin / tiles_x, ox = tile_begin % tiles_x * PIXELS;
    for (int tile = tile_begin; tile < tile_end; tile++) {
        const int x0 = ox * STRIDE_W - given.pad_left, y0 = oy * given.stride_h - given.pad_top;
        const int ky_begin = y0 < 0 ? (-y0 + dilation_h - 1) / dilation_h : 0;
        const int ky_end = min(kernel_h, (height - y0 + dilation_h - 1) / dilation_h);
        const int inside = x0 >= 0 && x0 + SEGMENT <= width;

        floatb sum[PIXELS][VECTORS];
        start_tile(sum, bias);

        for (int ky = ky_begin; ky < ky_end; ky++) {
            const global number *row = x + (long)(y0 + ky * dilation_h) * width * B;
            add_row(sum, row, weights, weight + ky * KERNEL_W * B, x0, width, inside);
        }

        const long at = y_first + ((long)oy * out_width + ox) * B;
        finish_tile(sum, residual_buffer + given.residual_offset + at, y_buffer + given.y_offset + at, 0, 0,
                    min(PIXELS, out_width - ox), 1, given.has_residual, given.kind, given.a, given.b);
        ox += PIXELS;
        if (ox >= out_width) {
            ox = 0;
            oy++;
        }
    }
}

kernel void conv_depthwise(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                           const global number *residual_buffer, global number *y_buffer,
                           const conv_depthwise_arguments given)
{
    convolve(x_buffer, weights, bias_buffer, residual_buffer, y_buffer, given, get_global_id(0), get_global_id(1),
             get_global_id(2));
}
