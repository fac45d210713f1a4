/* The strips of rows_int8.c by tiles of AMX. It includes this file, which uses its vectors. */
#if ROWS_TILES
#include "tile_shapes.h"

/* Tiles 0 to 3 are sums, 4 and 5 columns, 6 and 7 weights. */
static void shape_tiles(const grouping *g) {
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = (uint16_t)(i == 4 || i == 5 ? g->per_part * INT8_QUAD : ROWS_COLUMN);
        shapes.rows[i] = (uint8_t)(i < 6 ? ROWS_TILE : g->per_part);
    }
    _tile_loadconfig(&shapes);
}

/* Sums of 16 columns at `x`, or of 32 `both`, and of the vectors at `w` and, with `pair`, `w_block` bytes behind. They are
 * int32[columns / 16][vectors][16][lane]. `pair` and `both` are constants. */
NNS_INLINE void add_tiles(const bool pair, const bool both, const kernel_geometry *s, const grouping *g,
                          const output_vector *v, const uint8_t *x, int64_t w_block, int32_t *sums) {
    const int64_t step = s->sw * ROWS_COLUMN;
    const int8_t *w = v->w;
    _tile_zero(0);
    if (pair) _tile_zero(1);
    if (both) _tile_zero(2);
    if (pair && both) _tile_zero(3);
    for (int64_t part = 0; part < g->parts; part++) {
        for (int64_t i = 0; i < s->kh; i++) {
            const uint8_t *columns = x + part * v->part + i * s->dh * v->row;
            for (int64_t j = 0; j < s->kw; j++, columns += s->dw * ROWS_COLUMN) {
                _tile_loadd(4, columns, step);
                _tile_loadd(6, w, ROWS_COLUMN);
                _tile_dpbusd(0, 4, 6);
                if (pair) {
                    _tile_loadd(7, w + w_block, ROWS_COLUMN);
                    _tile_dpbusd(1, 4, 7);
                }
                if (both) {
                    _tile_loadd(5, columns + ROWS_TILE * step, step);
                    _tile_dpbusd(2, 5, 6);
                    if (pair) _tile_dpbusd(3, 5, 7);
                }
                w += g->per_part * ROWS_COLUMN;
            }
        }
    }
    enum { SUMS = ROWS_TILE * NNS_BLOCK };
    _tile_stored(0, sums, ROWS_COLUMN);
    if (pair) _tile_stored(1, sums + SUMS, ROWS_COLUMN);
    if (both) _tile_stored(2, sums + (pair ? 2 : 1) * SUMS, ROWS_COLUMN);
    if (pair && both) _tile_stored(3, sums + 3 * SUMS, ROWS_COLUMN);
}

/* Rounds and stores the sums of the places [place, end), at most 16 of them. Places are the columns of rows of `pitch`
 * columns; the first ow of each row belong to the output. The first row is output row `oh`. */
static void store_places(const kernel_geometry *s, const output_vector *v, const int32_t *from, int64_t oh,
                         int64_t place, int64_t end, int64_t pitch) {
    const nns_uvec bias = compute_load_bits(v->bias);
    const nns_vec multipliers = nns_load(v->multipliers);
    nns_uvec sums[ROWS_TILE];
    COMPUTE_FOR(p, ROWS_TILE) sums[p] = compute_load_bits(from + p * NNS_BLOCK) + bias;
    for (int64_t at = place, count; at < end; at += count) {
        const int64_t row = at / pitch, column = at % pitch;
        count = nns_min_int(end - at, pitch - column);
        const int64_t valid = nns_min_int(count, s->ow - column), out = ((oh + row) * s->ow + column) * NNS_BLOCK;
        const int8_t *residual = v->residual ? v->residual + out : NULL;
        if (valid == ROWS_TILE)
            int8_store(ROWS_TILE, ROWS_TILE, &v->finish, sums, 1, multipliers, residual, v->y + out);
        else if (valid > 0)
            int8_store(ROWS_TILE, valid, &v->finish, sums + (at - place), 1, multipliers, residual, v->y + out);
    }
}

/* Computes the vector `v` and, with `pair`, the next one, for the first `places` places from output row `oh` on. */
NNS_INLINE void compute_places(const bool pair, const kernel_geometry *s, const grouping *g, const output_vector *v,
                               int64_t w_block, int64_t oh, int64_t places, int64_t pitch) {
    enum { SUMS = ROWS_TILE * NNS_BLOCK };
    int32_t sums[4 * SUMS] __attribute__((aligned(64)));
    for (int64_t place = 0; place < places; place += 2 * ROWS_TILE) {
        const bool both = places - place > ROWS_TILE;
        const uint8_t *x = v[0].x + oh * s->sh * v[0].row + place * s->sw * ROWS_COLUMN;
        if (both)
            add_tiles(pair, true, s, g, v, x, w_block, sums);
        else
            add_tiles(pair, false, s, g, v, x, w_block, sums);
        for (int tile = 0; tile <= both; tile++)
            for (int vector = 0; vector <= pair; vector++) {
                const int64_t first = place + tile * ROWS_TILE;
                store_places(s, &v[vector], sums + (tile * (pair + 1) + vector) * SUMS, oh, first,
                             nns_min_int(places, first + ROWS_TILE), pitch);
            }
    }
}

/* Computes `count` (1 or 2) vectors of a group for `outputs` output rows. */
static void compute_tiles(const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t count,
                          int64_t w_block, int64_t outputs, int64_t columns) {
    /* Without strides, places run on from a row to the next. */
    const bool flat = s->sh == 1 && s->sw == 1;
    const int64_t pitch = flat ? columns : s->ow, places = flat ? (outputs - 1) * columns + s->ow : s->ow;
    for (int64_t oh = 0; oh < (flat ? 1 : outputs); oh++) {
        if (count == 2)
            compute_places(true, s, g, v, w_block, oh, places, pitch);
        else
            compute_places(false, s, g, v, w_block, oh, places, pitch);
    }
}
#endif
