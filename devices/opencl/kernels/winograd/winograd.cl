/* Winograd convolution of blocked tensors: square kernels without dilation, any padding and groups (a childnet of SoftNeuro).
 * Tiles of M × M pixels are encoded from patches of ALPHA × ALPHA to POSITIONS numbers per channel; at each position the sum
 * over input channels is a product of matrices, and the sums are decoded to pixels. Strided convolutions and those with more
 * taps than the transform are sums of several convolutions ("parts"). Each part has its own patches and is added like more
 * input channels (devices/algorithms/winograd.py).
 *
 * On a CPU an item does all three stages for a block of tiles; intermediate results stay in its core's cache. Other devices
 * run the stages one after the other. Tiles are numbered across all images.
 *
 * Macros: M and TAPS of the transform; STRIDE; TILES, the tiles of a product's register tile; FEW, those of a smaller one, or
 * 0; STEPS, whether weights are int16 (on CPUs). See winograd_transform.cl for LANES.
 *
 * Weights: [output block][position][input block][part][input channel that one of its groups reads][B output lanes], output
 * blocks `panel` numbers apart, without parts that are 0 at a position. With STEPS there is one part and one group, and the
 * weights of up to 16 input channels are float[B output lanes], the scales, then int16[input channel][B output lanes].
 */
#include "common.cl"
#include "winograd_transform.cl"

#define AHEAD 1024 /* numbers of weights */

/* WEIGHTS reads a vector of weights, READ_SCALES what precedes those of a block of inputs. A position has ELEMENTS per output. */
#ifdef STEPS
#define STEP_GROUP 16 /* input channels with one scale; devices/algorithms/winograd.py has it, too */
typedef short weight_number;
#define SCALE_ELEMENTS (sizeof(float) / sizeof(short))
#define ELEMENTS(channels) (int)((channels) + ((channels) + STEP_GROUP - 1) / STEP_GROUP * SCALE_ELEMENTS)
#define READ_SCALES(begin)                                                                          \
    if ((begin) % STEP_GROUP == 0) {                                                                \
        scales = LOAD((const global float *)u);                                                     \
        u += B * SCALE_ELEMENTS;                                                                    \
    }
#define WEIGHTS(u, scales) (NNS_JOIN(convert_float, NNS_BLOCK)(NNS_JOIN(vload, NNS_BLOCK)(0, u)) * (scales))
#else
typedef number weight_number;
#define ELEMENTS(channels) (channels)
#define READ_SCALES(begin)
#define WEIGHTS(u, scales) READ_VEC(u)
#endif

/* Parameters of the convolution, common to all kernels. */
typedef struct {
    int channels, height, width, out_channels, out_height, out_width, pad_top, pad_left;
    int parts, part_rows, part_columns, whole_rows, whole_columns, whole_both, panel;
} winograd_shape;

/* An element of a list of up to four bytes packed into an int. */
#define ITEM(list, index) (((list) >> (8 * (index))) & 255)

/* Parts [begin, end) that have weights at a position. A range of parts is (begin, end) as a list: at infinity, the parts
 * whose rows, columns or both have as many taps as the transform. */
typedef struct {
    int begin, end;
} part_range;

static inline part_range parts_at(int position, const winograd_shape shape)
{
    const int last_row = position / ALPHA == ALPHA - 1, last_column = position % ALPHA == ALPHA - 1;
    const int at_last_row = last_column ? shape.whole_both : shape.whole_rows;
    const int list = last_row ? at_last_row : last_column ? shape.whole_columns : shape.parts << 8;
    const part_range range = {ITEM(list, 0), ITEM(list, 1)};
    return range;
}

/* Location of one tile. */
typedef struct {
    int image, row, column; /* of the output: its first pixel */
} tile_place;

/* The location of a tile by its number. Order in an image: tiles that lack rows, complete tiles, tiles that lack columns, the
 * tile that lacks both. Tiles with all rows are thus contiguous, as are tiles with all columns. Other tiles need no sums at
 * infinity, which affect only the last row or column. */
static inline tile_place place_of(int tile, int out_height, int out_width)
{
    const int across = (out_width + M - 1) / M, down = (out_height + M - 1) / M;
    const int full_across = out_width / M, full_down = out_height / M, full = full_across * full_down;
    tile_place place = {tile / (across * down), full_down, full_across};
    const int lacks_rows = (down - full_down) * full_across, within = tile % (across * down), other = within - lacks_rows;
    if (other < 0) {
        place.column = within;
    } else if (other < full) {
        place.row = other / full_across;
        place.column = other % full_across;
    } else if (other - full < full_down) {
        place.row = other - full;
    }
    place.row *= M;
    place.column *= M;
    return place;
}

#define REACH ((ALPHA - 1) * STRIDE + 1) /* pixels from the first to the last of a patch */

/* Encodes a patch whose first pixel is (y0, x0) of the plane `x`; positions are `v_position` floats apart. */
PART void encode_patch(const global number *x, int y0, int x0, int height, int width, global float *v, long v_position)
{
    vec d[POSITIONS];
    if (y0 >= 0 && x0 >= 0 && y0 + REACH <= height && x0 + REACH <= width) {
        const global number *from = x + ((long)y0 * width + x0) * B;
        UNROLL for (int i = 0; i < ALPHA; i++) {
            UNROLL for (int j = 0; j < ALPHA; j++)
                d[i * ALPHA + j] = READ_VEC(from + ((long)i * width + j) * STRIDE * B);
        }
    } else {
        UNROLL for (int i = 0; i < ALPHA; i++) {
            UNROLL for (int j = 0; j < ALPHA; j++) {
                const int y = y0 + i * STRIDE, at = x0 + j * STRIDE;
                d[i * ALPHA + j] = (vec)(0.0f);
                if (y >= 0 && y < height && at >= 0 && at < width)
                    d[i * ALPHA + j] = READ_VEC(x + ((long)y * width + at) * B);
            }
        }
    }
    UNROLL for (int j = 0; j < ALPHA; j++)
        transform_input(d + j, ALPHA);
    UNROLL for (int i = 0; i < ALPHA; i++) {
        transform_input(d + i * ALPHA, 1);
        UNROLL for (int j = 0; j < ALPHA; j++)
            STORE_VEC(d[i * ALPHA + j], v + (i * ALPHA + j) * v_position);
    }
}

/* Defines a function for the sums of COUNT tiles over `parts` parts and input channels [first, last), counted from the begin of
 * a block; parts of encoded tiles are `v_part` floats apart and input blocks `v_block`. */
#define MULTIPLY(NAME, COUNT)                                                                                         \
    PART void NAME(const global float *v, long v_block, long v_part, int parts, const global weight_number *u,        \
                   int first, int last, global float *m)                                                              \
    {                                                                                                                 \
        vec sum[COUNT], scales = (vec)(1.0f);                                                                         \
        UNROLL for (int t = 0; t < COUNT; t++)                                                                        \
            sum[t] = (vec)(0.0f);                                                                                     \
        for (int begin = 0; begin < last; begin += B, v += v_block) {                                                 \
            const int end = min(B, last - begin), start = begin == 0 ? first : 0;                                     \
            READ_SCALES(begin)                                                                                        \
            const global float *from = v;                                                                             \
            for (int part = 0; part < parts; part++, from += v_part) {                                                \
                for (int lane = start; lane < end; lane++, u += B) {                                                  \
                    const vec w = WEIGHTS(u, scales);                                                                 \
                    PREFETCH(u + AHEAD);                                                                              \
                    UNROLL for (int t = 0; t < COUNT; t++)                                                            \
                        sum[t] = fma(w, (vec)(from[t * B + lane]), sum[t]);                                           \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        UNROLL for (int t = 0; t < COUNT; t++)                                                                        \
            STORE_VEC(sum[t], m + t * B);                                                                             \
    }

MULTIPLY(multiply_tiles, TILES)

#if FEW
MULTIPLY(multiply_few, FEW)
#endif

/* Rare activations: a second pass over the written pixels, so that their code exists once. */
static inline void activate_tile(global number *y, int y_row, int rows, int columns, int kind, int a, int b)
{
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            global number *at = y + i * y_row + j * B;
            WRITE_VEC(ACTIVATE_VEC(READ_VEC(at), kind, a, b), at);
        }
    }
}

/* Decodes sums to up to `rows` × `columns` pixels of the output, whose rows are `y_row` numbers apart. */
PART void decode_tile(const global float *m, long m_position, vec bias, const global number *residual, global number *y,
                      int y_row, int rows, int columns, int has_residual, int kind, int a, int b)
{
    const float low = kind == ACT_RELU ? 0.0f : kind == ACT_CLIP ? as_float(a) : -INFINITY;
    const float high = kind == ACT_CLIP ? as_float(b) : INFINITY;
    vec sums[POSITIONS];
    UNROLL for (int i = 0; i < POSITIONS; i++)
        sums[i] = LOAD_VEC(m + i * m_position);
    UNROLL for (int j = 0; j < ALPHA; j++)
        transform_output(sums + j, ALPHA);
    UNROLL for (int i = 0; i < M; i++) {
        if (i < rows) {
            transform_output(sums + i * ALPHA, 1);
            UNROLL for (int j = 0; j < M; j++) {
                if (j < columns) {
                    vec value = sums[i * ALPHA + j] + bias;
                    if (has_residual)
                        value += READ_VEC(residual + i * y_row + j * B);
                    WRITE_VEC(min(max(value, low), high), y + i * y_row + j * B);
                }
            }
        }
    }
    if (kind > ACT_CLIP)
        activate_tile(y, y_row, min(rows, M), min(columns, M), kind, a, b);
}

#if !NNS_HALF

typedef struct {
    int x_offset, y_offset;
    int channels, height, width, out_height, out_width, step, pad_top, pad_left;
} winograd_phases_arguments;

/* Plain NCHW to a blocked tensor whose channel phase * channels + c at (y, x) is the pixel (y * step + phase / step - pad_top,
 * x * step + phase % step - pad_left) of channel c, or 0 outside: a convolution with stride `step` becomes one without stride.
 * Work items: (row, output block, image). */
kernel void winograd_phases(const global float *x_buffer, global float *y_buffer, const winograd_phases_arguments given)
{
    const int channels = given.channels, height = given.height, width = given.width, out_width = given.out_width;
    const int step = given.step, pad_top = given.pad_top, pad_left = given.pad_left;
    const int y = get_global_id(0), block = get_global_id(1), image = get_global_id(2);
    const long row = ((long)image * get_global_size(1) + block) * given.out_height + y;
    const global float *x_first = x_buffer + given.x_offset + (long)image * channels * height * width;
    global float *to = y_buffer + given.y_offset + row * out_width * B;
    for (int lane = 0; lane < B; lane++, to++) {
        const int phase = (block * B + lane) / channels, channel = (block * B + lane) % channels;
        const int from_y = y * step + phase / step - pad_top, shift = phase % step - pad_left;
        int begin = min(shift < 0 ? (-shift + step - 1) / step : 0, out_width);
        int end = max(begin, min(out_width, (width - shift + step - 1) / step));
        if (phase >= step * step || from_y < 0 || from_y >= height)
            begin = end = out_width;
        for (int x = 0; x < begin; x++)
            to[x * B] = 0.0f;
        const global float *from = x_first + ((long)channel * height + from_y) * width + shift;
        for (int x = begin; x < end; x++)
            to[x * B] = from[x * step];
        for (int x = end; x < out_width; x++)
            to[x * B] = 0.0f;
    }
}

#endif

/* Input channels [first, last) that output block `block` reads. */
typedef struct {
    int first, last;
} channel_range;

static inline channel_range channels_of(int block, int out_channels, int group_in, int group_out)
{
    const int last = min((block + 1) * B, out_channels) - 1;
    const channel_range range = {block * B / group_out * group_in, (last / group_out + 1) * group_in};
    return range;
}

#if NNS_CPU

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset, scratch_offset;
    winograd_shape shape;
    int group_in, group_out, tiles, per_block, blocks_per_item, panels_per_item, v_position, m_position;
    int scratch_item, few_begin, has_residual, kind, a, b;
} winograd_fused_arguments;

/* Encodes, multiplies and decodes. Work items: (range of blocks of tiles, range of output blocks). Each item has `scratch_item`
 * floats of scratch: [position][input block][part][tile][lane], `v_position` apart, then sums [position][tile][lane], `m_position`
 * apart. A block has `per_block` tiles, a multiple of TILES. FEW tiles from `few_begin` on have all rows. */
kernel void winograd_fused(const global number *x_buffer, const global weight_number *weight_buffer,
                           const global number *bias_buffer, const global number *residual_buffer, global number *y_buffer,
                           global float *scratch_buffer, const winograd_fused_arguments given)
{
    const winograd_shape shape = given.shape;
    const int height = shape.height, width = shape.width, out_height = shape.out_height, out_width = shape.out_width;
    const int out_channels = shape.out_channels, parts = shape.parts, group_in = given.group_in, group_out = given.group_out;
    const int per_block = given.per_block, v_position = given.v_position, m_position = given.m_position;
    const int in_blocks = (shape.channels + B - 1) / B, out_blocks = (out_channels + B - 1) / B;
    const int plane = height * width * B, out_plane = out_height * out_width * B;
    const int panel_begin = (int)get_global_id(1) * given.panels_per_item;
    const int panel_end = min(panel_begin + given.panels_per_item, out_blocks);
    const int in_begin = channels_of(panel_begin, out_channels, group_in, group_out).first / B;
    const int in_end = (channels_of(panel_end - 1, out_channels, group_in, group_out).last + B - 1) / B;
    const long item = (long)get_global_id(1) * get_global_size(0) + get_global_id(0), v_part = (long)per_block * B;
    const global number *x = x_buffer + given.x_offset, *bias = bias_buffer + given.bias_offset;
    const global weight_number *weight = weight_buffer + given.weight_offset;
    const global number *residual = residual_buffer + given.residual_offset;
    global number *y = y_buffer + given.y_offset;
    global float *v = scratch_buffer + given.scratch_offset + item * given.scratch_item;
    global float *m = v + (long)POSITIONS * v_position;
    const int tile_begin = (int)get_global_id(0) * given.blocks_per_item * per_block;
    const int tile_end = min(tile_begin + given.blocks_per_item * per_block, given.tiles);

    for (int first = tile_begin; first < tile_end; first += per_block) {
        const int count = min(per_block, tile_end - first);
        for (int index = in_begin * parts; index < in_end * parts; index++) {
            const int block = index / parts, part = index % parts;
            const int row = ITEM(shape.part_rows, part) - shape.pad_top;
            const int column = ITEM(shape.part_columns, part) - shape.pad_left;
            global float *to = v + (long)(index - in_begin * parts) * v_part;
            for (int t = 0; t < count; t++) {
                const tile_place at = place_of(first + t, out_height, out_width);
                encode_patch(x + ((long)at.image * in_blocks + block) * plane, at.row * STRIDE + row,
                             at.column * STRIDE + column, height, width, to + t * B, v_position);
            }
        }
        for (int block = panel_begin; block < panel_end; block++) {
            const channel_range range = channels_of(block, out_channels, group_in, group_out);
            const global weight_number *u = weight + (long)block * shape.panel;
            const int skipped = range.first / B, size = ELEMENTS(range.last - range.first) * B;
            const int lane_first = range.first - skipped * B, lane_last = range.last - skipped * B;
            for (int position = 0; position < POSITIONS; position++) {
                const part_range has = parts_at(position, shape);
                const global float *from =
                    v + (long)position * v_position + ((skipped - in_begin) * parts + has.begin) * v_part;
                const int needed = has.end - has.begin;
                global float *to = m + (long)position * m_position;
#if FEW
                /* The block is one register tile and a whole image, with incomplete tiles at its lower and right edges. */
                const int last_row = position / ALPHA == ALPHA - 1, last_column = position % ALPHA == ALPHA - 1;
                if (last_row || last_column) {
                    const int t = last_row ? given.few_begin : 0;
                    multiply_few(from + t * B, parts * v_part, v_part, needed, u, lane_first, lane_last, to + t * B);
                    u += needed * size;
                    continue;
                }
#endif
                for (int t = 0; t < count; t += TILES)
                    multiply_tiles(from + t * B, parts * v_part, v_part, needed, u, lane_first, lane_last, to + t * B);
                u += needed * size;
            }
            for (int t = 0; t < count; t++) {
                const tile_place at = place_of(first + t, out_height, out_width);
                const long to = ((long)at.image * out_blocks + block) * out_plane + ((long)at.row * out_width + at.column) * B;
                decode_tile(m + t * B, m_position, READ(bias + block * B), residual + to, y + to, out_width * B,
                            out_height - at.row, out_width - at.column, given.has_residual, given.kind, given.a, given.b);
            }
        }
    }
}

#else

typedef struct {
    int x_offset, v_offset;
    winograd_shape shape;
    int tiles, padded;
} winograd_encode_arguments;

/* Work items: (tile × lane, input block × part), possibly more. Encoded: [position][input block][part][tile][lane], `padded`
 * tiles each; blocks beyond the input's are 0. */
kernel void winograd_encode(const global number *x_buffer, global float *v_buffer, const winograd_encode_arguments given)
{
    const winograd_shape shape = given.shape;
    const int tile = get_global_id(0) / B, lane = get_global_id(0) % B;
    const int index = get_global_id(1), block = index / shape.parts, part = index % shape.parts;
    const int in_blocks = (shape.channels + B - 1) / B;
    if (tile >= given.tiles)
        return;
    const tile_place at = place_of(tile, shape.out_height, shape.out_width);
    const long plane = (long)shape.height * shape.width * B;
    encode_patch(x_buffer + given.x_offset + ((long)at.image * in_blocks + block) * plane + lane,
                 at.row * STRIDE + ITEM(shape.part_rows, part) - shape.pad_top,
                 at.column * STRIDE + ITEM(shape.part_columns, part) - shape.pad_left, block < in_blocks ? shape.height : 0,
                 shape.width, v_buffer + given.v_offset + ((long)index * given.padded + tile) * B + lane,
                 (long)get_global_size(1) * given.padded * B);
}

typedef struct {
    int v_offset, weight_offset, m_offset;
    winograd_shape shape;
    int group_in, group_out, padded;
} winograd_multiply_arguments;

/* Work items: (group of TILES tiles × lane, output block, position). Sums: [position][output block][tile][lane]. */
kernel void winograd_multiply(const global float *v_buffer, const global number *weight_buffer, global float *m_buffer,
                              const winograd_multiply_arguments given)
{
    const winograd_shape shape = given.shape;
    const int parts = shape.parts, padded = given.padded;
    const int tile = get_global_id(0) / B * TILES, lane = get_global_id(0) % B;
    const int block = get_global_id(1), position = get_global_id(2), row = position / ALPHA, column = position % ALPHA;
    const int in_blocks = (shape.channels + B - 1) / B;
    const channel_range range = channels_of(block, shape.out_channels, given.group_in, given.group_out);
    const part_range has = parts_at(position, shape);
    const int at_last_row = ITEM(shape.whole_rows, 1) - ITEM(shape.whole_rows, 0);
    const int at_last_column = ITEM(shape.whole_columns, 1) - ITEM(shape.whole_columns, 0);
    const int parts_before =
        row * ((ALPHA - 1) * parts + at_last_column) + column * (row == ALPHA - 1 ? at_last_row : parts);
    const int skipped = range.first / B;
    const long v_part = (long)padded * B;
    const long v_first = (((long)position * in_blocks + skipped) * parts + has.begin) * v_part + tile * B;
    const long u_first = (long)block * shape.panel + (long)parts_before * (range.last - range.first) * B;
    const long m_first = (((long)position * get_global_size(1) + block) * padded + tile) * B;
    multiply_tiles(v_buffer + given.v_offset + v_first, parts * v_part, v_part, has.end - has.begin,
                   weight_buffer + given.weight_offset + u_first + lane, range.first - skipped * B, range.last - skipped * B,
                   m_buffer + given.m_offset + m_first + lane);
}

typedef struct {
    int m_offset, bias_offset, residual_offset, y_offset;
    winograd_shape shape;
    int tiles, padded, has_residual, kind, a, b;
} winograd_decode_arguments;

/* Work items: (tile × lane, output block), possibly more. */
kernel void winograd_decode(const global float *m_buffer, const global number *bias_buffer,
                            const global number *residual_buffer, global number *y_buffer,
                            const winograd_decode_arguments given)
{
    const int out_height = given.shape.out_height, out_width = given.shape.out_width, padded = given.padded;
    const int tile = get_global_id(0) / B, lane = get_global_id(0) % B, block = get_global_id(1);
    const int out_blocks = get_global_size(1);
    if (tile >= given.tiles)
        return;
    const tile_place at = place_of(tile, out_height, out_width);
    const long pixel = (((long)at.image * out_blocks + block) * out_height + at.row) * out_width + at.column;
    const long first = pixel * B + lane;
    decode_tile(m_buffer + given.m_offset + ((long)block * padded + tile) * B + lane, (long)out_blocks * padded * B,
                READ_ONE(bias_buffer + given.bias_offset + block * B + lane), residual_buffer + given.residual_offset + first,
                y_buffer + given.y_offset + first, out_width * B, out_height - at.row, out_width - at.column,
                given.has_residual, given.kind, given.a, given.b);
}

#endif
