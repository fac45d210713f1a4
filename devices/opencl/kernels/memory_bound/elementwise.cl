/* Element-wise layers. */
#include "common.cl"
#include "strides.cl"

enum { OP_ADD = 0, OP_SUB = 1, OP_MUL = 2, OP_DIV = 3, OP_MAX = 4, OP_MIN = 5 };

/* `x` and `y` are vectors, or single numbers. The larger and the smaller of two numbers is NaN if one of them is. */
#define UNLESS_NAN(found, x, y) select(found, (x) + (y), isnan(x) | isnan(y))
#define COMBINED(x, y, op)                                      \
    ((op) == OP_ADD   ? (x) + (y)                               \
     : (op) == OP_SUB ? (x) - (y)                               \
     : (op) == OP_MUL ? (x) * (y)                               \
     : (op) == OP_DIV ? (x) / (y)                               \
     : (op) == OP_MAX ? UNLESS_NAN(max(x, y), x, y)             \
                      : UNLESS_NAN(min(x, y), x, y))

static inline floatb combine(floatb x, floatb y, int op)
{
    return COMBINED(x, y, op);
}

static inline float combine_one(float x, float y, int op)
{
    return COMBINED(x, y, op);
}

typedef struct {
    int x_offset, y_offset;
    int count, per_item, kind, a, b;
} map_arguments;

/* Copies `count` numbers through an activation, whatever their layout. Work items: (range of `per_item` numbers, a multiple of B). */
kernel void map(const global number *x_buffer, global number *y_buffer, const map_arguments given)
{
    const int kind = given.kind, a = given.a, b = given.b;
    const global number *x = x_buffer + given.x_offset;
    global number *y = y_buffer + given.y_offset;
    long i = (long)get_global_id(0) * given.per_item;
    const long end = min(i + given.per_item, (long)given.count);
    for (; i + B <= end; i += B)
        WRITE(activate(READ(x + i), kind, a, b), y + i);
    for (; i < end; i++)
        WRITE_ONE(activate_one(READ_ONE(x + i), kind, a, b), y + i);
}

typedef struct {
    int x_offset, other_offset, y_offset;
    int count, per_item, op, kind, a, b;
} binary_same_arguments;

/* The same for two tensors of one shape and layout. */
kernel void binary_same(const global number *x_buffer, const global number *other_buffer, global number *y_buffer,
                        const binary_same_arguments given)
{
    const int op = given.op, kind = given.kind, a = given.a, b = given.b;
    const global number *x = x_buffer + given.x_offset;
    const global number *other = other_buffer + given.other_offset;
    global number *y = y_buffer + given.y_offset;
    long i = (long)get_global_id(0) * given.per_item;
    const long end = min(i + given.per_item, (long)given.count);
    for (; i + B <= end; i += B)
        WRITE(activate(combine(READ(x + i), READ(other + i), op), kind, a, b), y + i);
    for (; i < end; i++) {
        const float combined = combine_one(READ_ONE(x + i), READ_ONE(other + i), op);
        WRITE_ONE(activate_one(combined, kind, a, b), y + i);
    }
}

typedef struct {
    int x_offset, other_offset, y_offset;
    int blocks, plane, image_stride, per_item, op, kind, a, b;
} binary_channel_arguments;

/* Blocked x with one number per channel, or per image and channel if `image_stride` (in numbers) is not 0.
 * Work items: (range of pixels, channel block, image). */
kernel void binary_channel(const global number *x_buffer, const global number *other_buffer, global number *y_buffer,
                           const binary_channel_arguments given)
{
    const int op = given.op, kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * given.blocks + block) * given.plane * B;
    const floatb other = READ(other_buffer + given.other_offset + (long)image * given.image_stride + block * B);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, given.plane);
    const global number *x = x_buffer + given.x_offset + at;
    global number *y = y_buffer + given.y_offset + at;
    for (long p = begin; p < end; p++)
        WRITE(activate(combine(READ(x + p * B), other, op), kind, a, b), y + p * B);
}

typedef struct {
    int x_offset, scale_offset, shift_offset, y_offset;
    int blocks, plane, per_item, kind, a, b;
} affine_arguments;

/* Blocked x times a factor per channel plus an offset per channel. Work items as above. */
kernel void affine(const global number *x_buffer, const global number *scale_buffer, const global number *shift_buffer,
                   global number *y_buffer, const affine_arguments given)
{
    const int kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * given.blocks + block) * given.plane * B;
    const floatb scale = READ(scale_buffer + given.scale_offset + block * B);
    const floatb shift = READ(shift_buffer + given.shift_offset + block * B);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, given.plane);
    const global number *x = x_buffer + given.x_offset + at;
    global number *y = y_buffer + given.y_offset + at;
    for (long p = begin; p < end; p++)
        WRITE(activate(fma(READ(x + p * B), scale, shift), kind, a, b), y + p * B);
}

typedef struct {
    int x_offset, slope_offset, y_offset;
    int blocks, plane, per_item, kind, a, b;
} prelu_arguments;

/* Blocked x, times a factor per channel where it is negative. Work items as above. */
kernel void prelu(const global number *x_buffer, const global number *slope_buffer, global number *y_buffer,
                  const prelu_arguments given)
{
    const int kind = given.kind, a = given.a, b = given.b;
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * given.blocks + block) * given.plane * B;
    const floatb slope = READ(slope_buffer + given.slope_offset + block * B);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, given.plane);
    const global number *x = x_buffer + given.x_offset + at;
    global number *y = y_buffer + given.y_offset + at;
    for (long p = begin; p < end; p++) {
        const floatb value = READ(x + p * B);
        WRITE(activate(max(value, 0.0f) + slope * min(value, 0.0f), kind, a, b), y + p * B);
    }
}

typedef struct {
    int x_offset, other_offset, y_offset;
    dense_dimensions dense;
    strides x, other;
    int op, kind, a, b;
} binary_broadcast_arguments;

/* Plain tensors with any broadcasting. Work items: (row of the output). */
kernel void binary_broadcast(const global float *x_buffer, const global float *other_buffer, global float *y_buffer,
                             const binary_broadcast_arguments given)
{
    const int size = given.dense.d5, x_step = given.x.d5, other_step = given.other.d5;
    const int op = given.op, kind = given.kind, a = given.a, b = given.b, row = get_global_id(0);
    const global float *x = x_buffer + given.x_offset + row_place(row, given.dense, given.x);
    const global float *other = other_buffer + given.other_offset + row_place(row, given.dense, given.other);
    global float *y = y_buffer + given.y_offset + (long)row * size;
    for (long i = 0; i < size; i++)
        y[i] = activate_one(combine_one(x[i * x_step], other[i * other_step], op), kind, a, b);
}
