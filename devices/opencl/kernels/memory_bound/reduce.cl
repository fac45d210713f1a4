/* Reductions of the middle axis of a plain tensor (outer, length, inner). */
#include "common.cl"
#include "lanes.cl"

/* Rows that are joined before they are joined to the total, whose error would grow with the length if each was added to it. */
enum { ROWS_TOGETHER = 256 };

enum { SUM = 0, MEAN = 1, MAX = 2, MIN = 3, L1 = 4, L2 = 5, SQUARES = 6, PRODUCT = 7 };

typedef struct {
    int x_offset, y_offset;
    int mode, length, inner, kind, a, b;
} reduce_arguments;

static inline float neutral(int mode)
{
    return mode == MAX ? -INFINITY : mode == MIN ? INFINITY : mode == PRODUCT ? 1.0f : 0.0f;
}

static inline floatb with(floatb sum, floatb x, int mode)
{
    switch (mode) {
    case MAX:
        return max(sum, x);
    case MIN:
        return min(sum, x);
    case L1:
        return sum + fabs(x);
    case L2:
    case SQUARES:
        return fma(x, x, sum);
    case PRODUCT:
        return sum * x;
    default:
        return sum + x;
    }
}

static inline floatb finished(floatb sum, int mode, int length)
{
    return mode == MEAN ? sum / (float)length : mode == L2 ? sqrt(sum) : sum;
}

/* How two results over parts of the axis are joined: they are sums already, so squares and distances are not taken again. */
static inline int joining(int mode)
{
    return mode == L1 || mode == L2 || mode == SQUARES ? SUM : mode;
}

/* B neighbours of the inner axis. Work items: (block of the inner axis, outer index). */
kernel void reduce(const global float *x_buffer, global float *y_buffer, const reduce_arguments given)
{
    const int mode = given.mode, length = given.length, column = (int)get_global_id(0) * B, count = given.inner - column;
    const long inner = given.inner, outer = get_global_id(1);
    const global float *x = x_buffer + given.x_offset + outer * length * inner + column;
    floatb sum = (floatb)(neutral(mode));
    for (long first = 0; first < length; first += ROWS_TOGETHER) {
        const long stop = min(first + ROWS_TOGETHER, (long)length);
        floatb part = (floatb)(neutral(mode));
        for (long i = first; i < stop; i++)
            part = with(part, load_some(x + i * inner, 1, count, 0.0f), mode);
        sum = with(sum, part, joining(mode));
    }
    sum = activate(finished(sum, mode, length), given.kind, given.a, given.b);
    store_some(sum, y_buffer + given.y_offset + outer * inner + column, count);
}

/* Rows, if the inner axis has one element. Work items: (row). */
kernel void reduce_rows(const global float *x_buffer, global float *y_buffer, const reduce_arguments given)
{
    const int mode = given.mode, length = given.length;
    const long row = get_global_id(0);
    const global float *x = x_buffer + given.x_offset + row * length;
    lanes all;
    all.vector = (floatb)(neutral(mode));
    const int whole = length / B * B;
    int i = 0;
    while (i < whole) {
        const int stop = min(whole, i + ROWS_TOGETHER * B);
        floatb part = (floatb)(neutral(mode));
        for (; i < stop; i += B)
            part = with(part, LOAD(x + i), mode);
        all.vector = with(all.vector, part, joining(mode));
    }
    const int parts = joining(mode);
    floatb sum = (floatb)(neutral(mode));
    for (int lane = 0; lane < B; lane++)
        sum = with(sum, (floatb)(all.lane[lane]), parts);
    for (; i < length; i++)
        sum = with(sum, (floatb)(x[i]), mode);
    all.vector = activate(finished(sum, mode, length), given.kind, given.a, given.b);
    y_buffer[given.y_offset + row] = all.lane[0];
}
