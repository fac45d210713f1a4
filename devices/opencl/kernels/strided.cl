/* Copies that change the order of elements, or leave some out: transpositions and slices. */
#include "common.cl"

typedef struct {
    int x_offset, y_offset;
    int d1, d2, d3, d4, d5, x0, x1, x2, x3, x4, x5, first, kind, a, b;
} strided_copy_arguments;

/* A dense output of dimensions d0 … d5; x has a stride in floats along every one of them and begins at `first`.
 * Work items: (index into the outer five dimensions). */
kernel void strided_copy(const global float *x_buffer, global float *y_buffer, const strided_copy_arguments given)
{
    const int d5 = given.d5, x5 = given.x5, kind = given.kind, a = given.a, b = given.b;
    const int outer = get_global_id(0);
    int rest = outer;
    const int i4 = rest % given.d4;
    rest /= given.d4;
    const int i3 = rest % given.d3;
    rest /= given.d3;
    const int i2 = rest % given.d2;
    rest /= given.d2;
    const int i1 = rest % given.d1, i0 = rest / given.d1;
    const long at = given.first + (long)i0 * given.x0 + (long)i1 * given.x1 + (long)i2 * given.x2 + (long)i3 * given.x3 +
                    (long)i4 * given.x4;
    const global float *x = x_buffer + given.x_offset + at;
    global float *y = y_buffer + given.y_offset + (long)outer * d5;
    long i = 0;
    if (x5 == 1) {
        for (; i + B <= d5; i += B)
            STORE(activate(LOAD(x + i), kind, a, b), y + i);
    }
    for (; i < d5; i++)
        y[i] = activate_one(x[i * x5], kind, a, b);
}

typedef struct {
    int x_offset, y_offset;
    int channels, plane, per_item, kind, a, b;
} channels_last_arguments;

/* A blocked tensor to the plain N,H,W,C. Work items: (range of pixels, image). */
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
