/* Softmax over the middle axis of a plain tensor (outer, count, inner). A CPU's work item computes B neighbours on the inner axis,
 * since the scalar exp is slow there; another device's computes one, so that items read neighbours.
 */
#include "common.cl"
#include "lanes.cl"

#if NNS_CPU
#define LANES B
#else
#define LANES 1
#endif

typedef struct {
    int x_offset, y_offset;
    int count, inner, kind, a, b;
} softmax_arguments;

/* Work items: (group of inner indices, outer index). */
kernel void softmax(const global float *x_buffer, global float *y_buffer, const softmax_arguments given)
{
    const int count = given.count, inner = given.inner, kind = given.kind, a = given.a, b = given.b;
    const int first = (int)get_global_id(0) * LANES;
    const long at = (long)get_global_id(1) * count * inner + first;
    const global float *x = x_buffer + given.x_offset + at;
    global float *y = y_buffer + given.y_offset + at;
#if !NNS_CPU
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
#else
    const int here = min(LANES, inner - first);
    floatb largest = load_some(x, 1, here, 0.0f);
    for (long i = 1; i < count; i++)
        largest = max(largest, load_some(x + i * inner, 1, here, 0.0f));
    floatb sum = 0.0f;
    for (long i = 0; i < count; i++) {
        const floatb e = exp(load_some(x + i * inner, 1, here, 0.0f) - largest);
        store_some(e, y + i * inner, here);
        sum += e;
    }
    const floatb share = 1.0f / sum;
    for (long i = 0; i < count; i++)
        store_some(activate(load_some(y + i * inner, 1, here, 0.0f) * share, kind, a, b), y + i * inner, here);
#endif
}

/* The last axis (outer, count). Work items: outer index. */
kernel void softmax_of_rows(const global float *x_buffer, global float *y_buffer, const softmax_arguments given)
{
    const int count = given.count, kind = given.kind, a = given.a, b = given.b;
    const global float *x = x_buffer + given.x_offset + (long)get_global_id(0) * count;
    global float *y = y_buffer + given.y_offset + (long)get_global_id(0) * count;
    floatb most = load_some(x, 1, count, -INFINITY);
    for (int i = B; i < count; i += B)
        most = max(most, load_some(x + i, 1, count - i, -INFINITY));
    const float largest = largest_lane(most);
    floatb sum = 0.0f;
    for (int i = 0; i < count; i += B) {
        const floatb e = exp(load_some(x + i, 1, count - i, -INFINITY) - largest);
        store_some(e, y + i, count - i);
        sum += e;
    }
    const float share = 1.0f / sum_of_lanes(sum);
    for (int i = 0; i < count; i += B)
        store_some(activate(load_some(y + i, 1, count - i, 0.0f) * share, kind, a, b), y + i, count - i);
}
