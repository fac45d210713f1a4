/* Dense layer on plain tensors: ROWS rows of x (N, K) times one block of outputs.
 *
 * On a CPU, an item keeps the sum over K in PARTS partial sums, so that multiply-adds are independent. On other devices the
 * GROUP items of a work group share the sum: neighbours read neighbouring weights.
 *
 * Macros: ROWS, PARTS, GROUP (1 on a CPU). Work items: (output block × GROUP, group of ROWS rows).
 *
 * Weights: [output block][K][B].
 */
#include "common.cl"

#define AHEAD 8192 /* numbers of weights */

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int rows, inputs, outputs, has_residual, kind, a, b;
} dense_arguments;

/* Writes one row of a block: the sum with bias, residual and activation. */
INLINE void write_row(floatb sum, const dense_arguments given, int row, int block, const global number *bias,
                      const global number *residual, global number *y)
{
    const int lanes = min(B, given.outputs - block * B);
    const long at = (long)row * given.outputs + block * B;
    float lane[B];
    STORE(READ(bias + block * B) + sum, lane);
    if (given.has_residual) {
        for (int i = 0; i < lanes; i++)
            lane[i] += READ_ONE(residual + at + i);
    }
    STORE(activate(LOAD(lane), given.kind, given.a, given.b), lane);
    for (int i = 0; i < lanes; i++)
        WRITE_ONE(lane[i], y + at + i);
}

#if GROUP == 1

kernel void dense(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                  const global number *residual_buffer, global number *y_buffer, const dense_arguments given)
{
    const int rows = given.rows, inputs = given.inputs;
    const int block = get_global_id(0), row_first = (int)get_global_id(1) * ROWS;
    const weights_at weight = WEIGHTS_AT(weights, given.weight_offset + (long)block * inputs * B);

    const global number *x[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++)
        x[r] = x_buffer + given.x_offset + (long)min(row_first + r, rows - 1) * inputs;

    floatb sum[ROWS][PARTS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int i = 0; i < PARTS; i++)
            sum[r][i] = (floatb)(0.0f);
    }

    long k = 0;
    for (; k + PARTS <= inputs; k += PARTS) {
        UNROLL for (int i = 0; i < PARTS; i++) {
            const floatb w = READ_WEIGHTS(READ, weights, weight + (k + i) * B);
            PREFETCH_WEIGHTS(weight + AHEAD + (k + i) * B);
            UNROLL for (int r = 0; r < ROWS; r++)
                sum[r][i] = fma(w, (floatb)(READ_ONE(x[r] + k + i)), sum[r][i]);
        }
    }
    for (; k < inputs; k++) {
        const floatb w = READ_WEIGHTS(READ, weights, weight + k * B);
        UNROLL for (int r = 0; r < ROWS; r++)
            sum[r][0] = fma(w, (floatb)(READ_ONE(x[r] + k)), sum[r][0]);
    }

    UNROLL for (int r = 0; r < ROWS; r++) {
        if (row_first + r < rows) {
            floatb value = sum[r][0];
            UNROLL for (int i = 1; i < PARTS; i++)
                value += sum[r][i];
            write_row(value, given, row_first + r, block, bias_buffer + given.bias_offset,
                      residual_buffer + given.residual_offset, y_buffer + given.y_offset);
        }
    }
}

#else

__attribute__((reqd_work_group_size(GROUP, 1, 1)))
kernel void dense(const global number *x_buffer, weights_in weights, const global number *bias_buffer,
                  const global number *residual_buffer, global number *y_buffer, const dense_arguments given)
{
    local floatb parts[ROWS][GROUP];
    const int rows = given.rows, inputs = given.inputs, item = get_local_id(0);
    const int block = get_group_id(0), row_first = (int)get_global_id(1) * ROWS;
    const weights_at weight = WEIGHTS_AT(weights, given.weight_offset + (long)block * inputs * B);

    floatb sum[ROWS];
    const global number *x[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        sum[r] = (floatb)(0.0f);
        x[r] = x_buffer + given.x_offset + (long)min(row_first + r, rows - 1) * inputs;
    }
    /* Loads of several steps are under way at a time. */
    _Pragma("unroll 8") for (int k = item; k < inputs; k += GROUP) {
        const floatb w = READ_WEIGHTS(READ, weights, weight + (long)k * B);
        UNROLL for (int r = 0; r < ROWS; r++)
            sum[r] = fma(w, (floatb)(READ_ONE(x[r] + k)), sum[r]);
    }

    UNROLL for (int r = 0; r < ROWS; r++)
        parts[r][item] = sum[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int count = GROUP / 2; count > 0; count /= 2) {
        if (item < count) {
            UNROLL for (int r = 0; r < ROWS; r++)
                parts[r][item] += parts[r][item + count];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item < ROWS && row_first + item < rows)
        write_row(parts[item][0], given, row_first + item, block, bias_buffer + given.bias_offset,
                  residual_buffer + given.residual_offset, y_buffer + given.y_offset);
}

#endif
