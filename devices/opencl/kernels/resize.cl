/* Resizing in the blocked layout. Tables say for every output row and column which two inputs it mixes: (first index, second
 * index, share of the second), the indices as bits of an integer. Nearest is the case of share 0.
 * Work items: (range of output rows, channel block, image). */
#include "common.cl"

kernel void resize(const global float *x_buffer, int x_offset, const global float *rows_buffer, int rows_offset,
                   const global float *columns_buffer, int columns_offset, global float *y_buffer, int y_offset,
                   int blocks, int height, int width, int out_height, int out_width, int rows_per_item, int linear,
                   int kind, int a, int b)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const int row_begin = (int)get_global_id(0) * rows_per_item, row_end = min(row_begin + rows_per_item, out_height);
    const global float *x = x_buffer + x_offset + ((long)image * blocks + block) * height * width * B;
    global float *y = y_buffer + y_offset + ((long)image * blocks + block) * out_height * out_width * B;
    const global float *rows = rows_buffer + rows_offset, *columns = columns_buffer + columns_offset;

    for (int oy = row_begin; oy < row_end; oy++) {
        const global float *upper = x + (long)as_int(rows[3 * oy]) * width * B;
        const global float *lower = x + (long)as_int(rows[3 * oy + 1]) * width * B;
        const float down = rows[3 * oy + 2];
        for (int ox = 0; ox < out_width; ox++) {
            const int left = as_int(columns[3 * ox]) * B, right = as_int(columns[3 * ox + 1]) * B;
            const float along = columns[3 * ox + 2];
            floatb value = LOAD(upper + left);
            if (linear) {
                const floatb above = value * (1.0f - along) + LOAD(upper + right) * along;
                const floatb below = LOAD(lower + left) * (1.0f - along) + LOAD(lower + right) * along;
                value = above * (1.0f - down) + below * down;
            }
            STORE(activate(value, kind, a, b), y + ((long)oy * out_width + ox) * B);
        }
    }
}
