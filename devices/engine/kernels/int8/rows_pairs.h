/* The strips of rows_int8.c by products of eight channels (eights.h). It includes this file, which uses its vectors.
 *
 * Both operands of the products are made before the strips, so that these shuffle nothing: of the input rows, pairs of
 * columns that neighbouring outputs read at one tap, and of the weights of up to two vectors, pairs of lanes. An input
 * column belongs to two pairs unless the kernel has one column. */
#if INT8_EIGHTS
/* The converted inputs and weights of a unit, in scratch. A record is the pairs of two columns in a part. */
typedef struct {
    int8_t *weights;      /* int8[part][kh][kw][eight][vector][pair of lanes][lane][8] */
    int8_t *first;        /* int8[part][row][record][eight][column][8] */
    int64_t record;       /* bytes of a record */
    int64_t records;      /* of a row */
    int64_t row, part;    /* bytes */
    int64_t columns;      /* from the first column of a record to that of the next */
    int64_t to_next, tap; /* bytes from the record of two outputs to that of the next two, and from tap to tap */
} paired;

/* Whether pixels, of the input and of the output, run on from a row to the next. */
static bool is_flat(const kernel_geometry *s) {
    const bool pointwise = s->kh == 1 && s->kw == 1 && s->sh == 1 && s->sw == 1;
    return pointwise && !s->pt && !s->pl && s->ow == s->w && s->oh == s->h;
}

/* The geometry of units of `outputs` output rows: the rows of a flat convolution are one. */
static kernel_geometry paired_geometry(const kernel_geometry *s, int64_t outputs) {
    kernel_geometry made = *s;
    if (is_flat(s)) made.w = made.ow = outputs * s->ow;
    return made;
}

/* Bytes of the weights of as many vectors as are computed at a time. */
static int64_t paired_weights(const kernel_geometry *s, const grouping *g) {
    return EIGHT_VECTORS * EIGHT_WEIGHTS * g->parts * eights_of(g->per_part) * s->kh * s->kw;
}

/* What a unit of at most `outputs` output rows converts, without addresses. `s` is a paired_geometry. */
static paired paired_of(const kernel_geometry *s, const grouping *g, int64_t outputs) {
    const bool one = s->kw == 1;
    const int64_t pairs = nns_ceil_div(s->ow, 2);
    paired made = {.record = EIGHT_PAIR * eights_of(nns_min_int(g->quads, g->per_part))};
    made.columns = one ? 2 * s->sw : 1;
    made.to_next = made.record * (one ? 1 : 2 * s->sw);
    made.tap = made.record * s->dw;
    made.records = one ? pairs : (pairs - 1) * 2 * s->sw + (s->kw - 1) * s->dw + 1;
    made.row = made.records * made.record;
    made.part = (is_flat(s) ? 1 : rows_for(s, nns_min_int(outputs, s->oh))) * made.row;
    return made;
}

/* Bytes of scratch that units of at most `outputs` rows need, which scratch_bytes has accepted; negative if the weights of
 * a vector are too large. */
static int64_t paired_bytes(const kernel_geometry *whole, const grouping *g, int64_t outputs) {
    const kernel_geometry s = paired_geometry(whole, nns_min_int(outputs, whole->oh));
    const int64_t weights = block_bytes(&s, g);
    if (weights < 0 || weights > ROWS_BYTES) return -1;
    const paired made = paired_of(&s, g, outputs);
    return paired_weights(&s, g) + g->parts * made.part + EIGHT_WIDE * made.to_next;
}

/* ---- conversion -------------------------------------------------------------------------------------------------- */

/* Converts the weights of `count` vectors. */
static void pair_weights(const kernel_geometry *s, const grouping *g, const output_vector *v, int64_t count, int8_t *to) {
    const int64_t quad_bytes = NNS_BLOCK * INT8_QUAD;
    for (int64_t i = 0; i < count; i++) {
        const int8_t *w = v[i].w;
        int8_t *at = to + i * EIGHT_WEIGHTS;
        for (int64_t part = 0; part < g->parts; part++)
            for (int64_t tap = 0; tap < s->kh * s->kw; tap++, w += stored_quads(g, part) * quad_bytes)
                at = eight_pack(w, quad_bytes, quads_of(g, part), at, count * EIGHT_WEIGHTS);
    }
}

/* Eight channels of an input row: two blocks of pixels. */
typedef struct {
    const int8_t *first, *second;
    int64_t width;
    uint32_t zero; /* a quad of pixels beside the row */
} input_row;

/* The eight channels of two pixels at `column` and `sw` columns behind. */
NNS_INLINE int8x16_t pair_beside(const input_row *x, int64_t column, int64_t sw) {
    uint32_t quads[4];
    for (int i = 0; i < 2; i++) {
        const int64_t at = column + i * sw;
        const bool inside = at >= 0 && at < x->width;
        quads[2 * i] = inside ? int8_load_quad(x->first + at * NNS_BLOCK) : x->zero;
        quads[2 * i + 1] = inside ? int8_load_quad(x->second + at * NNS_BLOCK) : x->zero;
    }
    return vreinterpretq_s8_u32(vld1q_u32(quads));
}

/* The same of neighbours inside the row. */
NNS_INLINE int8x16_t pair_inside(const input_row *x, int64_t column) {
    const int8x8_t first = vld1_s8(x->first + column * NNS_BLOCK), second = vld1_s8(x->second + column * NNS_BLOCK);
    const uint32x4_t one = vreinterpretq_u32_s8(vcombine_s8(first, first));
    const uint32x4_t other = vreinterpretq_u32_s8(vcombine_s8(second, second));
    return vreinterpretq_s8_u32(vzip1q_u32(one, other));
}

/* Converts eight channels of a row to `to`; the record 0 begins `pl` columns before the row. */
static void pair_row(const input_row *x, const paired *made, int64_t pl, int64_t sw, int8_t *to) {
    const int64_t record = made->record, columns = made->columns;
    int64_t index = 0, column = -pl;
    for (; index < made->records && (sw != 1 || column < 0); index++, column += columns)
        vst1q_s8(to + index * record, pair_beside(x, column, sw));
    for (; index < made->records && column + 1 < x->width; index++, column += columns)
        vst1q_s8(to + index * record, pair_inside(x, column));
    for (; index < made->records; index++, column += columns)
        vst1q_s8(to + index * record, pair_beside(x, column, sw));
}

/* Converts the input rows of a unit. `x` is the image, `s` the paired_geometry of `whole`. */
static void pair_rows(const kernel_geometry *whole, const kernel_geometry *s, const grouping *g, const int8_t *x,
                      const rows_unit *unit, int8_t zero, const paired *made) {
    const int64_t plane = whole->h * whole->w * NNS_BLOCK, first_block = unit->set * g->quads;
    const int64_t rows = is_flat(s) ? 1 : rows_for(s, unit->outputs);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t h = unit->begin * s->sh - s->pt + row;
        const bool inside = h >= 0 && h < s->h;
        for (int64_t quad = 0; quad < g->quads; quad += EIGHT_QUADS) {
            /* Without a second quad the weights are zeros. */
            const int8_t *first = x + (first_block + quad) * plane, *second = quad + 1 < g->quads ? first + plane : first;
            const int64_t at = inside ? h * whole->w * NNS_BLOCK : 0;
            const input_row from = {first + at, second + at, inside ? s->w : 0, (uint8_t)zero * 0x01010101u};
            int8_t *to = made->first + quad / g->per_part * made->part + row * made->row +
                         quad % g->per_part / EIGHT_QUADS * EIGHT_PAIR;
            pair_row(&from, made, s->pl, s->sw, to);
        }
    }
}

/* ---- strips ------------------------------------------------------------------------------------------------------ */

/* Computes 2 * `pairs` columns of `rows` neighbouring output rows from column `pixel`, an even one, of row `oh` on, of
 * `vectors` vectors, and stores `valid` of the columns. Counts are constants. */
NNS_INLINE void compute_pairs(const int rows, const int pairs, const int vectors, int64_t valid, const kernel_geometry *s,
                              const grouping *g, const paired *from, const output_vector *v, int64_t oh, int64_t pixel) {
    eight_sums sums[EIGHT_VECTORS * EIGHT_WIDE];
    COMPUTE_FOR(i, vectors) {
        const eight_sums bias = eight_bias(compute_load_bits(v[i].bias));
        COMPUTE_FOR(p, rows * pairs) sums[p * vectors + i] = bias;
    }
    const int8_t *w = from->weights;
    for (int64_t part = 0; part < g->parts; part++) {
        for (int64_t i = 0; i < s->kh; i++) {
            const int8_t *x = from->first + part * from->part + (oh * s->sh + i * s->dh) * from->row +
                              pixel / 2 * from->to_next;
            for (int64_t j = 0; j < s->kw; j++, x += from->tap) {
                const int8_t *each[EIGHT_WIDE];
                COMPUTE_FOR(r, rows) COMPUTE_FOR(p, pairs)
                    each[r * pairs + p] = x + r * s->sh * from->row + p * from->to_next;
                w = eight_add(rows * pairs, vectors, eights_of(quads_of(g, part)), each, w, sums);
            }
        }
    }
    COMPUTE_FOR(i, vectors) {
        const nns_vec multipliers = nns_load(v[i].multipliers);
        COMPUTE_FOR(r, rows) {
            nns_uvec blocks[2 * EIGHT_WIDE];
            COMPUTE_FOR(p, 2 * pairs) blocks[p] = eight_sums_of(sums[(r * pairs + p / 2) * vectors + i], p % 2);
            const int64_t at = ((oh + r) * s->ow + pixel) * NNS_BLOCK;
            int8_store(2 * pairs, valid, &v[i].finish, blocks, 1, multipliers,
                       v[i].residual ? v[i].residual + at : NULL, v[i].y + at);
        }
    }
}

/* Computes `outputs` output rows of `vectors` vectors, a constant. Narrow rows are computed two or three at a time. */
NNS_INLINE void compute_paired_rows(const int vectors, const kernel_geometry *s, const grouping *g, const paired *from,
                                    const output_vector *v, int64_t outputs) {
    int64_t oh = 0;
    if (s->ow <= 2 * EIGHT_NARROW)
        for (; oh + 3 <= outputs; oh += 3) compute_pairs(3, EIGHT_NARROW, vectors, s->ow, s, g, from, v, oh, 0);
    if (s->ow <= EIGHT_WIDE)
        for (; oh + 2 <= outputs; oh += 2) compute_pairs(2, EIGHT_WIDE / 2, vectors, s->ow, s, g, from, v, oh, 0);
    for (; oh < outputs; oh++) {
        int64_t pixel = 0, left = s->ow;
        for (; left > 2 * EIGHT_MIDDLE; pixel += 2 * EIGHT_WIDE, left -= 2 * EIGHT_WIDE)
            compute_pairs(1, EIGHT_WIDE, vectors, nns_min_int(left, 2 * EIGHT_WIDE), s, g, from, v, oh, pixel);
        if (left > 2 * EIGHT_NARROW)
            compute_pairs(1, EIGHT_MIDDLE, vectors, left, s, g, from, v, oh, pixel);
        else if (left > 0)
            compute_pairs(1, EIGHT_NARROW, vectors, left, s, g, from, v, oh, pixel);
    }
}

#define PAIRED(name, vectors)                                                                                          \
    static __attribute__((noinline)) void name(const kernel_geometry *s, const grouping *g, const paired *from,        \
                                               const output_vector *v, int64_t outputs) {                              \
        compute_paired_rows(vectors, s, g, from, v, outputs);                                                          \
    }
PAIRED(paired_v1, 1)
PAIRED(paired_v2, EIGHT_VECTORS)

static void run_pairs(const nns_args *args, const grouping *g, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const rows_int8_parameters *p = (const void *)args->p;
    const kernel_geometry *whole = &p->geometry;
    const int64_t image_bytes = blocks_of(whole->c) * whole->h * whole->w * NNS_BLOCK;
    const window from = {.first = scratch}; /* not read */
    for (int64_t index = unit_begin; index < unit_end; index++) {
        const rows_unit unit = unit_at(p, g, index);
        const kernel_geometry s = paired_geometry(whole, unit.outputs);
        paired made = paired_of(&s, g, unit.outputs);
        made.weights = scratch;
        made.first = made.weights + paired_weights(&s, g);
        pair_rows(whole, &s, g, (const int8_t *)args->in[READ_X] + unit.image * image_bytes, &unit, (int8_t)p->zero, &made);
        const int64_t outputs = is_flat(&s) ? 1 : unit.outputs;
        for (int64_t vector = unit.vector; vector < unit.end; vector += EIGHT_VECTORS) {
            output_vector v[EIGHT_VECTORS];
            const int64_t count = nns_min_int(EIGHT_VECTORS, unit.end - vector);
            for (int64_t i = 0; i < count; i++) select_vector(args, g, &from, &unit, vector + i, &v[i]);
            pair_weights(&s, g, v, count, made.weights);
            (count == EIGHT_VECTORS ? paired_v2 : paired_v1)(&s, g, &made, v, outputs);
        }
    }
}
#endif
