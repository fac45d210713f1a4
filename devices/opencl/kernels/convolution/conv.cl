/* Direct convolution in the blocked layout (after NeoCPU, section 3.1): a tile of PIXELS neighbouring output pixels times
 * VECTORS vectors of output channels lives in registers while all input channels and taps stream by. If the weights of a group
 * exceed the cache, several passes over the tiles add a range of input blocks each; the output holds their sums in between.
 *
 * Macros: PIXELS, VECTORS, LENGTH, STRIDE_W, REACH (see tile.cl). Everything else is a run-time argument.
 *
 * Work items: (range of tiles, group of VECTORS vectors of outputs, image).
 *
 * Weights: [output group][span input blocks][KH][KW][B input lanes][VECTORS][LENGTH outputs], zero for lanes outside the
 * channel group of the output lane. With groups, an output group reads only the `span` input blocks that its channels
 * need, from the first one on; groups need not be multiples of the block.
 */
#include "common.cl"
#include "tile.cl"

#define OUTPUTS (VECTORS * LENGTH) /* output channels of a group of vectors */
#define TAP (B * OUTPUTS)
/* Numbers of weights from a read to the prefetch that goes with it: from the cache; and from memory, if they are read once. */
#define NEAR_AHEAD 512
#define FAR_AHEAD 8192

/* A CPU broadcasts floats from memory within a multiply-add. Halves need a conversion, which is done once per row segment. */
#define AS_FLOATS (NNS_HALF && NNS_CPU)

/* Multiplies one row segment with all taps of one kernel row, for input lanes [first, last). The tile's addresses are
 * constant offsets from two pointers, which saves registers in the inner loop. */
#define ACCUMULATE(type, ONE, row)                                                                  \
    for (int kx = 0; kx < kernel_w; kx++) {                                                         \
        const type *from = (row) + kx * dilation_w * B + first;                                     \
        weights_at tap = taps + kx * TAP + first * OUTPUTS;                                         \
        for (int lane = first; lane < last; lane++, from++, tap += OUTPUTS) {                       \
            floatl w[VECTORS];                                                                      \
            UNROLL for (int v = 0; v < VECTORS; v++) {                                              \
                w[v] = READ_WEIGHTS(READ_VECTOR, weights, tap + v * LENGTH);                        \
                PREFETCH_WEIGHTS(tap + ahead + v * LENGTH);                                         \
            }                                                                                       \
            UNROLL for (int p = 0; p < PIXELS; p++) {                                               \
                UNROLL for (int v = 0; v < VECTORS; v++)                                            \
                    sum[p][v] = fma(w[v], (floatl)(ONE(from + p * STRIDE_W * B)), sum[p][v]);       \
            }                                                                                       \
        }                                                                                           \
    }

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int channels, height, width, out_channels, out_height, out_width, kernel_h, kernel_w, stride_h, dilation_h, dilation_w;
    int pad_top, pad_left, group_in, group_out, span, blocks_per_pass, tiles_per_item, has_residual, kind, a, b;
} conv_direct_arguments;

PART void convolve(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                   const global number *residual_buffer, global number *y_buffer, const conv_direct_arguments given,
                   int item, int group, int image)
{
    const int height = given.height, width = given.width, out_height = given.out_height, out_width = given.out_width;
    const int kernel_h = given.kernel_h, kernel_w = given.kernel_w, out_channels = given.out_channels;
    const int dilation_h = given.dilation_h, dilation_w = given.dilation_w, group_in = given.group_in, group_out = given.group_out;
    const int segment_size = (PIXELS - 1) * STRIDE_W + (kernel_w - 1) * dilation_w + 1;
    const int in_blocks = (given.channels + B - 1) / B, out_blocks = (out_channels + B - 1) / B;
    const int tiles_x = (out_width + PIXELS - 1) / PIXELS;
    const int tile_begin = item * given.tiles_per_item;
    const int tile_end = min(tile_begin + given.tiles_per_item, tiles_x * out_height);

    const int channel_first = group * OUTPUTS / group_out * group_in;
    const int channel_last = (min((group + 1) * OUTPUTS, out_channels) - 1) / group_out * group_in + group_in;
    const int block_first = channel_first / B, block_last = (channel_last - 1) / B;

    const global number *x = x_buffer + given.x_offset + (long)image * in_blocks * height * width * B;
    const weights_at weight = WEIGHTS_AT(weights, given.weight_offset + (long)group * given.span * kernel_h * kernel_w * TAP);
    const global number *bias = bias_buffer + given.bias_offset + group * OUTPUTS;
    const long plane = (long)out_height * out_width * B;
    const int y_lane = group * OUTPUTS % B; /* lane of the group's first output in its block */
    const long y_first = ((long)image * out_blocks + group * OUTPUTS / B) * plane + y_lane;
    const int vectors = min(VECTORS, (out_channels + LENGTH - 1) / LENGTH - group * VECTORS);
    /* The last half of a block without outputs must hold finite values. */
    const int pads = HALVED && (group + 1) * OUTPUTS >= out_channels && (group * OUTPUTS + vectors * LENGTH) % B;

    const int next_pass = given.blocks_per_pass < given.span ? given.blocks_per_pass * kernel_h * kernel_w * TAP : NEAR_AHEAD;
    const int ahead = tile_begin + 1 == tile_end ? FAR_AHEAD : next_pass;

    for (int pass = block_first; pass <= block_last; pass += given.blocks_per_pass) {
        const int pass_last = min(pass + given.blocks_per_pass - 1, block_last), ends = pass_last == block_last;
        const int has_residual = ends && given.has_residual, kind = ends ? given.kind : ACT_NONE;

        for (int tile = tile_begin; tile < tile_end; tile++) {
            const int oy = tile / tiles_x, ox = tile % tiles_x * PIXELS;
            const int x0 = ox * STRIDE_W - given.pad_left, y0 = oy * given.stride_h - given.pad_top;
            const int ky_begin = y0 < 0 ? (-y0 + dilation_h - 1) / dilation_h : 0;
            const int ky_end = min(kernel_h, (height - y0 + dilation_h - 1) / dilation_h);
            const int in_place = AS_FLOATS ? 0 : x0 >= 0 && x0 + segment_size <= width; /* whether rows are read in place */
            const long at = y_first + ((long)oy * out_width + ox) * B;
            const int pixels = min(PIXELS, out_width - ox);
            global number *y = y_buffer + given.y_offset + at;

            floatl sum[PIXELS][VECTORS];
            if (pass == block_first)
                start_tile(sum, bias);
            else
                resume_tile(sum, y, plane, y_lane, pixels, vectors);

            for (int block = pass; block <= pass_last; block++) {
                const int first = block == block_first ? channel_first - block * B : 0;
                const int last = block == block_last ? channel_last - block * B : B;
                for (int ky = ky_begin; ky < ky_end; ky++) {
                    const weights_at taps = weight + (long)((block - block_first) * kernel_h + ky) * kernel_w * TAP;
                    const global number *row = x + ((long)block * height + y0 + ky * dilation_h) * width * B;
                    if (in_place) {
                        const global number *segment = row + x0 * B;
                        ACCUMULATE(global number, READ_ONE, segment)
                    } else {
                        float segment[SEGMENT * B];
                        pad_segment(segment, row, x0, width, segment_size);
                        ACCUMULATE(private float, LOAD_ONE, segment)
                    }
                }
            }

            finish_tile(sum, residual_buffer + given.residual_offset + at, y, plane, y_lane, pixels, vectors, has_residual, kind,
                        given.a, given.b);
            if (pads) {
                for (int p = 0; p < pixels; p++)
                    WRITE_VECTOR((floatl)(0.0f), y + VECTORS_ON(vectors, y_lane, plane) + p * B);
            }
        }
    }
}

kernel void conv_direct(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                        const global number *residual_buffer, global number *y_buffer, const conv_direct_arguments given)
{
    convolve(x_buffer, weights, bias_buffer, residual_buffer, y_buffer, given, get_global_id(0), get_global_id(1),
             get_global_id(2));
}
