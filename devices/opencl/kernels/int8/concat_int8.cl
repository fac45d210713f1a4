/* Concatenation of int8 tensors: one launch per input, in order. An input gets the result's quantization parameters on the way,
 * unless it has them (`is_equal`). */
#include "int8.cl"

INLINE charb requantized(charb x, int is_equal, int x_zero, float scale, int zero)
{
    return is_equal ? x : rounded_steps(TO_FLOATS(TO_INTS(x) - x_zero) * scale, zero, -128, 127);
}
#define REQUANTIZED(x) requantized(x, is_equal, x_zero, scale, zero)

typedef struct {
    int x_offset, y_offset;
    int blocks, out_blocks, plane, to, per_item, is_equal, x_zero, scale, zero;
} concat_int8_blocked_arguments;

/* As concat_blocked in concat.cl: inputs come in ascending order of `to`, and the later of two inputs completes a block that both
 * share. Work items: (range of pixels, output block counted from to / B, image). */
kernel void concat_int8_blocked(const global char *x_buffer, global char *y_buffer, const concat_int8_blocked_arguments given)
{
    const int blocks = given.blocks, plane = given.plane, is_equal = given.is_equal, x_zero = given.x_zero, zero = given.zero;
    const float scale = as_float(given.scale);
    const int source = get_global_id(1), block = given.to / B + source, image = get_global_id(2), shift = given.to % B;
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    const global char *x = x_buffer + given.x_offset + (long)image * blocks * plane * B;
    global char *y = y_buffer + given.y_offset + ((long)image * given.out_blocks + block) * plane * B;

    /* Output lanes [0, shift) come from the end of the previous source block (or keep the values of an earlier input), the
     * others from the beginning of the source block with this index. */
    for (long p = begin; p < end; p++) {
        char pair[2 * B];
        STORE_BYTES((charb)(0), pair);
        if (shift && source == 0)
            STORE_BYTES(LOAD_BYTES(y + p * B), pair + B - shift);
        else if (shift)
            STORE_BYTES(REQUANTIZED(LOAD_BYTES(x + ((source - 1) * (long)plane + p) * B)), pair);
        charb next = (charb)(0);
        if (source < blocks)
            next = REQUANTIZED(LOAD_BYTES(x + ((long)source * plane + p) * B));
        STORE_BYTES(next, pair + B);
        STORE_BYTES(LOAD_BYTES(pair + B - shift), y + p * B);
    }
}

typedef struct {
    int x_offset, y_offset;
    int row, out_row, to, is_equal, x_zero, scale, zero;
} concat_int8_plain_arguments;

/* Copies rows of `row` numbers to position `to` of rows of `out_row` numbers. Work items: (row). */
kernel void concat_int8_plain(const global char *x_buffer, global char *y_buffer, const concat_int8_plain_arguments given)
{
    const int row = given.row, is_equal = given.is_equal, x_zero = given.x_zero, zero = given.zero;
    const float scale = as_float(given.scale);
    const global char *x = x_buffer + given.x_offset + (long)get_global_id(0) * row;
    global char *y = y_buffer + given.y_offset + (long)get_global_id(0) * given.out_row + given.to;
    for (long i = 0; i < row; i += B) {
        const int n = (int)min((long)B, row - i);
        store_some_bytes(REQUANTIZED(load_some_bytes(x + i, n)), y + i, n);
    }
}
