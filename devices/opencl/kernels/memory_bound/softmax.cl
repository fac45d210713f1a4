/* Softmax over the middle axis of a plain tensor (outer, count, inner). Work items: (inner index, outer index). */
#include "common.cl"

typedef struct {
    int x_offset, y_offset;
    int count, inner, kind, a, b;
} softmax_arguments;

kernel void softmax(const global float *x_buffer, global float *y_buffer, const softmax_arguments given)
{
    const int count = given.count, inner = given.inner, kind = given.kind, a = given.a, b = given.b;
    const long at = (long)get_global_id(1) * count * inner + get_global_id(0);
    const global float *x = x_buffer + given.x_offset + at;
    global float *y = y_buffer + given.y_offset + at;

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
