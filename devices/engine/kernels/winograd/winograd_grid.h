/* Parts of kernels, panels of weights, tiles, units of work and the parameter check of the Winograd convolution. */
#ifndef NNS_WINOGRAD_GRID_H
#define NNS_WINOGRAD_GRID_H

#include "winograd.h"

/* ---- parts of a kernel along an axis --------------------------------------------------------------------------------
 *
 * A kernel with stride s is the sum of s kernels with stride 1 over every s-th pixel, one per phase. A kernel with more
 * taps than the transform is the sum of shorter kernels. Each of these is a part: it has at most as many taps as the
 * transform, begins at a tap of the kernel, and reads pixels that are s apart. Their sums are added before decoding, as
 * if parts were input channels. An axis with one tap is not transformed. */

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

/* Lists the parts of both axes: first those with whole rows only, then with whole rows and columns, then with whole
 * columns only, then with neither. */
NNS_INLINE void winograd_list_parts(const winograd_axis *rows, const winograd_axis *columns, const kernel_geometry *s,
                                    int64_t taps, winograd_part *parts) {
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

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* Output channels that are computed together, and the input channels of all their groups. */
typedef struct {
    int64_t begin, width; /* output channels within the panel */
    int64_t lane_begin, lane_end;
} winograd_piece;

typedef struct {
    int64_t count;
    winograd_piece pieces[2];
} winograd_panel;

NNS_INLINE winograd_piece piece_of(const kernel_geometry *s, int64_t groups, int64_t panel_begin, int64_t begin,
                                   int64_t width) {
    const int64_t per_group = s->o / groups, first = panel_begin + begin;
    const int64_t last = nns_min_int(first + width, s->o) - 1;
    return (winograd_piece){begin, width, first / per_group * (s->c / groups),
                            (last / per_group + 1) * (s->c / groups)};
}

NNS_INLINE winograd_panel panel_of(const kernel_geometry *s, int64_t groups, int64_t vectors, int64_t index) {
    const int64_t width = vectors * NNS_BLOCK, begin = index * width, half = width / 2, per_group = s->o / groups;
    /* The halves may be computed separately, so that groups that end within a block do not multiply by their
     * neighbour's zeros. */
    if (COMPUTE_HALVES && vectors == 1 && per_group % half == 0 && begin + half < s->o &&
        begin / per_group != (begin + half) / per_group)
        return (winograd_panel){2, {piece_of(s, groups, begin, 0, half), piece_of(s, groups, begin, half, half)}};
    return (winograd_panel){1, {piece_of(s, groups, begin, 0, width)}};
}

/* Bytes of a piece's weights at one position, with their scales. */
NNS_INLINE int64_t piece_bytes(const winograd_piece *piece, const winograd_variant *variant) {
    const int64_t lanes = piece->lane_end - piece->lane_begin;
    if (!variant->steps) return lanes * piece->width * (int64_t)sizeof(float);
    const int64_t scales = nns_ceil_div(lanes, WINOGRAD_GROUP) * (int64_t)sizeof(float);
    return piece->width * (lanes * (int64_t)sizeof(int16_t) + scales);
}

/* Bytes of the largest panel's weights at one position. */
NNS_INLINE int64_t largest_panel(const kernel_geometry *s, int64_t groups, const winograd_variant *variant) {
    const int64_t vectors = variant->vectors;
    if (groups == 1) return piece_bytes(&(winograd_piece){0, vectors * NNS_BLOCK, 0, s->c}, variant);
    int64_t largest = 0;
    for (int64_t i = 0; i < blocks_of(s->o) / vectors; i++) {
        const winograd_panel panel = panel_of(s, groups, vectors, i);
        int64_t size = 0;
        for (int64_t k = 0; k < panel.count; k++) size += piece_bytes(&panel.pieces[k], variant);
        largest = nns_max_int(largest, size);
    }
    return largest;
}

/* ---- units: (block of tiles, chunk of panels) -------------------------------------------------------------------- */

/* Tiles are counted through all images. Blocks of them differ by at most one tile. */
typedef struct {
    winograd_axis down, across;
    int64_t rows, columns, tiles;  /* tiles down and across an output plane, and in total */
    int64_t blocks, per_block;     /* blocks of tiles, tiles in the largest */
    int64_t panels, chunks;        /* chunks of panels */
    int64_t positions, parts;
    int64_t v_position, m_position; /* floats between positions in scratch; odd numbers of vectors, so that the lines of
                                       one tile lie in different cache sets */
} winograd_grid;

/* Blocks of encoded input of all parts. The channels of planar inputs' parts share blocks. */
NNS_INLINE int64_t encoded_blocks(const kernel_geometry *s, const winograd_parameters *p, int64_t parts) {
    return p->planar ? blocks_of(s->c * parts) : blocks_of(s->c) * parts;
}

NNS_INLINE winograd_grid grid_of(const kernel_geometry *s, const winograd_parameters *p,
                                 const winograd_variant *variant) {
    winograd_grid grid = {
        .down = winograd_axis_of(s->kh, s->sh, variant->alpha, variant->taps),
        .across = winograd_axis_of(s->kw, s->sw, variant->alpha, variant->taps),
    };
    grid.rows = nns_ceil_div(s->oh, grid.down.m);
    grid.columns = nns_ceil_div(s->ow, grid.across.m);
    grid.tiles = s->n * grid.rows * grid.columns;
    grid.blocks = nns_ceil_div(grid.tiles, p->tiles);
    grid.per_block = nns_ceil_div(grid.tiles, grid.blocks);
    grid.panels = blocks_of(s->o) / variant->vectors;
    grid.chunks = nns_ceil_div(grid.panels, p->panels);
    grid.positions = grid.down.alpha * grid.across.alpha;
    grid.parts = grid.down.count * grid.across.count;
    grid.v_position = (encoded_blocks(s, p, grid.parts) * grid.per_block | 1) * NNS_BLOCK;
    grid.m_position = (grid.per_block * variant->vectors | 1) * NNS_BLOCK;
    return grid;
}

/* The front of the scratch: the encoded block of tiles (its number + 1; 0: none) and its input blocks. */
typedef struct {
    int64_t number, block_begin, block_end;
} winograd_note;

enum { WINOGRAD_NOTE_BYTES = 64 };

NNS_INLINE int64_t tile_table_bytes(const winograd_grid *grid) {
    return nns_ceil_div(grid->per_block * (int64_t)sizeof(winograd_tile), 64) * 64;
}

/* Parts summed over all positions: a panel's weights per input and output channel. */
NNS_INLINE int64_t all_parts(const winograd_grid *grid) {
    int64_t sum = 0;
    for (int64_t position = 0; position < grid->positions; position++) {
        const tap_range parts = winograd_parts_at(&grid->down, &grid->across, position);
        sum += parts.end - parts.begin;
    }
    return sum;
}

/* What is wrong with the parameters, or NULL. */
NNS_INLINE const char *parameters_check(const winograd_parameters *p, const winograd_variant *variant) {
    const kernel_geometry s = p->geometry;
    if (s.sh > WINOGRAD_MAX_STRIDE || s.sw > WINOGRAD_MAX_STRIDE || s.dh != 1 || s.dw != 1)
        return "a Winograd convolution must have strides of at most 2 and no dilation";
    if (s.kh == 1 && s.kw == 1) return "a Winograd convolution must have a kernel of more than one tap";
    const winograd_axis down = winograd_axis_of(s.kh, s.sh, variant->alpha, variant->taps);
    const winograd_axis across = winograd_axis_of(s.kw, s.sw, variant->alpha, variant->taps);
    if (down.count > WINOGRAD_AXIS_PARTS || across.count > WINOGRAD_AXIS_PARTS)
        return "the kernel has too many parts for a Winograd convolution";
    const int64_t groups = p->groups;
    if (s.c % groups || s.o % groups) return "groups do not divide the channels";
    if (p->planar && (groups > 1 || s.c > NNS_BLOCK))
        return "a planar input must have one group of at most a block of channels";
    if (blocks_of(s.o) % variant->vectors) return "the panel's vectors do not divide the output's";
    return NULL;
}

#endif
