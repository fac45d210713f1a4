/* Concatenation: one launch per input, in order. */
#include "common.cl"

typedef struct {
    int x_offset, y_offset;
    int blocks, out_blocks, plane, to, per_item, kind, a, b;
} concat_blocked_arguments;

/* Copies a blocked tensor to channel `to` of a wider one. Inputs must come in ascending order of `to`: the later of two
 * inputs completes a block that both share. Lanes after the last channel receive the source's values there, or zero.
 * Work items: (range of pixels, output block counted from to / B, image). */
kernel void concat_blocked(const global number *x_buffer, global number *y_buffer, const concat_blocked_arguments given)
{
    const int blocks = given.blocks, plane = given.plane, kind = given.kind, a = given.a, b = given.b;
    const int block = given.to / B + (int)get_global_id(1), image = get_global_id(2);
    const int begin = (int)get_global_id(0) * given.per_item, end = min(begin + given.per_item, plane);
    const int shift = given.to % B, source = (int)get_global_id(1);
    const global number *x = x_buffer + given.x_offset + (long)image * blocks * plane * B;
    global number *y = y_buffer + given.y_offset + ((long)image * given.out_blocks + block) * plane * B;

    if (shift == 0) {
        const global number *from = x + (long)source * plane * B;
        for (long p = begin; p < end; p++)
            WRITE(activate(READ(from + p * B), kind, a, b), y + p * B);
        return;
    }
    /* Output lanes [0, shift) come from the end of the previous source block (or keep the values of an earlier input), the
     * others from the beginning of the source block with this index. */
    for (long p = begin; p < end; p++) {
        float pair[2 * B];
        if (source == 0)
            STORE(READ(y + p * B), pair + B - shift);
        else
            STORE(activate(READ(x + ((source - 1) * (long)plane + p) * B), kind, a, b), pair);
        floatb next = (floatb)(0.0f);
        if (source < blocks)
            next = activate(READ(x + ((long)source * plane + p) * B), kind, a, b);
        STORE(next, pair + B);
        WRITE(LOAD(pair + B - shift), y + p * B);
    }
}

typedef struct {
    int x_offset, y_offset;
    int row, out_row, to, kind, a, b;
} concat_plain_arguments;

/* Copies rows of `row` floats to position `to` of rows of `out_row` floats. Work items: (row). */
kernel void concat_plain(const global float *x_buffer, global float *y_buffer, const concat_plain_arguments given)
{
    const int row = given.row, kind = given.kind, a = given.a, b = given.b;
    const global float *x = x_buffer + given.x_offset + (long)get_global_id(0) * row;
    global float *y = y_buffer + given.y_offset + (long)get_global_id(0) * given.out_row + given.to;
    long i = 0;
    for (; i + B <= row; i += B)
        STORE(activate(LOAD(x + i), kind, a, b), y + i);
    for (; i < row; i++)
        y[i] = activate_one(x[i], kind, a, b);
}
