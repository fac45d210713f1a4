/* Softmax over the middle of a plain tensor (outer, count, inner). Work items: (inner index, outer index). */
#include "common.cl"

kernel void softmax(const global float *x_buffer, int x_offset, global float *y_buffer, int y_offset,
                    int count, int inner, int kind, int a, int b)
{
    const long at = (long)get_global_id(1) * count * inner + get_global_id(0);
    const global float *x = x_buffer + x_offset + at;
    global float *y = y_buffer + y_offset + at;

    float largest = x[0];
    for (long i = 1; i < count; i++)
        largest = max(largest, x[i * inner]);
    float sum = 0.0f;
    for (long i = 0; i < count; i++) {
        const float e = exp(x[i * inner] - largest);
        y[i * inner] = e;
        sum += e;
    }
    for (long i = 0; i < count; i++)
        y[i * inner] = activate_one(y[i * inner] / sum, kind, a, b);
}
