/* Sums, differences and products of two int8 tensors. In steps of the result, a sum is (x - x_zero) * x_scale +
 * (y - y_zero) * y_scale, a product (x - x_zero) * (y - y_zero) * x_scale. */
#include "int8.cl"

/* A block of results. */
INLINE charb combined(charb x, charb y, int is_product, int x_zero, int y_zero, float x_scale, float y_scale, int zero, int low,
                      int high)
{
    const floatb left = TO_FLOATS(TO_INTS(x) - x_zero), right = TO_FLOATS(TO_INTS(y) - y_zero);
    const floatb sum = fma(left, (floatb)(x_scale), right * y_scale), product = left * right * x_scale;
    return rounded_steps(is_product ? product : sum, zero, low, high);
}
#define COMBINED(x, y)                                                                              \
    combined(x, y, given.is_product, given.x_zero, given.y_zero, as_float(given.x_scale), as_float(given.y_scale), given.zero, \
             given.low, given.high)

typedef struct {
    int x_offset, other_offset, y_offset;
    int count, per_item, is_product, x_zero, y_zero, x_scale, y_scale, zero, low, high;
} binary_int8_same_arguments;

/* Two tensors of one shape in any layout. Work items: (range of `per_item` numbers). */
kernel void binary_int8_same(const global char *x_buffer, const global char *other_buffer, global char *y_buffer,
                             const binary_int8_same_arguments given)
{
    const global char *x = x_buffer + given.x_offset, *other = other_buffer + given.other_offset;
    global char *y = y_buffer + given.y_offset;
    const long begin = (long)get_global_id(0) * given.per_item, end = min(begin + given.per_item, (long)given.count);
    for (long i = begin; i < end; i += B) {
        const int n = (int)min((long)B, end - i);
        store_some_bytes(COMBINED(load_some_bytes(x + i, n), load_some_bytes(other + i, n)), y + i, n);
    }
}

typedef struct {
    int x_offset, other_offset, y_offset;
    int blocks, plane, stride, per_item, is_product, x_zero, y_zero, x_scale, y_scale, zero, low, high;
} binary_int8_channel_arguments;

/* A blocked tensor and one number per channel, `stride` numbers per image (0: the same for all). Work items: (range of pixels,
 * channel block, image). */
kernel void binary_int8_channel(const global char *x_buffer, const global char *other_buffer, global char *y_buffer,
                                const binary_int8_channel_arguments given)
{
    const int block = get_global_id(1), image = get_global_id(2);
    const long at = ((long)image * given.blocks + block) * given.plane * B;
    const global char *x = x_buffer + given.x_offset + at;
    global char *y = y_buffer + given.y_offset + at;
    const charb other = LOAD_BYTES(other_buffer + given.other_offset + (long)image * given.stride + block * B);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, given.plane);
    for (long p = begin; p < end; p++)
        STORE_BYTES(COMBINED(LOAD_BYTES(x + p * B), other), y + p * B);
}
