/* Direct convolution that reads a plain NCHW tensor with few channels (a network's first layer) and writes blocked. The
 * input is always float32, whatever the type of the other tensors.
 *
 * Macros: PIXELS, VECTORS, STRIDE_W, REACH (see tile.cl). Work items: (range of tiles, group of VECTORS output blocks, image).
 *
 * Weights: [output group][channel][KH][KW][VECTORS][B output lanes]. No groups.
 */
#include "common.cl"
#include "tile.cl"

#define TAP (VECTORS * B)

#define ACCUMULATE(space, row)                                                                      \
    {                                                                                               \
        const space float *from = (row);                                                            \
        weights_at tap = taps;                                                                      \
        for (int kx = 0; kx < kernel_w; kx++, from += dilation_w, tap += TAP) {                     \
            floatb w[VECTORS];                                                                      \
            UNROLL for (int v = 0; v < VECTORS; v++)                                                \
                w[v] = READ_WEIGHTS(READ, weights, tap + v * B);                                    \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                               \
                UNROLL for (int v = 0; v < VECTORS; v++)                                            \
                    sum[p][v] = fma(w[v], (floatb)(from[p * STRIDE_W]), sum[p][v]);                 \
            }                                                                                       \
        }                                                                                           \
    }

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int channels, height, width, out_blocks, out_height, out_width, kernel_h, kernel_w, stride_h, dilation_h, dilation_w;
    int pad_top, pad_left, tiles_per_item, has_residual, kind, a, b;
} conv_planar_arguments;

PART void convolve(const global float *x_buffer, weights_in weights, const global number *bias_buffer,
                   const global number *residual_buffer, global number *y_buffer, const conv_planar_arguments given,
                   int item, int group, int image)
{
    const int channels = given.channels, height = given.height, width = given.width, out_blocks = given.out_blocks;
    const int out_height = given.out_height, out_width = given.out_width;
    const int kernel_h = given.kernel_h, kernel_w = given.kernel_w, dilation_h = given.dilation_h, dilation_w = given.dilation_w;
    const int segment_size = (PIXELS - 1) * STRIDE_W + (kernel_w - 1) * dilation_w + 1;
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = item * given.tiles_per_item;
    const int tile_end = min(tile_begin + given.tiles_per_item, tiles_x * out_height);

    const global float *x = x_buffer + given.x_offset + (long)image * channels * height * width;
    const weights_at weight = WEIGHTS_AT(weights, given.weight_offset + (long)group * channels * kernel_h * kernel_w * TAP);
    const global number *bias = bias_buffer + given.bias_offset + group * VECTORS * B;
    const long plane = (long)out_height * out_width * B;
    const long y_first = ((long)image * out_blocks + group * VECTORS) * plane;

    for (int tile = tile_begin; tile < tile_end; tile++) {
        const int oy = tile / tiles_x, ox = tile % tiles_x * PIXELS;
        const int x0 = ox * STRIDE_W - given.pad_left, y0 = oy * given.stride_h - given.pad_top;
        const int ky_begin = y0 < 0 ? (-y0 + dilation_h - 1) / dilation_h : 0;
        const int ky_end = min(kernel_h, (height - y0 + dilation_h - 1) / dilation_h);
        const int inside = x0 >= 0 && x0 + segment_size <= width;

        floatb sum[PIXELS][VECTORS];
        start_tile(sum, bias);

        for (int channel = 0; channel < channels; channel++) {
            for (int ky = ky_begin; ky < ky_end; ky++) {
                const weights_at taps = weight + (long)(channel * kernel_h + ky) * kernel_w * TAP;
                const global float *row = x + ((long)channel * height + y0 + ky * dilation_h) * width;
                if (inside) {
                    ACCUMULATE(global, row + x0)
                } else {
                    float segment[SEGMENT];
                    for (int i = 0; i < segment_size; i++) {
                        const int ix = x0 + i;
                        segment[i] = ix >= 0 && ix < width ? row[ix] : 0.0f;
                    }
                    ACCUMULATE(private, segment)
                }
            }
        }

        const long at = y_first + ((long)oy * out_width + ox) * B;
        finish_tile(sum, residual_buffer + given.residual_offset + at, y_buffer + given.y_offset + at, plane, 0,
                    min(PIXELS, out_width - ox), min(VECTORS, out_blocks - group * VECTORS), given.has_residual, given.kind,
                    given.a, given.b);
    }
}

kernel void conv_planar(const global float *x_buffer, weights_in weights, const global number *bias_buffer,
                        const global number *residual_buffer, global number *y_buffer, const conv_planar_arguments given)
{
    convolve(x_buffer, weights, bias_buffer, residual_buffer, y_buffer, given, get_global_id(0), get_global_id(1),
             get_global_id(2));
}
