/* Between float32 and int8, from int8 to int8 with other parameters, and by a table: number by number, in any layout. Work
 * items: (range of `per_item` numbers). */
#include "int8.cl"

/* `CODE` with `i` for every B numbers of an item's range, and `n` for how many of them there are. */
#define FOR_BLOCKS(CODE)                                                                            \
    const long begin = (long)get_global_id(0) * given.per_item;                                     \
    const long end = min(begin + given.per_item, (long)given.count);                                \
    for (long i = begin; i < end; i += B) {                                                         \
        const int n = (int)min((long)B, end - i);                                                   \
        CODE                                                                                        \
    }

typedef struct {
    int x_offset, y_offset;
    int count, per_item, scale, zero;
} convert_arguments;

kernel void quantize(const global float *x_buffer, global char *y_buffer, const convert_arguments given)
{
    const global float *x = x_buffer + given.x_offset;
    global char *y = y_buffer + given.y_offset;
    const float scale = as_float(given.scale);
    const int zero = given.zero;
    FOR_BLOCKS({
        float lane[B];
        for (int k = 0; k < B; k++)
            lane[k] = k < n ? x[i + k] : 0.0f;
        store_some_bytes(rounded_steps(quotient(LOAD(lane), scale), zero, -128, 127), y + i, n);
    })
}

kernel void dequantize(const global char *x_buffer, global float *y_buffer, const convert_arguments given)
{
    const global char *x = x_buffer + given.x_offset;
    global float *y = y_buffer + given.y_offset;
    const float scale = as_float(given.scale);
    const int zero = given.zero;
    FOR_BLOCKS({
        const floatb value = TO_FLOATS(TO_INTS(load_some_bytes(x + i, n)) - zero) * scale;
        if (n == B) {
            STORE(value, y + i);
        } else {
            float lane[B];
            STORE(value, lane);
            for (int k = 0; k < n; k++)
                y[i + k] = lane[k];
        }
    })
}

typedef struct {
    int x_offset, y_offset;
    int count, per_item, x_zero, scale, zero, low, high;
} requantize_arguments;

kernel void requantize(const global char *x_buffer, global char *y_buffer, const requantize_arguments given)
{
    const global char *x = x_buffer + given.x_offset;
    global char *y = y_buffer + given.y_offset;
    const float scale = as_float(given.scale);
    const int x_zero = given.x_zero, zero = given.zero, low = given.low, high = given.high;
    FOR_BLOCKS({
        const floatb steps = TO_FLOATS(TO_INTS(load_some_bytes(x + i, n)) - x_zero) * scale;
        store_some_bytes(rounded_steps(steps, zero, low, high), y + i, n);
    })
}

typedef struct {
    int x_offset, table_offset, y_offset;
    int count, per_item;
} table_arguments;

/* The table has the results of -128 to 127. */
kernel void look_up(const global char *x_buffer, const global char *table_buffer, global char *y_buffer,
                    const table_arguments given)
{
    const global char *x = x_buffer + given.x_offset, *table = table_buffer + given.table_offset + 128;
    global char *y = y_buffer + given.y_offset;
    const long begin = (long)get_global_id(0) * given.per_item, end = min(begin + given.per_item, (long)given.count);
    for (long i = begin; i < end; i++)
        y[i] = table[x[i]];
}

typedef struct {
    int x_offset, y_offset;
    int count, per_item;
} copy_bytes_arguments;

kernel void copy_bytes(const global char *x_buffer, global char *y_buffer, const copy_bytes_arguments given)
{
    const global char *x = x_buffer + given.x_offset;
    global char *y = y_buffer + given.y_offset;
    FOR_BLOCKS({ store_some_bytes(load_some_bytes(x + i, n), y + i, n); })
}
