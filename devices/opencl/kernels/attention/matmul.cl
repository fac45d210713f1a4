/* Products of plain matrices (M, K) and (K, N) for every image, with strides, so that transposed matrices are read where they
 * lie. Images are in two dimensions, outer and inner.
 *
 * Macros: ROWS, and COLUMNS of `matmul_of_rows`.
 */
#include "common.cl"
#include "lanes.cl"

typedef struct {
    int x_offset, y_offset, z_offset;
    int inner, m, k, n;
    int x_outer, x_inner, m_step, xk_step;
    int y_outer, y_inner, yk_step, n_step;
    int kind, a, b;
} matmul_arguments;

/* ROWS rows times B columns, for y whose columns are neighbours. Work items: (block of columns, group of rows, image). */
kernel void matmul(const global float *x_buffer, const global float *y_buffer, global float *z_buffer,
                   const matmul_arguments given)
{
    const int m = given.m, k = given.k, n = given.n, n_step = given.n_step;
    const long xk_step = given.xk_step, yk_step = given.yk_step, image = get_global_id(2);
    const int column = (int)get_global_id(0) * B, first = (int)get_global_id(1) * ROWS, count = min(B, n - column);
    const long outer = image / given.inner, inner = image % given.inner;
    const global float *y = y_buffer + given.y_offset + outer * given.y_outer + inner * given.y_inner + (long)column * n_step;
    const global float *x[ROWS];
    floatb sum[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        x[r] = x_buffer + given.x_offset + outer * given.x_outer + inner * given.x_inner +
               (long)min(first + r, m - 1) * given.m_step;
        sum[r] = (floatb)(0.0f);
    }
    for (long i = 0; i < k; i++) {
        const floatb values = load_some(y + i * yk_step, n_step, count, 0.0f);
        UNROLL for (int r = 0; r < ROWS; r++)
            sum[r] = fma(values, (floatb)(x[r][i * xk_step]), sum[r]);
    }
    global float *z = z_buffer + given.z_offset + (image * m + first) * n + column;
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (first + r < m)
            store_some(activate(sum[r], given.kind, given.a, given.b), z + (long)r * n, count);
    }
}

/* ROWS rows of x times COLUMNS rows of y, both along K: z = x yᵀ. Work items: (group of columns, group of rows, image). */
kernel void matmul_of_rows(const global float *x_buffer, const global float *y_buffer, global float *z_buffer,
                           const matmul_arguments given)
{
    const int m = given.m, k = given.k, n = given.n;
    const long image = get_global_id(2), outer = image / given.inner, inner = image % given.inner;
    const int column = (int)get_global_id(0) * COLUMNS, first = (int)get_global_id(1) * ROWS;
    const global float *x[ROWS], *y[COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++)
        x[r] = x_buffer + given.x_offset + outer * given.x_outer + inner * given.x_inner +
               (long)min(first + r, m - 1) * given.m_step;
    UNROLL for (int c = 0; c < COLUMNS; c++)
        y[c] = y_buffer + given.y_offset + outer * given.y_outer + inner * given.y_inner +
               (long)min(column + c, n - 1) * given.n_step;
    floatb sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int c = 0; c < COLUMNS; c++)
            sum[r][c] = (floatb)(0.0f);
    }
    for (int i = 0; i < k; i += B) {
        floatb of_x[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++)
            of_x[r] = load_some(x[r] + i, 1, k - i, 0.0f);
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            const floatb of_y = load_some(y[c] + i, 1, k - i, 0.0f);
            UNROLL for (int r = 0; r < ROWS; r++)
                sum[r][c] = fma(of_x[r], of_y, sum[r][c]);
        }
    }
    global float *z = z_buffer + given.z_offset + (image * m + first) * n + column;
    for (int r = 0; r < min(ROWS, m - first); r++) {
        for (int c = 0; c < min(COLUMNS, n - column); c++)
            z[(long)r * n + c] = activate_one(sum_of_lanes(sum[r][c]), given.kind, given.a, given.b);
    }
}
