/* Direct convolution of int8 in the blocked layout: a tile of PIXELS neighbouring output pixels times VECTORS vectors of output
 * channels lives in registers while all taps and quads of input channels stream by.
 *
 * Macros: PIXELS, VECTORS, STRIDE_W. Work items: (range of tiles, group of VECTORS vectors of outputs, image).
 *
 * Weights: [output group][span input blocks][KH][KW][quad of the block][VECTORS][B outputs][4], zero for channels outside the
 * channel group of the output. With groups, an output group reads only the `span` input blocks that its channels need, from the
 * first one on. `outside` is a block of the input's zero point: what pixels outside the image stand for. The bias has gone into
 * bias and zero point (`corrected_bias`), so that such pixels count.
 */
#include "int8.cl"

#define OUTPUTS (VECTORS * B) /* output channels of a group of vectors */
#define STEP (OUTPUTS * QUAD) /* bytes of the weights of a quad */
#define TAP (B * OUTPUTS)

typedef struct {
    int x_offset, weight_offset, bias_offset, multiplier_offset, outside_offset, residual_offset, y_offset;
    int channels, height, width, out_channels, out_height, out_width, kernel_h, kernel_w, stride_h, dilation_h, dilation_w;
    int pad_top, pad_left, group_in, group_out, span, tiles_per_item;
    int zero, low, high, residual_scale, residual_zero, sum_scale, sum_zero, has_residual;
} conv_int8_arguments;

/* Adds quads [first, last) of one tap. AT(p) points to the block of pixel p. */
#define ADD_QUADS(AT)                                                                               \
    for (int quad = first; quad < last; quad++) {                                                   \
        uintb w[VECTORS];                                                                           \
        UNROLL for (int v = 0; v < VECTORS; v++)                                                    \
            w[v] = LOAD_WEIGHTS(tap + quad * STEP + v * B * QUAD);                                  \
        UNROLL for (int part = 0; part < QUAD_PARTS; part++) {                                      \
            quad_weight of_part[VECTORS];                                                           \
            UNROLL for (int v = 0; v < VECTORS; v++)                                                \
                of_part[v] = PART_OF_WEIGHTS(w[v], part);                                           \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                               \
                const quad_input one = PART_OF_INPUT(AT(p) + quad * QUAD, part);                    \
                UNROLL for (int v = 0; v < VECTORS; v++)                                            \
                    sum[p][v] = multiply_add(sum[p][v], one, of_part[v]);                           \
            }                                                                                       \
        }                                                                                           \
    }
#define IN_PLACE(p) (from + (p) * STRIDE_W * B)
#define AT_EDGE(p) (each[p])

PART void convolve(const global char *x_buffer, const global char *weight_buffer, const global int *bias_buffer,
                   const global float *multiplier_buffer, const global char *outside_buffer,
                   const global char *residual_buffer, global char *y_buffer, const conv_int8_arguments given, int item,
                   int group, int image)
{
    const int height = given.height, width = given.width, out_height = given.out_height, out_width = given.out_width;
    const int kernel_h = given.kernel_h, kernel_w = given.kernel_w, out_channels = given.out_channels;
    const int dilation_h = given.dilation_h, dilation_w = given.dilation_w, group_in = given.group_in, group_out = given.group_out;
    const int reach = (PIXELS - 1) * STRIDE_W + 1;
    const int in_blocks = (given.channels + B - 1) / B, out_blocks = (out_channels + B - 1) / B;
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = item * given.tiles_per_item;
    const int tile_end = min(tile_begin + given.tiles_per_item, tiles_x * out_height);

    const int channel_first = group * OUTPUTS / group_out * group_in;
    const int channel_last = (min((group + 1) * OUTPUTS, out_channels) - 1) / group_out * group_in + group_in;
    const int block_first = channel_first / B, block_last = (channel_last - 1) / B;

    const global char *x = x_buffer + given.x_offset + (long)image * in_blocks * height * width * B;
    const global char *weight = weight_buffer + given.weight_offset + (long)group * given.span * kernel_h * kernel_w * TAP;
    const global int *bias = bias_buffer + given.bias_offset + group * OUTPUTS;
    const global float *multipliers = multiplier_buffer + given.multiplier_offset + group * OUTPUTS;
    const global char *outside = outside_buffer + given.outside_offset;
    const long plane = (long)out_height * out_width * B;
    const long y_first = ((long)image * out_blocks + group * VECTORS) * plane;
    const int vectors = min(VECTORS, out_blocks - group * VECTORS);
    const int8 rounding = ROUNDING_OF(given);

    for (int tile = tile_begin; tile < tile_end; tile++) {
        const int oy = tile / tiles_x, ox = tile % tiles_x * PIXELS;
        intb sum[PIXELS][VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            const intb start = NNS_JOIN(vload, NNS_BLOCK)(v, bias);
            UNROLL for (int p = 0; p < PIXELS; p++)
                sum[p][v] = start;
        }

        for (int block = block_first; block <= block_last; block++) {
            const int first = block == block_first ? (channel_first - block * B) / QUAD : 0;
            const int last = block == block_last ? (channel_last - block * B + QUAD - 1) / QUAD : B / QUAD;
            for (int ky = 0; ky < kernel_h; ky++) {
                const int iy = oy * given.stride_h - given.pad_top + ky * dilation_h;
                const int is_row = iy >= 0 && iy < height;
                const global char *row = x + ((long)block * height + iy) * width * B;
                for (int kx = 0; kx < kernel_w; kx++) {
                    const int ix = ox * STRIDE_W - given.pad_left + kx * dilation_w;
                    const global char *tap = weight + ((long)((block - block_first) * kernel_h + ky) * kernel_w + kx) * TAP;
                    if (is_row && ix >= 0 && ix + reach <= width) {
                        const global char *from = row + (long)ix * B;
                        ADD_QUADS(IN_PLACE)
                    } else {
                        const global char *each[PIXELS];
                        UNROLL for (int p = 0; p < PIXELS; p++) {
                            const int at = ix + p * STRIDE_W;
                            each[p] = is_row && at >= 0 && at < width ? row + (long)at * B : outside;
                        }
                        ADD_QUADS(AT_EDGE)
                    }
                }
            }
        }

        const int pixels = min(PIXELS, out_width - ox);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            if (v < vectors) {
                const floatb steps = NNS_JOIN(vload, NNS_BLOCK)(v, multipliers);
                const long at = y_first + v * plane + ((long)oy * out_width + ox) * B;
                UNROLL for (int p = 0; p < PIXELS; p++) {
                    if (p < pixels) {
                        charb addend = (charb)(0);
                        if (given.has_residual)
                            addend = LOAD_BYTES(residual_buffer + given.residual_offset + at + p * B);
                        STORE_BYTES(results_of(sum[p][v], steps, addend, rounding), y_buffer + given.y_offset + at + p * B);
                    }
                }
            }
        }
    }
}

kernel void conv_int8(const global char *x_buffer, const global char *weight_buffer, const global int *bias_buffer,
                      const global float *multiplier_buffer, const global char *outside_buffer,
                      const global char *residual_buffer, global char *y_buffer, const conv_int8_arguments given)
{
    convolve(x_buffer, weight_buffer, bias_buffer, multiplier_buffer, outside_buffer, residual_buffer, y_buffer, given,
             get_global_id(0), get_global_id(1), get_global_id(2));
}
