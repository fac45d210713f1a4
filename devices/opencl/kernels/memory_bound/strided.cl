/* Strided copies: transposes and slices. */
#include "common.cl"
#include "strides.cl"

typedef struct {
    int x_offset, y_offset;
    dense_dimensions dense;
    strides x;
    int first, kind, a, b;
} strided_copy_arguments;

/* Copies a strided tensor that begins at `first` to a dense one. Work items: (row of the output). */
kernel void strided_copy(const global float *x_buffer, global float *y_buffer, const strided_copy_arguments given)
{
    const int size = given.dense.d5, step = given.x.d5, kind = given.kind, a = given.a, b = given.b, row = get_global_id(0);
    const global float *x = x_buffer + given.x_offset + given.first + row_place(row, given.dense, given.x);
    global float *y = y_buffer + given.y_offset + (long)row * size;
    long i = 0;
    if (step == 1) {
        for (; i + B <= size; i += B)
            STORE(activate(LOAD(x + i), kind, a, b), y + i);
    }
    for (; i < size; i++)
        y[i] = activate_one(x[i * step], kind, a, b);
}

typedef struct {
    int x_offset, y_offset;
    int channels, plane, per_item, kind, a, b;
} channels_last_arguments;

/* Copies a blocked tensor to plain N,H,W,C. Work items: (range of pixels, image). */
kernel void channels_last(const global float *x_buffer, global float *y_buffer, const channels_last_arguments given)
{
    const int channels = given.channels, plane = given.plane, kind = given.kind, a = given.a, b = given.b;
    const int blocks = (channels + B - 1) / B, image = get_global_id(1);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    const global float *x = x_buffer + given.x_offset + (long)image * blocks * plane * B;
    global float *y = y_buffer + given.y_offset + (long)image * plane * channels;
    for (long p = begin; p < end; p++) {
        int block = 0;
        for (; (block + 1) * B <= channels; block++)
            STORE(activate(LOAD(x + ((long)block * plane + p) * B), kind, a, b), y + p * channels + block * B);
        for (int c = block * B; c < channels; c++)
            y[p * channels + c] = activate_one(x[((long)block * plane + p) * B + c - block * B], kind, a, b);
    }
}
