/* Pooling of int8 in the blocked layout; sums are exact. Work items: (range of output rows × range of columns, channel block,
 * image); of global_pool_int8: (block, image). */
#include "int8.cl"
#include "pool_windows.cl"

typedef struct {
    int x_offset, y_offset;
    pool_windows windows;
    int dilation_h, dilation_w;
} max_pool_int8_arguments;

kernel void max_pool_int8(const global char *x_buffer, global char *y_buffer, const max_pool_int8_arguments given)
{
    const pool_windows s = given.windows;
    const int4 item = output_of_item(s.out_height, s.out_width, s.rows_per_item, s.columns_per_item);
    const long plane = (long)get_global_id(2) * s.blocks + get_global_id(1);
    const int dilation_h = given.dilation_h, dilation_w = given.dilation_w;
    const global char *x = x_buffer + given.x_offset + plane * s.height * s.width * B;
    global char *y = y_buffer + given.y_offset + plane * s.out_height * s.out_width * B;

    for (int oy = item.s0; oy < item.s1; oy++) {
        const int y0 = oy * s.stride_h - s.pad_top;
        const int y_first = y0 < 0 ? y0 + (-y0 + dilation_h - 1) / dilation_h * dilation_h : y0;
        const int y_last = min(y0 + s.kernel_h * dilation_h, s.height);
        for (int ox = item.s2; ox < item.s3; ox++) {
            const int x0 = ox * s.stride_w - s.pad_left;
            const int x_first = x0 < 0 ? x0 + (-x0 + dilation_w - 1) / dilation_w * dilation_w : x0;
            const int x_last = min(x0 + s.kernel_w * dilation_w, s.width);
            charb best = (charb)(-128);
            for (int iy = y_first; iy < y_last; iy += dilation_h) {
                for (int ix = x_first; ix < x_last; ix += dilation_w)
                    best = max(best, LOAD_BYTES(x + ((long)iy * s.width + ix) * B));
            }
            STORE_BYTES(best, y + ((long)oy * s.out_width + ox) * B);
        }
    }
}

typedef struct {
    int x_offset, y_offset;
    pool_windows windows;
    int pad_bottom, pad_right, include_pad, x_zero, scale, zero, low, high;
} average_pool_int8_arguments;

/* The divisor is the number of positions inside the tensor, or inside the padded tensor if `include_pad`. */
kernel void average_pool_int8(const global char *x_buffer, global char *y_buffer, const average_pool_int8_arguments given)
{
    const pool_windows s = given.windows;
    const int4 item = output_of_item(s.out_height, s.out_width, s.rows_per_item, s.columns_per_item);
    const long plane = (long)get_global_id(2) * s.blocks + get_global_id(1);
    const int padded_height = s.height + given.pad_bottom, padded_width = s.width + given.pad_right;
    const int include_pad = given.include_pad, x_zero = given.x_zero, zero = given.zero, low = given.low, high = given.high;
    const float scale = as_float(given.scale);
    const global char *x = x_buffer + given.x_offset + plane * s.height * s.width * B;
    global char *y = y_buffer + given.y_offset + plane * s.out_height * s.out_width * B;

    for (int oy = item.s0; oy < item.s1; oy++) {
        const int y0 = oy * s.stride_h - s.pad_top;
        const int y_first = max(y0, 0), y_last = min(y0 + s.kernel_h, s.height);
        for (int ox = item.s2; ox < item.s3; ox++) {
            const int x0 = ox * s.stride_w - s.pad_left;
            const int x_first = max(x0, 0), x_last = min(x0 + s.kernel_w, s.width);
            const int taps = max(y_last - y_first, 0) * max(x_last - x_first, 0);
            intb sum = (intb)(-taps * x_zero);
            for (int iy = y_first; iy < y_last; iy++) {
                for (int ix = x_first; ix < x_last; ix++)
                    sum += TO_INTS(LOAD_BYTES(x + ((long)iy * s.width + ix) * B));
            }
            const int padded_h = min(y0 + s.kernel_h, padded_height) - y0;
            const int padded_w = min(x0 + s.kernel_w, padded_width) - x0;
            const int count = max(include_pad ? padded_h * padded_w : taps, 1);
            const float of_sum = quotient((floatb)(scale), (float)count).s0;
            STORE_BYTES(rounded_steps(TO_FLOATS(sum) * of_sum, zero, low, high), y + ((long)oy * s.out_width + ox) * B);
        }
    }
}

typedef struct {
    int x_offset, y_offset;
    int blocks, plane, is_max, x_zero, scale, zero, low, high;
} global_pool_int8_arguments;

kernel void global_pool_int8(const global char *x_buffer, global char *y_buffer, const global_pool_int8_arguments given)
{
    const int plane = given.plane, is_max = given.is_max;
    const long at = (long)get_global_id(1) * given.blocks + get_global_id(0);
    const global char *x = x_buffer + given.x_offset + at * plane * B;
    intb total = (intb)(is_max ? -128 : 0);
    for (long p = 0; p < plane; p++) {
        const intb tap = TO_INTS(LOAD_BYTES(x + p * B));
        total = is_max ? max(total, tap) : total + tap;
    }
    const floatb steps = TO_FLOATS(total - given.x_zero * (is_max ? 1 : plane)) * as_float(given.scale);
    STORE_BYTES(rounded_steps(steps, given.zero, given.low, given.high), y_buffer + given.y_offset + at * B);
}
