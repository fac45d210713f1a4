/* Convolutions that round the input rows of a unit once, for all outputs that the unit computes: rows in scratch, and units. */
#ifndef NNS_ROUNDED_ROWS_H
#define NNS_ROUNDED_ROWS_H

#include "compute.h"

/* The rows of a unit, in scratch: part after part, row after row. A column of a part is some channels of a pixel, 16 bits each.
 * Of a pointwise convolution they have only the pixels that it reads, and it has no strides then. */
typedef struct {
    uint16_t *first;
    int64_t rows, columns, parts;
    int64_t column, row, part; /* numbers from one to the next */
    int64_t down, across;      /* pixels of the input from a row to the next, and from a column to the next */
} rounded_rows;

NNS_INLINE bool is_pointwise(const kernel_geometry *s) { return s->kh == 1 && s->kw == 1; }

/* The convolution of rounded rows. */
NNS_INLINE kernel_geometry of_rounded(const kernel_geometry *s) {
    kernel_geometry of = *s;
    if (is_pointwise(s)) of.sh = of.sw = 1;
    return of;
}

/* Rounded rows that `outputs` output rows read. */
NNS_INLINE int64_t rows_for(const kernel_geometry *s, int64_t outputs) {
    return (outputs - 1) * of_rounded(s).sh + (s->kh - 1) * s->dh + 1;
}

/* Those of a unit of `outputs` output rows, with `column` channels in a column. */
NNS_INLINE rounded_rows rounded_rows_of(const kernel_geometry *s, int64_t outputs, int64_t column, void *scratch) {
    const kernel_geometry of = of_rounded(s);
    rounded_rows made = {
        .first = scratch,
        .rows = rows_for(s, nns_min_int(outputs, s->oh)),
        .columns = (s->ow - 1) * of.sw + (s->kw - 1) * s->dw + 1,
        .parts = nns_ceil_div(s->c, column),
        .column = column,
        .down = s->sh / of.sh,
        .across = s->sw / of.sw,
    };
    made.row = made.columns * column;
    made.part = made.rows * made.row;
    return made;
}

/* Bytes of them, negative if these are too many for an int64. */
NNS_INLINE int64_t rounded_rows_bytes(const rounded_rows *made) {
    return NNS_PRODUCT(made->parts, made->rows, made->columns, made->column, (int64_t)sizeof *made->first);
}

/* Columns of a rounded row. */
typedef struct {
    int64_t begin, end;
} column_range;

/* The columns of input row `h` that lie inside the input. */
NNS_INLINE column_range columns_inside(const kernel_geometry *s, const rounded_rows *made, int64_t h) {
    if (h < 0 || h >= s->h) return (column_range){made->columns, made->columns};
    return (column_range){nns_min_int(nns_ceil_div(s->pl, made->across), made->columns),
                          nns_min_int(nns_ceil_div(s->pl + s->w, made->across), made->columns)};
}

/* Some of the units [begin, end) of the input's channels. */
typedef struct {
    int64_t begin, end;
} channel_range;

/* The channels that an output vector of `lanes` reads, those of the groups of its lanes, in units of `unit` channels. */
NNS_INLINE channel_range channels_read(const kernel_geometry *s, int64_t groups, int64_t lanes, int64_t vector, int64_t unit) {
    const int64_t inputs = s->c / groups, outputs = s->o / groups;
    const int64_t first = vector * lanes, last = nns_min_int(first + lanes, s->o) - 1;
    return (channel_range){first / outputs * inputs / unit, nns_ceil_div((last / outputs + 1) * inputs, unit)};
}

/* The image, output rows and output vectors of a unit. */
typedef struct {
    int64_t image, begin, outputs, vector, end;
} unit_of_work;

/* Units: (image, chunk of `rows` output rows, share of `split` of the output vectors). */
NNS_INLINE int64_t units_of(const kernel_geometry *s, int64_t rows, int64_t split) {
    return s->n * nns_ceil_div(s->oh, rows) * split;
}

NNS_INLINE unit_of_work unit_at(const kernel_geometry *s, int64_t rows, int64_t split, int64_t vectors, int64_t unit) {
    const int64_t chunks = nns_ceil_div(s->oh, rows), share = unit % split, begin = unit / split % chunks * rows;
    return (unit_of_work){
        .image = unit / split / chunks,
        .begin = begin,
        .outputs = nns_min_int(s->oh - begin, rows),
        .vector = vectors * share / split,
        .end = vectors * (share + 1) / split,
    };
}

#endif
