/* Convolution as one matrix product whose operands pass through local memory, without a matrix of patches in global memory
 * (implicit GEMM): outputs × K times K × pixels. For devices that are no CPUs. The output is blocked.
 *
 * A step is DEPTH rows of K: of a blocked input, DEPTH channels at one tap; of a plain input with few channels (PLANAR), DEPTH
 * pairs of a tap and a channel, so that steps are full.
 *
 * Macros: TILE_OUTPUTS, TILE_PIXELS, ITEM_OUTPUTS, ITEM_PIXELS, DEPTH, SLICES (see gemm_tile.cl); PLANAR; for a plain input
 * CHANNELS, KERNEL_H and KERNEL_W; and POINTWISE: kernels of a blocked input are 1×1 without padding, and its channels are whole
 * steps, so that no number needs a check.
 *
 * Work groups: (tile of pixels across all images, tile of outputs, split of the steps). If `partial` is 1, every split writes
 * its sums, and another kernel adds them up.
 *
 * Weights: [tile of outputs][step][DEPTH][TILE_OUTPUTS], zero beyond the last channel and output. Steps are in the order of
 * [channels / DEPTH][KH][KW], or [KH][KW][channels] by DEPTH.
 */
#include "common.cl"
#include "gemm_tile.cl"

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int channels, height, width, out_channels, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w;
    int dilation_h, dilation_w, pad_top, pad_left, pixels, steps, steps_per_split, partial, has_residual, kind, a, b;
} implicit_gemm_arguments;

/* What an item fetches: the same pixel and the same rows of every step. */
typedef struct {
    int y0, x0; /* first input of the pixel's window */
    int row;    /* of a step: the first that the item fetches */
#if PLANAR
    const local int4 *distances; /* of all rows of K */
#endif
} gemm_place;

#if POINTWISE
#define PIXEL_TO_FETCH(pixel, given) min(pixel, (given).pixels - 1)
#else
#define PIXEL_TO_FETCH(pixel, given) (pixel)
#endif
#define ROWS_APART (ITEMS / TILE_PIXELS * 4) /* rows from one quad that an item fetches to the next */

#if PLANAR

#define source float

/* Where the number of a row of K is: its distance from the first of a pixel's window in numbers, in rows and in columns. */
#define DISTANCES (CHANNELS * KERNEL_H * KERNEL_W)
#define DISTANCES_LISTED ((DISTANCES + DEPTH - 1) / DEPTH * DEPTH)

/* Lists the distances of all rows of K, which take long to compute; rows beyond the last lie outside of every image. */
INLINE void list_distances(local int4 *distances, int item, const implicit_gemm_arguments given)
{
    for (int k = item; k < DISTANCES_LISTED; k += ITEMS) {
        const int channel = k % CHANNELS, tap = k / CHANNELS;
        const int dy = tap / KERNEL_W * given.dilation_h, dx = tap % KERNEL_W * given.dilation_w;
        distances[k] = (int4)((channel * given.height + dy) * given.width + dx, k < DISTANCES ? dy : 1 << 29, dx, 0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

typedef struct {
    const global float *x;       /* the first number of the pixel's window, which may lie outside */
    const local int4 *distances; /* of the first row of K that the item fetches */
} gemm_cursor;

static inline gemm_cursor first_step(const global float *x, const gemm_place at, int step, const implicit_gemm_arguments given)
{
    const gemm_cursor cursor = {x + (long)at.y0 * given.width + at.x0, at.distances + step * DEPTH + at.row};
    return cursor;
}

static inline gemm_cursor next_step(gemm_cursor cursor, const implicit_gemm_arguments given)
{
    cursor.distances += DEPTH;
    return cursor;
}

INLINE float fetch_one(const gemm_cursor cursor, const gemm_place at, int row, const implicit_gemm_arguments given)
{
    const int4 distance = cursor.distances[row];
    const uint iy = at.y0 + distance.y, ix = at.x0 + distance.z; /* large if they are negative */
    return iy < (uint)given.height && ix < (uint)given.width ? cursor.x[distance.x] : 0.0f;
}

/* The quads of rows of a step that an item fetches. */
INLINE void fetch_step(const gemm_cursor cursor, const gemm_place at, const implicit_gemm_arguments given,
                       float4 v[INPUT_FETCHES])
{
    UNROLL for (int i = 0; i < INPUT_FETCHES; i++) {
        const int row = i * ROWS_APART;
        v[i] = (float4)(fetch_one(cursor, at, row, given), fetch_one(cursor, at, row + 1, given),
                        fetch_one(cursor, at, row + 2, given), fetch_one(cursor, at, row + 3, given));
    }
}

#define IMAGE_SIZE(given) ((long)CHANNELS * (given).height * (given).width)

#else

#define source number
#define PLANE(given) ((given).height * (given).width * B)

/* Where a channel is, from the first on. The place of a sum of channels is that of their places if they are multiples of
 * different powers of 2, such as a step's first channel, an item's first row of it and the distance to its next rows. */
#define CHANNEL_PLACE(channel, given) ((channel) / B * PLANE(given) + (channel) % B)
#define IMAGE_SIZE(given) ((long)(((given).channels + B - 1) / B) * PLANE(given))

#if POINTWISE

typedef const global number *gemm_cursor; /* the item's first row of the step */

static inline gemm_cursor first_step(const global number *x, const gemm_place at, int step,
                                     const implicit_gemm_arguments given)
{
    return x + (at.y0 * given.width + at.x0) * B + CHANNEL_PLACE(at.row, given) + (long)step * (DEPTH / B) * PLANE(given);
}

static inline gemm_cursor next_step(gemm_cursor cursor, const implicit_gemm_arguments given)
{
    return cursor + DEPTH / B * PLANE(given);
}

/* The quads of rows of a step that an item fetches: four channels of one pixel of a blocked image each. */
INLINE void fetch_step(const gemm_cursor cursor, const gemm_place at, const implicit_gemm_arguments given,
                       float4 v[INPUT_FETCHES])
{
    UNROLL for (int i = 0; i < INPUT_FETCHES; i++)
        v[i] = READ_QUAD(cursor + CHANNEL_PLACE(i * ROWS_APART, given));
}

#else

typedef struct {
    const global number *x; /* the item's first row at the first tap, which may lie outside */
    int channel, dy, dx;    /* of the step: first channel, and the tap's place in the window */
} gemm_cursor;

static inline gemm_cursor first_step(const global number *x, const gemm_place at, int step,
                                     const implicit_gemm_arguments given)
{
    const int taps = given.kernel_h * given.kernel_w, tap = step % taps;
    x += ((long)at.y0 * given.width + at.x0) * B + CHANNEL_PLACE(at.row, given);
    const gemm_cursor cursor = {x, step / taps * DEPTH, tap / given.kernel_w * given.dilation_h,
                                tap % given.kernel_w * given.dilation_w};
    return cursor;
}

static inline gemm_cursor next_step(gemm_cursor cursor, const implicit_gemm_arguments given)
{
    cursor.dx += given.dilation_w;
    if (cursor.dx == given.kernel_w * given.dilation_w) {
        cursor.dx = 0;
        cursor.dy += given.dilation_h;
    }
    if (cursor.dy == given.kernel_h * given.dilation_h) {
        cursor.dy = 0;
        cursor.channel += DEPTH;
    }
    return cursor;
}

/* The quads of rows of a step that an item fetches: four channels of one pixel of a blocked image each. */
INLINE void fetch_step(const gemm_cursor cursor, const gemm_place at, const implicit_gemm_arguments given,
                       float4 v[INPUT_FETCHES])
{
    const int iy = at.y0 + cursor.dy, ix = at.x0 + cursor.dx;
    const int inside = iy >= 0 && iy < given.height && ix >= 0 && ix < given.width;
    const int place = (cursor.dy * given.width + cursor.dx) * B + CHANNEL_PLACE(cursor.channel, given);
    UNROLL for (int i = 0; i < INPUT_FETCHES; i++) {
        const int row = i * ROWS_APART, is_channel = cursor.channel + row < given.channels - at.row;
        const global number *from = cursor.x + (place + CHANNEL_PLACE(row, given));
        v[i] = inside && is_channel ? READ_QUAD(from) : (float4)(0.0f);
    }
}

#endif

#endif

/* A number of the output is at the sum of its pixel's and its channel's places. */
static inline long pixel_place(int pixel, const implicit_gemm_arguments given)
{
    const int plane = given.out_height * given.out_width, out_blocks = (given.out_channels + B - 1) / B;
    return ((long)(pixel / plane) * out_blocks * plane + pixel % plane) * B;
}

static inline long output_place(int output, const implicit_gemm_arguments given)
{
    return (long)(output / B) * (given.out_height * given.out_width * B) + output % B;
}

/* The pixel and the output of an item's sums, within the tile. */
#define ITEM_PIXEL(item, p) PIXEL_AT(COLUMN_OF(item, (p) / 4) + (p) % 4)

/* The quads of weights of a step that an item fetches. */
INLINE void fetch_weights(weights_in weights, weights_at weight, int item, float4 w[WEIGHT_FETCHES])
{
    UNROLL for (int i = 0; i < WEIGHT_FETCHES; i++) {
        if (FETCHES_WEIGHT(item, i))
            w[i] = READ_WEIGHTS(READ_QUAD, weights, weight + i * ITEMS * 4);
    }
}

/* Adds the residual. Reads a quad of pixels at once, so that their latencies overlap; beyond the last pixel and output it reads
 * those. */
INLINE void add_residual(float4 sum[ITEM_PIXELS][OUTPUT_QUADS], int first_pixel, int first_output, int item,
                         const global number *residual, const implicit_gemm_arguments given)
{
    const int last = (given.out_channels + B - 1) / B * B - 4;
    UNROLL for (int j = 0; j < PIXEL_QUADS; j++) {
        float4 values[4][OUTPUT_QUADS];
        UNROLL for (int p = 0; p < 4; p++) {
            const int pixel = min(first_pixel + ITEM_PIXEL(item, j * 4 + p), given.pixels - 1);
            const global number *from = residual + pixel_place(pixel, given);
            UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
                values[p][i] = READ_QUAD(from + output_place(min(first_output + OUTPUT_OF(item, i), last), given));
        }
        UNROLL for (int p = 0; p < 4; p++) {
            UNROLL for (int i = 0; i < OUTPUT_QUADS; i++)
                sum[j * 4 + p][i] += values[p][i];
        }
    }
}

/* Adds the bias, which every tile has in full. */
INLINE void add_bias(float4 sum[ITEM_PIXELS][OUTPUT_QUADS], int item, const global number *bias)
{
    UNROLL for (int i = 0; i < OUTPUT_QUADS; i++) {
        const float4 value = READ_QUAD(bias + OUTPUT_OF(item, i));
        UNROLL for (int p = 0; p < ITEM_PIXELS; p++)
            sum[p][i] += value;
    }
}

/* Defines a function that writes an item's sums by WRITE(value, pointer). */
#define WRITE_TILE(NAME, TYPE, WRITE)                                                                                 \
    INLINE void NAME(float4 sum[ITEM_PIXELS][OUTPUT_QUADS], int first_pixel, int first_output, int item,              \
                     global TYPE *y, const implicit_gemm_arguments given)                                             \
    {                                                                                                                 \
        const int outputs = (given.out_channels + B - 1) / B * B;                                                     \
        UNROLL for (int p = 0; p < ITEM_PIXELS; p++) {                                                                \
            const int pixel = first_pixel + ITEM_PIXEL(item, p);                                                      \
            global TYPE *to = y + pixel_place(pixel, given);                                                          \
            UNROLL for (int i = 0; i < OUTPUT_QUADS; i++) {                                                           \
                const int output = first_output + OUTPUT_OF(item, i);                                                 \
                if (pixel < given.pixels && output < outputs)                                                         \
                    WRITE(sum[p][i], to + output_place(output, given));                                               \
            }                                                                                                         \
        }                                                                                                             \
    }

#define WRITE_SUM(value, pointer) (*(global float4 *)(pointer) = (value))
#define WRITE_CLAMPED(value, pointer) WRITE_QUAD(min(max(value, low_of(given)), high_of(given)), pointer)

static inline float low_of(const implicit_gemm_arguments given)
{
    return given.kind == ACT_RELU ? 0.0f : given.kind == ACT_CLIP ? as_float(given.a) : -INFINITY;
}

static inline float high_of(const implicit_gemm_arguments given)
{
    return given.kind == ACT_CLIP ? as_float(given.b) : INFINITY;
}

WRITE_TILE(write_sums, float, WRITE_SUM)
WRITE_TILE(write_outputs, number, WRITE_CLAMPED)

#define ROLLED _Pragma("unroll 1")

/* Rare activations: a second pass over what an item wrote, so that their code exists once. */
static inline void activate_outputs(int first_pixel, int first_output, int item, global number *y,
                                    const implicit_gemm_arguments given)
{
    const int outputs = (given.out_channels + B - 1) / B * B;
    ROLLED for (int p = 0; p < ITEM_PIXELS; p++) {
        const int pixel = first_pixel + ITEM_PIXEL(item, p);
        ROLLED for (int i = 0; i < OUTPUT_QUADS; i++) {
            const int output = first_output + OUTPUT_OF(item, i);
            if (pixel < given.pixels && output < outputs) {
                global number *at = y + pixel_place(pixel, given) + output_place(output, given);
                WRITE_QUAD(ACTIVATE_QUAD(READ_QUAD(at), given.kind, given.a, given.b), at);
            }
        }
    }
}

__attribute__((reqd_work_group_size(ITEMS, 1, 1)))
kernel void implicit_gemm(const global source *x_buffer, weights_in weight_memory, const global number *bias_buffer,
                          const global number *residual_buffer, global number *y_buffer, const implicit_gemm_arguments given)
{
    local float4 memory[LOCAL_SIZE];
    local float4 *weights = memory, *inputs = memory + 2 * WEIGHTS_SIZE;
    const int item = get_local_id(0), tile = get_group_id(1), first_pixel = (int)get_group_id(0) * TILE_PIXELS;
    const int begin = (int)get_group_id(2) * given.steps_per_split, end = min(begin + given.steps_per_split, given.steps);
    const int pixel = PIXEL_TO_FETCH(first_pixel + PIXEL_AT(item % TILE_PIXELS), given);
    const int plane = given.out_height * given.out_width;
    /* A pixel beyond the last has a window above the image. */
    gemm_place at = {
        pixel < given.pixels ? pixel % plane / given.out_width * given.stride_h - given.pad_top : -(1 << 30),
        pixel % plane % given.out_width * given.stride_w - given.pad_left, item / TILE_PIXELS * 4};
#if PLANAR
    local int4 distances[DISTANCES_LISTED];
    list_distances(distances, item, given);
    at.distances = distances;
#endif
    const global source *x = x_buffer + given.x_offset + pixel / plane * IMAGE_SIZE(given);
    weights_at weight = WEIGHTS_AT(
        weight_memory, given.weight_offset + ((long)tile * given.steps + begin) * DEPTH * TILE_OUTPUTS + item * 4);

    float4 sum[ITEM_PIXELS][OUTPUT_QUADS];
    UNROLL for (int i = 0; i < OUTPUT_QUADS; i++) {
        UNROLL for (int p = 0; p < ITEM_PIXELS; p++)
            sum[p][i] = (float4)(0.0f);
    }

    float4 w[WEIGHT_FETCHES], v[INPUT_FETCHES];
    gemm_cursor cursor = first_step(x, at, begin, given);
    for (int step = begin; step <= end; step++, weight += DEPTH * TILE_OUTPUTS) {
        const int buffer = (step - begin) & 1;
        if (step < end) {
            fetch_weights(weight_memory, weight, item, w);
            fetch_step(cursor, at, given, v);
            cursor = next_step(cursor, given);
        }
        if (step > begin)
            multiply_step(weights + !buffer * WEIGHTS_SIZE, inputs + !buffer * INPUTS_SIZE, item, sum);
        if (step < end)
            put_step(w, v, item, weights + buffer * WEIGHTS_SIZE, inputs + buffer * INPUTS_SIZE);
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#if SLICES > 1
    add_slices(memory, item, sum);
    if (item >= TILE_ITEMS)
        return;
#endif
    const int first_output = tile * TILE_OUTPUTS;
    if (given.partial) {
        const long split = (long)given.pixels * ((given.out_channels + B - 1) / B * B);
        global float *sums = (global float *)y_buffer + given.y_offset + get_group_id(2) * split;
        write_sums(sum, first_pixel, first_output, item, sums, given);
        return;
    }
    global number *y = y_buffer + given.y_offset;
    add_bias(sum, item, bias_buffer + given.bias_offset + first_output);
    if (given.has_residual)
        add_residual(sum, first_pixel, first_output, item, residual_buffer + given.residual_offset, given);
    write_outputs(sum, first_pixel, first_output, item, y, given);
    if (given.kind > ACT_CLIP)
        activate_outputs(first_pixel, first_output, item, y, given);
}

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
    _Pragma("unroll 4") for (int split = 0; split < given.splits; split++)
        value += *(const global float4 *)(from + (long)split * given.count);
    if (given.has_residual)
        value += READ_QUAD(residual_buffer + given.residual_offset + at);
    WRITE_QUAD(ACTIVATE_QUAD(value, given.kind, given.a, given.b), y_buffer + given.y_offset + at);
}
