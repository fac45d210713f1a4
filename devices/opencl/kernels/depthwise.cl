/* Depthwise convolution: every channel has one kernel of its own, so that one vector holds B channels of one pixel.
 *
 * Macros: PIXELS, STRIDE_W, REACH (see tile.cl). Work items: (range of tiles, channel block, image).
 *
 * Weights: [block][KH][KW][B].
 */
#include "common.cl"
#define VECTORS 1
#include "tile.cl"


#define ACCUMULATE(row)                                                                             \
    for (int kx = 0; kx < kernel_w; kx++) {                                                  \
        const floatb w = LOAD(taps + kx * B);                                                       \
        UNROLL for (int p = 0; p < PIXELS; p++)                                                     \
            sum[p][0] = fma(w, LOAD((row) + (p * STRIDE_W + kx * dilation_w) * B), sum[p][0]);      \
    }

kernel void conv_depthwise(const global float *x_buffer, int x_offset, const global float *weight_buffer, int weight_offset,
                           const global float *bias_buffer, int bias_offset, const global float *residual_buffer,
                           int residual_offset, global float *y_buffer, int y_offset,
                           int blocks, int height, int width, int out_height, int out_width, int kernel_h, int kernel_w,
                           int stride_h, int dilation_h, int dilation_w, int pad_top, int pad_left, int tiles_per_item,
                           int has_residual, int kind, int a, int b)
{
    const int segment_size = (PIXELS - 1) * STRIDE_W + (kernel_w - 1) * dilation_w + 1;
    const int block = get_global_id(1), image = get_global_id(2);
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = (int)get_global_id(0) * tiles_per_item;
    const int tile_end = min(tile_begin + tiles_per_item, tiles_x * out_height);

    const global float *x = x_buffer + x_offset + ((long)image * blocks + block) * height * width * B;
    const global float *weight = weight_buffer + weight_offset + (long)block * kernel_h * kernel_w * B;
    const global float *bias = bias_buffer + bias_offset + block * B;
    const long y_first = ((long)image * blocks + block) * out_height * out_width * B;

    for (int tile = tile_begin; tile < tile_end; tile++) {
        const int oy = tile / tiles_x, ox = tile % tiles_x * PIXELS;
        const int x0 = ox * STRIDE_W - pad_left, y0 = oy * stride_h - pad_top;
        const int ky_begin = y0 < 0 ? (-y0 + dilation_h - 1) / dilation_h : 0;
        const int ky_end = min(kernel_h, (height - y0 + dilation_h - 1) / dilation_h);
        const int inside = x0 >= 0 && x0 + segment_size <= width;

        floatb sum[PIXELS][VECTORS];
        start_tile(sum, bias);

        for (int ky = ky_begin; ky < ky_end; ky++) {
            const global float *taps = weight + ky * kernel_w * B;
            const global float *row = x + (long)(y0 + ky * dilation_h) * width * B;
            if (inside) {
                const global float *from = row + x0 * B;
                ACCUMULATE(from)
            } else {
                float segment[SEGMENT * B];
                pad_segment(segment, row, x0, width, segment_size);
                ACCUMULATE(segment)
            }
        }

        const long at = y_first + ((long)oy * out_width + ox) * B;
        finish_tile(sum, residual_buffer + residual_offset + at, y_buffer + y_offset + at, 0, min(PIXELS, out_width - ox),
                    1, has_residual, kind, a, b);
    }
}
