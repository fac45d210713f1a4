/* Divides kernels into parts and output planes into tiles, for the Winograd convolution.
 *
 * A kernel with stride s is the sum of s kernels with stride 1 over every s-th pixel, one per phase. A kernel with more taps than
 * the transform is the sum of shorter kernels. Each of these is a part: it has at most as many taps as the transform, begins at a
 * tap of the kernel, and reads pixels that are s apart. Their sums are added before decoding, as if parts were input channels.
 * An axis with one tap is not transformed. */
#ifndef NNS_WINOGRAD_PARTS_H
#define NNS_WINOGRAD_PARTS_H

#include "compute.h"

enum { WINOGRAD_AXIS_PARTS = 8, WINOGRAD_PARTS_MOST = WINOGRAD_AXIS_PARTS * WINOGRAD_AXIS_PARTS };

typedef struct {
    int64_t alpha, m;       /* positions and outputs of a tile; both 1 on an axis that is not transformed */
    int64_t stride;
    int64_t count, whole;   /* parts, and those with as many taps as the transform: the others are 0 at infinity */
} winograd_axis;

/* The first tap of part `index` of the kernel, counted phase by phase. */
NNS_INLINE int64_t winograd_first_tap(const winograd_axis *axis, int64_t taps, int64_t index) {
    if (axis->alpha == 1) return 0;
    const int64_t pieces = axis->count / axis->stride;
    return index / pieces + axis->stride * (index % pieces) * taps;
}

/* Whether the part has as many taps as the transform. */
NNS_INLINE bool winograd_is_whole(const winograd_axis *axis, int64_t kernel, int64_t taps, int64_t index) {
    return axis->alpha == 1 || winograd_first_tap(axis, taps, index) + axis->stride * (taps - 1) < kernel;
}

/* `alpha` and `taps` are the transform's. */
NNS_INLINE winograd_axis winograd_axis_of(int64_t kernel, int64_t stride, int64_t alpha, int64_t taps) {
    if (kernel == 1) return (winograd_axis){.alpha = 1, .m = 1, .stride = stride, .count = 1, .whole = 1};
    winograd_axis axis = {.alpha = alpha, .m = alpha - taps + 1, .stride = stride};
    axis.count = stride * nns_ceil_div(nns_ceil_div(kernel, stride), taps);
    for (int64_t i = 0; i < axis.count; i++) axis.whole += winograd_is_whole(&axis, kernel, taps, i);
    return axis;
}

/* Offset of a part's patch from the tile's patch, in pixels. */
typedef struct {
    int64_t row, column;
} winograd_part;

/* Lists the parts of both axes: first those with whole rows only, then with whole rows and columns, then with whole columns only,
 * then with neither. */
NNS_INLINE void winograd_list_parts(const winograd_axis *rows, const winograd_axis *columns, const kernel_geometry *s, int64_t taps,
                                    winograd_part *parts) {
    static const bool whole_rows[] = {true, true, false, false}, whole_columns[] = {false, true, true, false};
    for (int kind = 0; kind < 4; kind++)
        for (int64_t i = 0; i < rows->count; i++)
            for (int64_t j = 0; j < columns->count; j++) {
                const bool row_whole = winograd_is_whole(rows, s->kh, taps, i);
                const bool column_whole = winograd_is_whole(columns, s->kw, taps, j);
                if (row_whole == whole_rows[kind] && column_whole == whole_columns[kind])
                    *parts++ = (winograd_part){winograd_first_tap(rows, taps, i), winograd_first_tap(columns, taps, j)};
            }
}

/* The parts that have weights at a position: a half-open range of the list. */
NNS_INLINE tap_range winograd_parts_at(const winograd_axis *rows, const winograd_axis *columns, int64_t position) {
    const bool infinite_row = rows->alpha > 1 && position / columns->alpha == rows->alpha - 1;
    const bool infinite_column = columns->alpha > 1 && position % columns->alpha == columns->alpha - 1;
    const int64_t both = rows->whole * columns->whole, only_rows = rows->whole * columns->count - both;
    const int64_t only_columns = rows->count * columns->whole - both;
    return (tap_range){infinite_column ? only_rows : 0, infinite_row && infinite_column ? only_rows + both
                                                        : infinite_row                  ? only_rows + both
                                                        : infinite_column ? only_rows + both + only_columns
                                                                          : rows->count * columns->count};
}

#endif
