/* Windows of pools in the blocked layout. */

/* What kernels with windows are given. */
typedef struct {
    int blocks, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left;
    int rows_per_item, columns_per_item;
} pool_windows;

/* First row and row behind the last one (.s01), and columns alike (.s23), that a work item computes of a plane. Scalars and
 * vectors only: Oclgrind cannot run inlined functions that take or return structures. */
INLINE int4 output_of_item(const int height, const int width, const int rows, const int columns)
{
    const int column_ranges = (width + columns - 1) / columns;
    const int row = (int)get_global_id(0) / column_ranges * rows;
    const int column = (int)get_global_id(0) % column_ranges * columns;
    return (int4)(row, min(row + rows, height), column, min(column + columns, width));
}
