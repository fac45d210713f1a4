/* Resizing in the blocked layout. Tables hold for every output row and column the two inputs to interpolate: (first index,
 * second index, weight of the second), the indices as bits of an integer. Nearest has weight 0.
 * Work items: (range of output rows, channel block, image). */
#include "common.cl"

typedef struct {
    int x_offset, rows_offset, columns_offset, y_offset;
    int blocks, height, width, out_height, out_width, rows_per_item, linear, kind, a, b;
} resize_arguments;

kernel void resize(const global float *x_buffer, const global float *rows_buffer, const global float *columns_buffer,
                   global float *y_buffer, const resize_arguments given)
{
    const int width = given.width, out_height = given.out_height, out_width = given.out_width, linear = given.linear;
    const int kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2), row_begin = (int)get_global_id(0) * given.rows_per_item;
    const int row_end = min(row_begin + given.rows_per_item, out_height);
    const global float *x = x_buffer + given.x_offset + ((long)image * given.blocks + block) * given.height * width * B;
    global float *y = y_buffer + given.y_offset + ((long)image * given.blocks + block) * out_height * out_width * B;
    const global float *rows = rows_buffer + given.rows_offset, *columns = columns_buffer + given.columns_offset;

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
