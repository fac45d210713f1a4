/* Pads of the rows and columns of planes: for each row and column of the output there is that of the input, or -1 for `value`. */
#include "common.cl"

typedef struct {
    int x_offset, rows_offset, columns_offset, y_offset;
    int lanes, height, width, out_height, out_width, value, kind, a, b;
} pad_arguments;

/* Work items: (row of the output, plane). */
kernel void pad(const global float *x_buffer, const global int *rows_buffer, const global int *columns_buffer,
                global float *y_buffer, const pad_arguments given)
{
    const int size = given.lanes, kind = given.kind, a = given.a, b = given.b, row = get_global_id(0);
    const long plane = get_global_id(1);
    const int source = rows_buffer[given.rows_offset + row];
    const global int *columns = columns_buffer + given.columns_offset;
    const float value = as_float(given.value);
    const global float *x = x_buffer + given.x_offset + (plane * given.height + max(source, 0)) * given.width * size;
    global float *y = y_buffer + given.y_offset + (plane * given.out_height + row) * given.out_width * size;
    for (long column = 0; column < given.out_width; column++) {
        const int from = source < 0 ? -1 : columns[column];
        const global float *pixel = x + (long)max(from, 0) * size;
        int i = 0;
        for (; i + B <= size; i += B)
            STORE(activate(from < 0 ? (floatb)(value) : LOAD(pixel + i), kind, a, b), y + column * size + i);
        for (; i < size; i++)
            y[column * size + i] = activate_one(from < 0 ? value : pixel[i], kind, a, b);
    }
}
