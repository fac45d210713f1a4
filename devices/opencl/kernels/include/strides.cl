/* Tensors read with a stride along each of six dimensions, while a dense tensor is written row by row. */

/* A dense tensor's dimensions after the first. */
typedef struct {
    int d1, d2, d3, d4, d5;
} dense_dimensions;

/* Stride in numbers along every dimension; 0 where a tensor is broadcast. */
typedef struct {
    int d0, d1, d2, d3, d4, d5;
} strides;

/* The offset of the first element of row `row`, counted over the outer five dimensions. */
static inline long row_place(int row, const dense_dimensions dense, const strides step)
{
    long place = (long)(row % dense.d4) * step.d4;
    row /= dense.d4;
    place += (long)(row % dense.d3) * step.d3;
    row /= dense.d3;
    place += (long)(row % dense.d2) * step.d2;
    row /= dense.d2;
    return place + (long)(row % dense.d1) * step.d1 + (long)(row / dense.d1) * step.d0;
}
