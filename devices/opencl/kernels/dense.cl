/* Dense layer on plain tensors: ROWS rows of x (N, K) times one block of outputs, the sum over K kept in PARTS partial sums
 * so that multiply-adds need not wait for each other.
 *
 * Macros: ROWS, PARTS. Work items: (output block, group of ROWS rows).
 *
 * Weights: [output block][K][B].
 */
#include "common.cl"

#define AHEAD 8192 /* numbers of weights */

kernel void dense(const global number *x_buffer, int x_offset, const global number *weight_buffer, int weight_offset,
                  const global number *bias_buffer, int bias_offset, const global number *residual_buffer,
                  int residual_offset, global number *y_buffer, int y_offset,
                  int rows, int inputs, int outputs, int has_residual, int kind, int a, int b)
{
    const int block = get_global_id(0), row_first = (int)get_global_id(1) * ROWS;
    const global number *weight = weight_buffer + weight_offset + (long)block * inputs * B;

    const global number *x[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++)
        x[r] = x_buffer + x_offset + (long)min(row_first + r, rows - 1) * inputs;

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
            floatb value = READ(bias_buffer + bias_offset + block * B);
            UNROLL for (int i = 0; i < PARTS; i++)
                value += sum[r][i];
            float lane[B];
            STORE(value, lane);
            if (has_residual) {
                for (int i = 0; i < lanes; i++)
                    lane[i] += READ_ONE(residual_buffer + residual_offset + at + i);
            }
            STORE(activate(LOAD(lane), kind, a, b), lane);
            for (int i = 0; i < lanes; i++)
                WRITE_ONE(lane[i], y_buffer + y_offset + at + i);
        }
    }
}
