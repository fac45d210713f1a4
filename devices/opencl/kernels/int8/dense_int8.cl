/* Dense layer of int8 on plain tensors: ROWS rows of x (N, K) times one block of outputs. On devices that are no CPUs, the GROUP
 * items of a work group share the sum over K.
 *
 * Macros: ROWS, GROUP (1 on a CPU). Work items: (output block × GROUP, group of ROWS rows).
 *
 * Weights: [output block][quad of K][B][4], zero after the last input.
 */
#include "int8.cl"

typedef struct {
    int x_offset, weight_offset, bias_offset, multiplier_offset, residual_offset, y_offset;
    int rows, inputs, outputs;
    int zero, low, high, residual_scale, residual_zero, sum_scale, sum_zero, has_residual;
} dense_int8_arguments;

/* Up to four inputs as the bytes of a quad; bytes beyond `count` are 0. */
INLINE uint quad_of(const global char *x, int count)
{
    if (count >= QUAD)
        return as_uint(vload4(0, x));
    uint bytes = 0;
    for (int i = 0; i < count; i++)
        bytes |= (uint)(uchar)x[i] << (8 * i);
    return bytes;
}

/* Adds quads `first`, `first` + GROUP, … to the sums of ROWS rows. */
INLINE void add_quads(intb sum[ROWS], const global char *x[ROWS], const global char *weight, int first, int inputs)
{
    for (int quad = first; quad * QUAD < inputs; quad += GROUP) {
        const uintb w = LOAD_WEIGHTS(weight + (long)quad * B * QUAD);
        uint bytes[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++)
            bytes[r] = quad_of(x[r] + quad * QUAD, inputs - quad * QUAD);
        UNROLL for (int part = 0; part < QUAD_PARTS; part++) {
            const quad_weight of_part = PART_OF_WEIGHTS(w, part);
            UNROLL for (int r = 0; r < ROWS; r++)
                sum[r] = multiply_add(sum[r], PART_OF_BYTES(bytes[r], part), of_part);
        }
    }
}

#if GROUP > 1
__attribute__((reqd_work_group_size(GROUP, 1, 1)))
#endif
kernel void dense_int8(const global char *x_buffer, const global char *weight_buffer, const global int *bias_buffer,
                       const global float *multiplier_buffer, const global char *residual_buffer, global char *y_buffer,
                       const dense_int8_arguments given)
{
    const int rows = given.rows, inputs = given.inputs, outputs = given.outputs;
    const int block = (int)get_global_id(0) / GROUP, item = (int)get_global_id(0) % GROUP;
    const int row_first = (int)get_global_id(1) * ROWS;
    const int lanes = min(B, outputs - block * B), quads = (inputs + QUAD - 1) / QUAD;
    const global char *weight = weight_buffer + given.weight_offset + (long)block * quads * B * QUAD;
    const global char *x[ROWS];
    intb sum[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        x[r] = x_buffer + given.x_offset + (long)min(row_first + r, rows - 1) * inputs;
        sum[r] = (intb)(0);
    }
    add_quads(sum, x, weight, item, inputs);

#if GROUP > 1
    local intb parts[ROWS][GROUP];
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
    if (item)
        return;
    UNROLL for (int r = 0; r < ROWS; r++)
        sum[r] = parts[r][0];
#endif

    const intb bias = NNS_JOIN(vload, NNS_BLOCK)(block, bias_buffer + given.bias_offset);
    const floatb steps = NNS_JOIN(vload, NNS_BLOCK)(block, multiplier_buffer + given.multiplier_offset);
    const int8 rounding = ROUNDING_OF(given);
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (row_first + r < rows) {
            const long at = (long)(row_first + r) * outputs + block * B;
            charb addend = (charb)(0);
            if (given.has_residual)
                addend = load_some_bytes(residual_buffer + given.residual_offset + at, lanes);
            store_some_bytes(results_of(sum[r] + bias, steps, addend, rounding), y_buffer + given.y_offset + at, lanes);
        }
    }
}
