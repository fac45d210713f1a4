/* Copies that change the order of elements, or leave some out: transpositions and slices. */
#include "common.cl"

/* A dense output of dimensions d0 … d5; x has a stride in floats along every one of them and begins at `first`.
 * Work items: (index into the outer five dimensions). */
kernel void strided_copy(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset,
                         int d1, int d2, int d3, int d4, int d5, int x0, int x1, int x2, int x3, int x4, int x5, int first,
                         int kind, int a, int b)
{
    const int outer = get_global_id(0);
    int rest = outer;
    const int i4 = rest % d4;
    rest /= d4;
    const int i3 = rest % d3;
    rest /= d3;
    const int i2 = rest % d2;
    rest /= d2;
    const int i1 = rest % d1, i0 = rest / d1;
    const long at = first + (long)i0 * x0 + (long)i1 * x1 + (long)i2 * x2 + (long)i3 * x3 + (long)i4 * x4;
    const global float *x = x_buffer + x_offset + at;
    global float *y = y_buffer + y_offset + (long)outer * d5;
    long i = 0;
    if (x5 == 1) {
        for (; i + B <= d5; i += B)
            STORE(activate(LOAD(x + i), kind, a, b), y + i);
    }
    for (; i < d5; i++)
        y[i] = activate_one(x[i * x5], kind, a, b);
}

/* A blocked tensor to the plain N,H,W,C. Work items: (range of pixels, image). */
kernel void channels_last(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset,
                          int channels, int plane, int per_item, int kind, int a, int b)
{
    const int blocks = (channels + B - 1) / B, image = get_global_id(1);
    const int begin = (int)get_global_id(0) * per_item, end = min(begin + per_item, plane);
    const global float *x = x_buffer + x_offset + (long)image * blocks * plane * B;
    global float *y = y_buffer + y_offset + (long)image * plane * channels;
    for (long p = begin; p < end; p++) {
        int block = 0;
        for (; (block + 1) * B <= channels; block++)
            STORE(activate(LOAD(x + ((long)block * plane + p) * B), kind, a, b), y + p * channels + block * B);
        for (int c = block * B; c < channels; c++)
            y[p * channels + c] = activate_one(x[((long)block * plane + p) * B + c - block * B], kind, a, b);
    }
}
