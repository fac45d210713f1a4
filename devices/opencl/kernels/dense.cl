/* Dense layer on plain tensors: ROWS rows of x (N, K) times one block of outputs, the sum over K kept in PARTS partial sums
 * so that multiply-adds are independent.
 *
 * Macros: ROWS, PARTS. Work items: (output block, group of ROWS rows).
 *
 * Weights: [output block][K][B].
 */
#include "common.cl"

#define AHEAD 8192 /* numbers of weights */

typedef struct {
    int x_offset, weight_offset, bias_offset, residual_offset, y_offset;
    int rows, inputs, outputs, has_residual, kind, a, b;
} dense_arguments;

kernel void dense(const global number *x_buffer, const global number *weight_buffer, const global number *bias_buffer,
                  const global number *residual_buffer, global number *y_buffer, const dense_arguments given)
{
    const int rows = given.rows, inputs = given.inputs, outputs = given.outputs;
    const int block = get_global_id(0), row_first = (int)get_global_id(1) * ROWS;
    const global number *weight = weight_buffer + given.weight_offset + (long)block * inputs * B;
    const global number *residual = residual_buffer + given.residual_offset;
    global number *y = y_buffer + given.y_offset;

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
            const floatb w = READ(weight + (k + i) * B);
            PREFETCH(weight + AHEAD + (k + i) * B);
            UNROLL for (int r = 0; r < ROWS; r++)
                sum[r][i] = fma(w, (floatb)(READ_ONE(x[r] + k + i)), sum[r][i]);
        }
    }
    for (; k < inputs; k++) {
        const floatb w = READ(weight + k * B);
        UNROLL for (int r = 0; r < ROWS; r++)
            sum[r][0] = fma(w, (floatb)(READ_ONE(x[r] + k)), sum[r][0]);
    }

    const int lanes = min(B, outputs - block * B);
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (row_first + r < rows) {
            const long at = (long)(row_first + r) * outputs + block * B;
            floatb value = READ(bias_buffer + given.bias_offset + block * B);
            UNROLL for (int i = 0; i < PARTS; i++)
                value += sum[r][i];
            float lane[B];
            STORE(value, lane);
            if (given.has_residual) {
                for (int i = 0; i < lanes; i++)
                    lane[i] += READ_ONE(residual + at + i);
            }
            STORE(activate(LOAD(lane), given.kind, given.a, given.b), lane);
            for (int i = 0; i < lanes; i++)
                WRITE_ONE(lane[i], y + at + i);
        }
    }
}
