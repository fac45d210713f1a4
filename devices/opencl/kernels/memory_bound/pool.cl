/* Pooling in the blocked layout. Work items: (range of output rows × range of columns, channel block, image); of global_pool:
 * (block, image). */
#include "common.cl"

typedef struct {
    int x_offset, y_offset;
    int blocks, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
    int pad_top, pad_left, rows_per_item, columns_per_item, kind, a, b;
} max_pool_arguments;

kernel void max_pool(const global number *x_buffer, global number *y_buffer, const max_pool_arguments given)
{
    const int height = given.height, width = given.width, out_height = given.out_height, out_width = given.out_width;
    const int kernel_h = given.kernel_h, kernel_w = given.kernel_w, stride_h = given.stride_h, stride_w = given.stride_w;
    const int dilation_h = given.dilation_h, dilation_w = given.dilation_w, pad_top = given.pad_top, pad_left = given.pad_left;
    const int kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2);
    const int column_ranges = (out_width + given.columns_per_item - 1) / given.columns_per_item;
    const int row_begin = (int)get_global_id(0) / column_ranges * given.rows_per_item;
    const int row_end = min(row_begin + given.rows_per_item, out_height);
    const int column_begin = (int)get_global_id(0) % column_ranges * given.columns_per_item;
    const int column_end = min(column_begin + given.columns_per_item, out_width);
    const global number *x = x_buffer + given.x_offset + ((long)image * given.blocks + block) * height * width * B;
    global number *y = y_buffer + given.y_offset + ((long)image * given.blocks + block) * out_height * out_width * B;

    for (int oy = row_begin; oy < row_end; oy++) {
        const int y0 = oy * stride_h - pad_top;
        const int y_first = y0 < 0 ? y0 + (-y0 + dilation_h - 1) / dilation_h * dilation_h : y0;
        const int y_last = min(y0 + kernel_h * dilation_h, height);
        for (int ox = column_begin; ox < column_end; ox++) {
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

typedef struct {
    int x_offset, y_offset;
    int blocks, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w;
    int pad_top, pad_left, pad_bottom, pad_right, include_pad, rows_per_item, columns_per_item, kind, a, b;
} average_pool_arguments;

/* The divisor is the number of positions inside the tensor, or inside the padded tensor if `include_pad`. */
kernel void average_pool(const global number *x_buffer, global number *y_buffer, const average_pool_arguments given)
{
    const int height = given.height, width = given.width, out_height = given.out_height, out_width = given.out_width;
    const int kernel_h = given.kernel_h, kernel_w = given.kernel_w, stride_h = given.stride_h, stride_w = given.stride_w;
    const int pad_top = given.pad_top, pad_left = given.pad_left, include_pad = given.include_pad;
    const int padded_height = height + given.pad_bottom, padded_width = width + given.pad_right;
    const int kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2);
    const int column_ranges = (out_width + given.columns_per_item - 1) / given.columns_per_item;
    const int row_begin = (int)get_global_id(0) / column_ranges * given.rows_per_item;
    const int row_end = min(row_begin + given.rows_per_item, out_height);
    const int column_begin = (int)get_global_id(0) % column_ranges * given.columns_per_item;
    const int column_end = min(column_begin + given.columns_per_item, out_width);
    const global number *x = x_buffer + given.x_offset + ((long)image * given.blocks + block) * height * width * B;
    global number *y = y_buffer + given.y_offset + ((long)image * given.blocks + block) * out_height * out_width * B;

    for (int oy = row_begin; oy < row_end; oy++) {
        const int y0 = oy * stride_h - pad_top;
        const int y_first = max(y0, 0), y_last = min(y0 + kernel_h, height);
        for (int ox = column_begin; ox < column_end; ox++) {
            const int x0 = ox * stride_w - pad_left;
            const int x_first = max(x0, 0), x_last = min(x0 + kernel_w, width);
            floatb sum = (floatb)(0.0f);
            for (int iy = y_first; iy < y_last; iy++) {
                for (int ix = x_first; ix < x_last; ix++)
                    sum += READ(x + ((long)iy * width + ix) * B);
            }
            const int padded_h = min(y0 + kernel_h, padded_height) - y0;
            const int padded_w = min(x0 + kernel_w, padded_width) - x0;
            const int count = include_pad ? padded_h * padded_w : max((y_last - y_first) * (x_last - x_first), 1);
            WRITE(activate(sum / (float)count, kind, a, b), y + ((long)oy * out_width + ox) * B);
        }
    }
}

typedef struct {
    int x_offset, y_offset;
    int blocks, plane, is_max, kind, a, b;
} global_pool_arguments;

kernel void global_pool(const global number *x_buffer, global number *y_buffer, const global_pool_arguments given)
{
    const int plane = given.plane, is_max = given.is_max;
    const long at = (long)get_global_id(1) * given.blocks + get_global_id(0);
    const global number *x = x_buffer + given.x_offset + at * plane * B;
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
    WRITE(activate(result[0], given.kind, given.a, given.b), y_buffer + given.y_offset + at * B);
}
