/* The output vectors of compute.inc by tiles of AMX. It includes this file. */

enum { TILE = BF16_TILE, TILE_SUMS = TILE * NNS_BLOCK };

/* Sums of 16 columns at `x`, or of 32 `both`, and of the vector `v` and, with `pair`, the next one. They are
 * float[columns / 16][vectors][16][lane]. `pair` and `both` are constants. */
NNS_INLINE void add_tiles(const bool pair, const bool both, const strips *of, const output_vector *v,
                          const bfloat16 *x, float *sums) {
    const kernel_geometry *s = &of->geometry;
    const int64_t step = s->sw * BF16_COLUMN, parts = nns_ceil_div(v->end, BF16_PAIRS);
    const bfloat16 *w = v->w;
    _tile_zero(0);
    if (pair) _tile_zero(1);
    if (both) _tile_zero(2);
    if (pair && both) _tile_zero(3);
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t i = 0; i < s->kh; i++) {
            const bfloat16 *columns = x + part * of->part + i * s->dh * of->row;
            for (int64_t j = 0; j < s->kw; j++, columns += s->dw * BF16_COLUMN, w += BF16_TAP) {
                _tile_loadd(4, columns, step * (int64_t)sizeof *columns);
                _tile_loadd(6, w, BF16_TILE_BYTES);
                _tile_dpbf16ps(0, 4, 6);
                if (pair) {
                    _tile_loadd(7, w + of->w_block, BF16_TILE_BYTES);
                    _tile_dpbf16ps(1, 4, 7);
                }
                if (both) {
                    _tile_loadd(5, columns + TILE * step, step * (int64_t)sizeof *columns);
                    _tile_dpbf16ps(2, 5, 6);
                    if (pair) _tile_dpbf16ps(3, 5, 7);
                }
            }
        }
    }
    _tile_stored(0, sums, BF16_TILE_BYTES);
    if (pair) _tile_stored(1, sums + TILE_SUMS, BF16_TILE_BYTES);
    if (both) _tile_stored(2, sums + (pair ? 2 : 1) * TILE_SUMS, BF16_TILE_BYTES);
    if (pair && both) _tile_stored(3, sums + 3 * TILE_SUMS, BF16_TILE_BYTES);
}

/* Finishes and stores the sums of the places [place, end), at most 16 of them. Places are the columns of rows of `pitch`
 * columns; the first ow of each row belong to the output. The first row is output row `oh`. */
static void store_places(const strips *of, const output_vector *v, const float *from, int64_t oh, int64_t place,
                         int64_t end, int64_t pitch) {
    const int64_t ow = of->geometry.ow;
    const nns_vec bias = v->bias ? nns_load(v->bias) : nns_zero();
    nns_vec sums[TILE];
    COMPUTE_FOR(p, TILE) sums[p] = nns_load(from + p * NNS_BLOCK) + bias;
    for (int64_t at = place, count; at < end; at += count) {
        const int64_t row = at / pitch, column = at % pitch;
        count = nns_min_int(end - at, pitch - column);
        const int64_t valid = nns_min_int(count, ow - column), pixel = (oh + row) * ow + column;
        if (valid == TILE)
            store_strip(TILE, TILE, of, v, pixel, sums);
        else if (valid > 0)
            store_strip(TILE, valid, of, v, pixel, sums + (at - place));
    }
}

/* Computes the vector `v` and, with `pair`, the next one, for the first `places` places from output row `oh` on. */
NNS_INLINE void compute_places(const bool pair, const strips *of, const output_vector *v, int64_t oh,
                               int64_t places, int64_t pitch) {
    const kernel_geometry *s = &of->geometry;
    float sums[4 * TILE_SUMS] __attribute__((aligned(64)));
    for (int64_t place = 0; place < places; place += 2 * TILE) {
        const bool both = places - place > TILE;
        const bfloat16 *x = v[0].x + oh * s->sh * of->row + place * s->sw * BF16_COLUMN;
        if (both)
            add_tiles(pair, true, of, v, x, sums);
        else
            add_tiles(pair, false, of, v, x, sums);
        for (int tile = 0; tile <= both; tile++)
            for (int vector = 0; vector <= pair; vector++) {
                const int64_t first = place + tile * TILE;
                store_places(of, &v[vector], sums + (tile * (pair + 1) + vector) * TILE_SUMS, oh, first,
                             nns_min_int(places, first + TILE), pitch);
            }
    }
}

/* Computes `count` (1 or 2) vectors that read the same pairs, for `outputs` output rows. */
void bf16_compute(const strips *of, const output_vector *v, int64_t count, int64_t outputs) {
    const kernel_geometry *s = &of->geometry;
    /* Without strides, places run on from a row to the next. */
    const bool flat = s->sh == 1 && s->sw == 1;
    const int64_t pitch = flat ? of->columns : s->ow, places = flat ? (outputs - 1) * pitch + s->ow : s->ow;
    for (int64_t oh = 0; oh < (flat ? 1 : outputs); oh++) {
        if (count == 2)
            compute_places(true, of, v, oh, places, pitch);
        else
            compute_places(false, of, v, oh, places, pitch);
    }
}
