/* Element-wise layers. */
#include "common.cl"

enum { OP_ADD = 0, OP_SUB = 1, OP_MUL = 2 };

static inline floatb combine(floatb x, floatb y, int op)
{
    if (op == OP_ADD)
        return x + y;
    return op == OP_SUB ? x - y : x * y;
}

/* Copies `count` numbers through an activation, whatever their layout. Work items: (range of `per_item` numbers, a multiple of B). */
kernel void map(const global number *x_buffer, int x_offset, global number *y_buffer, int y_offset,
                int count, int per_item, int kind, int a, int b)
{
    const global number *x = x_buffer + x_offset;
    global number *y = y_buffer + y_offset;
    long i = (long)get_global_id(0) * per_item;
    const long end = min(i + per_item, (long)count);
    for (; i + B <= end; i += B)
        WRITE(activate(READ(x + i), kind, a, b), y + i);
    for (; i < end; i++)
        WRITE_ONE(activate_one(READ_ONE(x + i), kind, a, b), y + i);
}

/* The same for two tensors of one shape and layout. */
kernel void binary_same(const global number *x_buffer, int x_offset, const global number *other_buffer, int other_offset,
                        global number *y_buffer, int y_offset, int count, int per_item, int op, int kind, int a, int b)
{
    const global number *x = x_buffer + x_offset;
    const global number *other = other_buffer + other_offset;
    global number *y = y_buffer + y_offset;
    long i = (long)get_global_id(0) * per_item;
    const long end = min(i + per_item, (long)count);
    for (; i + B <= end; i += B)
        WRITE(activate(combine(READ(x + i), READ(other + i), op), kind, a, b), y + i);
    for (; i < end; i++) {
        const float l = READ_ONE(x + i), r = READ_ONE(other + i);
        WRITE_ONE(activate_one(op == OP_ADD ? l + r : op == OP_SUB ? l - r : l * r, kind, a, b), y + i);
    }
}

/* Blocked x with one number per channel, or per image and channel if `image_stride` (in numbers) is not 0.
 * Work items: (range of pixels, channel block, image). */
kernel void binary_channel(const global number *x_buffer, int x_offset, const global number *other_buffer, int other_offset,
                           global number *y_buffer, int y_offset,
                           int blocks, int plane, int image_stride, int per_item, int op, int kind, int a, int b)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * blocks + block) * plane * B;
    const floatb other = READ(other_buffer + other_offset + (long)image * image_stride + block * B);
    const int begin = (int)get_global_id(0) * per_item, end = min(begin + per_item, plane);
    const global number *x = x_buffer + x_offset + at;
    global number *y = y_buffer + y_offset + at;
    for (long p = begin; p < end; p++)
        WRITE(activate(combine(READ(x + p * B), other, op), kind, a, b), y + p * B);
}

/* Blocked x times a number per channel plus a number per channel. Work items as above. */
kernel void affine(const global number *x_buffer, int x_offset, const global number *scale_buffer, int scale_offset,
                   const global number *shift_buffer, int shift_offset, global number *y_buffer, int y_offset,
                   int blocks, int plane, int per_item, int kind, int a, int b)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * blocks + block) * plane * B;
    const floatb scale = READ(scale_buffer + scale_offset + block * B);
    const floatb shift = READ(shift_buffer + shift_offset + block * B);
    const int begin = (int)get_global_id(0) * per_item, end = min(begin + per_item, plane);
    const global number *x = x_buffer + x_offset + at;
    global number *y = y_buffer + y_offset + at;
    for (long p = begin; p < end; p++)
        WRITE(activate(fma(READ(x + p * B), scale, shift), kind, a, b), y + p * B);
}

/* Plain tensors that broadcast in any way: the output has dimensions d0 … d5, and each input its own stride in floats along
 * every one of them, 0 where it is repeated. Work items: (index into the outer five dimensions). */
kernel void binary_broadcast(const global float *x_buffer, int x_offset, const global float *other_buffer, int other_offset,
                             global float *y_buffer, int y_offset, int d1, int d2, int d3, int d4, int d5,
                             int x0, int x1, int x2, int x3, int x4, int x5,
                             int z0, int z1, int z2, int z3, int z4, int z5, int op, int kind, int a, int b)
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
    const global float *x = x_buffer + x_offset + (long)i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3 + i4 * x4;
    const global float *other = other_buffer + other_offset + (long)i0 * z0 + i1 * z1 + i2 * z2 + i3 * z3 + i4 * z4;
    global float *y = y_buffer + y_offset + (long)outer * d5;
    for (long i = 0; i < d5; i++) {
        const float l = x[i * x5], r = other[i * z5];
        y[i] = activate_one(op == OP_ADD ? l + r : op == OP_SUB ? l - r : l * r, kind, a, b);
    }
}
