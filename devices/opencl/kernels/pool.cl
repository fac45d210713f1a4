/* Pooling in the blocked layout. Work items: (range of output rows, channel block, image); of global_pool: (block, image). */
#include "common.cl"

kernel void max_pool(const global number *x_buffer, int x_offset, global number *y_buffer, int y_offset,
                     int blocks, int height, int width, int out_height, int out_width, int kernel_h, int kernel_w,
                     int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                     int rows_per_item, int kind, int a, int b)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const int row_begin = (int)get_global_id(0) * rows_per_item, row_end = min(row_begin + rows_per_item, out_height);
    const global number *x = x_buffer + x_offset + ((long)image * blocks + block) * height * width * B;
    global number *y = y_buffer + y_offset + ((long)image * blocks + block) * out_height * out_width * B;

    for (int oy = row_begin; oy < row_end; oy++) {
        const int y0 = oy * stride_h - pad_top;
        const int y_first = y0 < 0 ? y0 + (-y0 + dilation_h - 1) / dilation_h * dilation_h : y0;
        const int y_last = min(y0 + kernel_h * dilation_h, height);
        for (int ox = 0; ox < out_width; ox++) {
            const int x0 = ox * stride_w - pad_left;
            const int x_first = x0 < 0 ? x0 + (-x0 + dilation_w - 1) / dilation_w * dilation_w : x0;
            const int x_last = min(x0 + kernel_w * dilation_w, width);
            floatb best = (floatb)(-INFINITY);
            for (int iy = y_first; iy < y_last; iy += dilation_h) {
                for (int ix = x_first; ix < x_last; ix += dilation_w)
                    best = max(best, READ(x + ((long)iy * width + ix) * B));
            }
            WRITE(activate(best, kind, a, b), y + ((long)oy * out_width + ox) * B);
        }
    }
}

/* The divisor is the number of positions inside the tensor, or inside the padded tensor if `include_pad`. */
kernel void average_pool(const global number *x_buffer, int x_offset, global number *y_buffer, int y_offset,
                         int blocks, int height, int width, int out_height, int out_width, int kernel_h, int kernel_w,
                         int stride_h, int stride_w, int pad_top, int pad_left, int pad_bottom, int pad_right,
                         int include_pad, int rows_per_item, int kind, int a, int b)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const int row_begin = (int)get_global_id(0) * rows_per_item, row_end = min(row_begin + rows_per_item, out_height);
    const global number *x = x_buffer + x_offset + ((long)image * blocks + block) * height * width * B;
    global number *y = y_buffer + y_offset + ((long)image * blocks + block) * out_height * out_width * B;

    for (int oy = row_begin; oy < row_end; oy++) {
        const int y0 = oy * stride_h - pad_top;
        const int y_first = max(y0, 0), y_last = min(y0 + kernel_h, height);
        for (int ox = 0; ox < out_width; ox++) {
            const int x0 = ox * stride_w - pad_left;
            const int x_first = max(x0, 0), x_last = min(x0 + kernel_w, width);
            floatb sum = (floatb)(0.0f);
            for (int iy = y_first; iy < y_last; iy++) {
                for (int ix = x_first; ix < x_last; ix++)
                    sum += READ(x + ((long)iy * width + ix) * B);
            }
            const int padded_h = min(y0 + kernel_h, height + pad_bottom) - y0;
            const int padded_w = min(x0 + kernel_w, width + pad_right) - x0;
            const int count = include_pad ? padded_h * padded_w : max((y_last - y_first) * (x_last - x_first), 1);
            WRITE(activate(sum / (float)count, kind, a, b), y + ((long)oy * out_width + ox) * B);
        }
    }
}

kernel void global_pool(const global number *x_buffer, int x_offset, global number *y_buffer, int y_offset,
                        int blocks, int plane, int is_max, int kind, int a, int b)
{
    const long at = (long)get_global_id(1) * blocks + get_global_id(0);
    const global number *x = x_buffer + x_offset + at * plane * B;
    floatb result[4];
    UNROLL for (int i = 0; i < 4; i++)
        result[i] = is_max ? READ(x) : (floatb)(0.0f);
    long p = 0;
    if (is_max) {
        for (; p < plane; p++)
            result[0] = max(result[0], READ(x + p * B));
    } else {
        for (; p + 4 <= plane; p += 4) {
            UNROLL for (int i = 0; i < 4; i++)
                result[i] += READ(x + (p + i) * B);
        }
        for (; p < plane; p++)
            result[0] += READ(x + p * B);
        result[0] = ((result[0] + result[1]) + (result[2] + result[3])) / (float)plane;
    }
    WRITE(activate(result[0], kind, a, b), y_buffer + y_offset + at * B);
}
