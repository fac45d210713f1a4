/* The converted rows of rows_int8.c: groups of channels in sets, and the rows and columns of a unit of work. */
#ifndef NNS_INT8_ROWS_WINDOW_H
#define NNS_INT8_ROWS_WINDOW_H

#include "int8/eights.h"

/* AMX: a tile is the quads of 16 columns, the weights of as many quads, or the sums of 16 columns. */
#if defined(__AMX_INT8__) && NNS_BLOCK == 16
#define ROWS_TILES 1
#else
#define ROWS_TILES 0
#endif

enum {
    ROWS_QUADS = 16,      /* of a column of a part: as many as a cache line has without INT8_WIDE */
    ROWS_QUAD = INT8_QUAD * (INT8_WIDE ? 2 : 1), /* bytes of a converted quad */
    ROWS_COLUMN = ROWS_QUADS * ROWS_QUAD,
    ROWS_MOST_GROUPS = 4, /* of a set */
    ROWS_TILE = 16,       /* columns of a tile */
    ROWS_BEHIND = 32,     /* columns behind the last one, times the stride, that strips and tiles may read */
    MOST = COMPUTE_MANY_REGISTERS ? 28 : 12, /* maximum sums of a strip: of columns and vectors */
};
/* Maximum bytes of the converted rows. */
#define ROWS_BYTES (INT64_C(1) << 26)
/* What converted bytes are exclusive-ored with; numbers of more bytes are not. */
#define ROWS_FLIP (INT8_UNSIGNED ? 0x80u : 0u)
_Static_assert(!INT8_UNSIGNED || !INT8_WIDE, "flips are for bytes");

/* Groups, and what follows from them. */
typedef struct {
    int64_t inputs, outputs; /* channels of a group */
    int64_t groups, vectors; /* of a set */
    int64_t sets;
    int64_t quads;           /* of a group */
    int64_t per_part, parts; /* quads of a group in a part, and parts */
    int64_t step, of_group;  /* in a column, from a quad of a group to its next, and from a group to the next */
    bool packed;             /* the last part's weights are those of its quads alone */
} grouping;

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static grouping grouping_of(const rows_int8_parameters *p) {
    const kernel_geometry *s = &p->geometry;
    const int64_t groups = p->groups;
    grouping made = {.inputs = s->c / groups, .outputs = s->o / groups, .packed = p->packed == 1};
    made.groups = groups == 1 ? 1 : NNS_BLOCK / common_divisor(made.outputs, NNS_BLOCK);
    made.vectors = nns_ceil_div(made.groups * made.outputs, NNS_BLOCK);
    made.sets = nns_ceil_div(groups, made.groups);
    made.quads = made.inputs / INT8_QUAD;
    made.per_part = nns_max_int(1, ROWS_QUADS / made.groups);
    made.parts = nns_ceil_div(made.quads, made.per_part);
    const bool alternate = made.groups == 2 && !ROWS_TILES && !INT8_WIDE;
    made.step = alternate ? 2 : 1;
    made.of_group = alternate ? 1 : made.per_part;
    return made;
}

/* Quads of each group in part `part`, and quads that weights have for it. */
NNS_INLINE int64_t quads_of(const grouping *g, int64_t part) {
    return nns_min_int(g->per_part, g->quads - part * g->per_part);
}
NNS_INLINE int64_t stored_quads(const grouping *g, int64_t part) { return g->packed ? quads_of(g, part) : g->per_part; }

/* Bytes of the weights of an output block. */
static int64_t block_bytes(const kernel_geometry *s, const grouping *g) {
    return NNS_PRODUCT(NNS_BLOCK, g->packed ? g->quads : g->parts * g->per_part, INT8_QUAD, s->kh, s->kw);
}

/* ---- converted rows ---------------------------------------------------------------------------------------------- */

/* The rows of a unit, in scratch: part after part, row after row. */
typedef struct {
    uint8_t *first;
    int64_t columns;   /* of a row */
    int64_t row, part; /* bytes */
} window;

/* Converted rows of `outputs` output rows, and columns of each. */
static int64_t rows_for(const kernel_geometry *s, int64_t outputs) {
    return (outputs - 1) * s->sh + (s->kh - 1) * s->dh + 1;
}
static int64_t columns_of(const kernel_geometry *s) { return (s->ow - 1) * s->sw + (s->kw - 1) * s->dw + 1; }

static window window_of(const kernel_geometry *s, int64_t outputs, void *scratch) {
    window made = {.first = scratch, .columns = columns_of(s)};
    made.row = made.columns * ROWS_COLUMN;
    made.part = rows_for(s, nns_min_int(outputs, s->oh)) * made.row;
    return made;
}

/* Bytes of scratch; negative if the converted rows are too large. */
static int64_t scratch_bytes(const kernel_geometry *s, const grouping *g, int64_t outputs) {
    const int64_t rows = rows_for(s, nns_min_int(outputs, s->oh));
    const int64_t bytes = NNS_PRODUCT(g->parts, rows, columns_of(s), ROWS_COLUMN);
    if (bytes < 0 || bytes > ROWS_BYTES) return -1;
    return bytes + ROWS_BEHIND * s->sw * ROWS_COLUMN;
}

/* Fills `count` columns at `to` with the zero point of the input. */
NNS_INLINE void fill_columns(int8_t zero, int64_t count, uint8_t *to) {
#if INT8_WIDE
    const int16_t wide = zero;
    for (int64_t at = 0; at < count * ROWS_COLUMN; at += (int64_t)sizeof wide) memcpy(to + at, &wide, sizeof wide);
#else
    memset(to, (uint8_t)zero ^ ROWS_FLIP, (size_t)(count * ROWS_COLUMN));
#endif
}

/* Copies `count` blocks at `from`, or the first quad of each, to columns. `whole` is a constant. */
NNS_INLINE void convert_columns(const bool whole, const int8_t *from, int64_t count, uint8_t *to) {
    for (int64_t column = 0; column < count; column++, from += NNS_BLOCK, to += ROWS_COLUMN) {
#if INT8_WIDE
        typedef int16_t wide __attribute__((vector_size(NNS_BLOCK * sizeof(int16_t))));
        int8_block block = {0};
        memcpy(&block, from, whole ? sizeof block : INT8_QUAD);
        const wide made = __builtin_convertvector(block, wide);
        memcpy(to, &made, whole ? sizeof made : ROWS_QUAD);
#else
        if (whole) {
            int8_block block;
            memcpy(&block, from, sizeof block);
            block ^= (int8_t)ROWS_FLIP;
            memcpy(to, &block, sizeof block);
        } else {
            const uint32_t quad = int8_load_quad(from) ^ ROWS_FLIP * 0x01010101u;
            memcpy(to, &quad, sizeof quad);
        }
#endif
    }
}

#if NNS_BLOCK == 16 && defined(__AVX512F__) && !INT8_WIDE
#define ROWS_WHOLE 1
enum { ROWS_WHOLE_BLOCKS = ROWS_COLUMN / NNS_BLOCK };

/* Makes `count` columns of `blocks` blocks, a constant, `plane` bytes apart: quad i of a column is quad order[i] of these. */
NNS_INLINE void convert_blocks(const int blocks, const int8_t *from, int64_t plane, int64_t count, __m512i order,
                               uint8_t *to) {
    const __m512i flip = _mm512_set1_epi8((char)ROWS_FLIP);
    for (int64_t column = 0; column < count; column++, from += NNS_BLOCK, to += ROWS_COLUMN) {
        __m512i all = _mm512_zextsi128_si512(_mm_loadu_si128((const void *)from));
        if (blocks > 1) all = _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(from + plane)), 1);
        if (blocks > 2) all = _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(from + 2 * plane)), 2);
        if (blocks > 3) all = _mm512_inserti32x4(all, _mm_loadu_si128((const void *)(from + 3 * plane)), 3);
        _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_permutexvar_epi32(order, all), flip));
    }
}

/* Whether the quads of a part lie in as many blocks as fit into a column. */
static bool are_whole(const grouping *g) {
    return g->groups == 1 ? g->sets == 1 : g->groups * g->inputs <= ROWS_COLUMN && g->groups * g->inputs % NNS_BLOCK == 0;
}

/* Converts the columns inside the input of an input row at `from` of the groups [first, end) of a set that is whole. */
static void convert_whole(const kernel_geometry *s, const grouping *g, const int8_t *from, int64_t first, int64_t end,
                          int64_t count, const window *made, uint8_t *to) {
    const int64_t begin = first * g->inputs / NNS_BLOCK, blocks = nns_ceil_div(end * g->inputs, NNS_BLOCK) - begin;
    const int64_t plane = s->h * s->w * NNS_BLOCK;
    uint32_t quads[NNS_BLOCK] = {0};
    for (int64_t group = 0; group < g->groups; group++)
        for (int64_t quad = 0; quad < nns_min_int(g->quads, g->per_part); quad++)
            quads[group * g->of_group + quad * g->step] = (uint32_t)(group * g->quads + quad);
    const __m512i order = _mm512_loadu_si512(quads);
    from += begin * plane;
    for (int64_t block = 0; block < blocks; block += ROWS_WHOLE_BLOCKS, to += made->part) {
        switch (nns_min_int(blocks - block, ROWS_WHOLE_BLOCKS)) {
        case 1: convert_blocks(1, from + block * plane, plane, count, order, to); break;
        case 2: convert_blocks(2, from + block * plane, plane, count, order, to); break;
        case 3: convert_blocks(3, from + block * plane, plane, count, order, to); break;
        default: convert_blocks(4, from + block * plane, plane, count, order, to);
        }
    }
}
#else
#define ROWS_WHOLE 0
#endif

/* Converts input row `h`, which may be outside the input, of the groups [first, end) of the image at `x`. Bytes of quads
 * that a group or the set does not have hold anything: their weights are zeros. */
static void convert_row(const kernel_geometry *s, const grouping *g, const int8_t *x, int64_t h, int64_t first,
                        int64_t end, int8_t zero, const window *made, uint8_t *to) {
    const bool inside = h >= 0 && h < s->h;
    const int64_t begin_column = inside ? nns_min_int(s->pl, made->columns) : made->columns;
    const int64_t end_column = inside ? nns_min_int(s->pl + s->w, made->columns) : made->columns;
    for (int64_t part = 0; part < g->parts; part++) {
        uint8_t *row = to + part * made->part;
        fill_columns(zero, begin_column, row);
        fill_columns(zero, made->columns - end_column, row + end_column * ROWS_COLUMN);
    }
    if (!inside) return;
#if ROWS_WHOLE
    if (are_whole(g)) {
        convert_whole(s, g, x + h * s->w * NNS_BLOCK, first, end, end_column - begin_column, made,
                      to + begin_column * ROWS_COLUMN);
        return;
    }
#endif
    for (int64_t group = first; group < end; group++) {
        for (int64_t quad = 0, count; quad < g->quads; quad += count) {
            const int64_t channel = group * g->inputs + quad * INT8_QUAD, lane = channel % NNS_BLOCK;
            const int8_t *from = x + (channel / NNS_BLOCK * s->h + h) * s->w * NNS_BLOCK + lane;
            uint8_t *place = to + quad / g->per_part * made->part + begin_column * ROWS_COLUMN +
                             ((group - first) * g->of_group + quad % g->per_part * g->step) * ROWS_QUAD;
            const int64_t left = nns_min_int(g->quads - quad, g->per_part - quad % g->per_part);
            if (lane == 0 && left >= INT8_QUADS && g->step == 1) {
                convert_columns(true, from, end_column - begin_column, place);
                count = INT8_QUADS;
            } else {
                convert_columns(false, from, end_column - begin_column, place);
                count = 1;
            }
        }
    }
}

#endif
