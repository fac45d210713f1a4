/* Pooling in the blocked layout. Work items: (range of output rows × range of columns, channel block, image); of global_pool:
 * (block, image). */
#include "common.cl"
#include "pool_windows.cl"

typedef struct {
    int x_offset, y_offset;
    pool_windows windows;
    int dilation_h, dilation_w, kind, a, b;
} max_pool_arguments;

kernel void max_pool(const global number *x_buffer, global number *y_buffer, const max_pool_arguments given)
{
    const pool_windows s = given.windows;
    const int4 item = output_of_item(s.out_height, s.out_width, s.rows_per_item, s.columns_per_item);
    const long plane = (long)get_global_id(2) * s.blocks + get_global_id(1);
    const int dilation_h = given.dilation_h, dilation_w = given.dilation_w, kind = given.kind, a = given.a, b = given.b;
    const global number *x = x_buffer + given.x_offset + plane * s.height * s.width * B;
    global number *y = y_buffer + given.y_offset + plane * s.out_height * s.out_width * B;

    for (int oy = item.s0; oy < item.s1; oy++) {
        const int y0 = oy * s.stride_h - s.pad_top;
        const int y_first = y0 < 0 ? y0 + (-y0 + dilation_h - 1) / dilation_h * dilation_h : y0;
        const int y_last = min(y0 + s.kernel_h * dilation_h, s.height);
        for (int ox = item.s2; ox < item.s3; ox++) {
            const int x0 = ox * s.stride_w - s.pad_left;
            const int x_first = x0 < 0 ? x0 + (-x0 + dilation_w - 1) / dilation_w * dilation_w : x0;
            const int x_last = min(x0 + s.kernel_w * dilation_w, s.width);
            floatb best = (floatb)(-INFINITY);
            for (int iy = y_first; iy < y_last; iy += dilation_h) {
                for (int ix = x_first; ix < x_last; ix += dilation_w)
                    best = max(best, READ(x + ((long)iy * s.width + ix) * B));
            }
            WRITE(activate(best, kind, a, b), y + ((long)oy * s.out_width + ox) * B);
        }
    }
}

typedef struct {
    int x_offset, y_offset;
    pool_windows windows;
    int pad_bottom, pad_right, include_pad, kind, a, b;
} average_pool_arguments;

/* The divisor is the number of positions inside the tensor, or inside the padded tensor if `include_pad`. */
kernel void average_pool(const global number *x_buffer, global number *y_buffer, const average_pool_arguments given)
{
    const pool_windows s = given.windows;
    const int4 item = output_of_item(s.out_height, s.out_width, s.rows_per_item, s.columns_per_item);
    const long plane = (long)get_global_id(2) * s.blocks + get_global_id(1);
    const int padded_height = s.height + given.pad_bottom, padded_width = s.width + given.pad_right;
    const int include_pad = given.include_pad, kind = given.kind, a = given.a, b = given.b;
    const global number *x = x_buffer + given.x_offset + plane * s.height * s.width * B;
    global number *y = y_buffer + given.y_offset + plane * s.out_height * s.out_width * B;

    for (int oy = item.s0; oy < item.s1; oy++) {
        const int y0 = oy * s.stride_h - s.pad_top;
        const int y_first = max(y0, 0), y_last = min(y0 + s.kernel_h, s.height);
        for (int ox = item.s2; ox < item.s3; ox++) {
            const int x0 = ox * s.stride_w - s.pad_left;
            const int x_first = max(x0, 0), x_last = min(x0 + s.kernel_w, s.width);
            floatb sum = (floatb)(0.0f);
            for (int iy = y_first; iy < y_last; iy++) {
                for (int ix = x_first; ix < x_last; ix++)
                    sum += READ(x + ((long)iy * s.width + ix) * B);
            }
            const int padded_h = min(y0 + s.kernel_h, padded_height) - y0;
            const int padded_w = min(x0 + s.kernel_w, padded_width) - x0;
            const int count = include_pad ? padded_h * padded_w : max((y_last - y_first) * (x_last - x_first), 1);
            WRITE(activate(sum / (float)count, kind, a, b), y + ((long)oy * s.out_width + ox) * B);
        }
    }
}

typedef struct {
    int x_offset, y_offset;
    int blocks, plane, is_max, kind, a, b;
} global_pool_arguments;

/* Partial sums, whose loads are under way at the same time; a GPU's routine has its own number. */
#ifndef SUMS
#define SUMS 4
#endif

kernel void global_pool(const global number *x_buffer, global number *y_buffer, const global_pool_arguments given)
{
    const int plane = given.plane, is_max = given.is_max;
    const long at = (long)get_global_id(1) * given.blocks + get_global_id(0);
    const global number *x = x_buffer + given.x_offset + at * plane * B;
    floatb result[SUMS];
    UNROLL for (int i = 0; i < SUMS; i++)
        result[i] = is_max ? READ(x) : (floatb)(0.0f);
    long p = 0;
    if (is_max) {
        for (; p < plane; p++)
            result[0] = max(result[0], READ(x + p * B));
    } else {
        for (; p + SUMS <= plane; p += SUMS) {
            UNROLL for (int i = 0; i < SUMS; i++)
                result[i] += READ(x + (p + i) * B);
        }
        for (; p < plane; p++)
            result[0] += READ(x + p * B);
        UNROLL for (int count = SUMS / 2; count > 0; count /= 2) {
            UNROLL for (int i = 0; i < count; i++)
                result[i] += result[i + count];
        }
        result[0] /= (float)plane;
    }
    WRITE(activate(result[0], given.kind, given.a, given.b), y_buffer + given.y_offset + at * B);
}
