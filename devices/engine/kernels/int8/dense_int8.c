/* Dense layers of int8 on plain tensors: x · Wᵀ + bias + residual, rounded.
 *
 * reads   x [n][k], weights, bias (int32[2][lanes], as int8_bias says), multipliers (a float per lane: of a sum, in
 *         steps of the output's scale), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory; or float32 (p->result)
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Lanes are m padded to whole panels.
 * Weights lie in panels of VECTORS output vectors: int8[quad of inputs][VECTORS][lane][4], zero beyond k and m. */
#include "int8/eights.h"

NNS_DEFINE_READS(dense_int8);

/* Prefetch distance of weights in bytes, about 200 ns at memory speed. */
#define DENSE_AHEAD 4096
/* Bytes of a cache line. */
#define DENSE_LINE 64

enum { DENSE_ROWS = NNS_MOST(dense_int8, 1), DENSE_VECTORS = NNS_MOST(dense_int8, 2) };
_Static_assert((int)DENSE_ROWS <= (int)COMPUTE_MOST_COUNT, "COMPUTE_BY_COUNT has no case for a tile of this many rows");

typedef struct {
    const int8_t *x;
    const int8_t *w; /* of the panel, as the next four */
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* or NULL */
    int8_t *y;
    int64_t k, m;
    int64_t columns; /* columns of the panel that are in y */
    bool far;        /* the weights are not in a cache: first tile of rows */
    int8_rounding finish;
} dense_panel;

/* Computes `count` rows of a panel from `row` on. */
typedef void (*dense_rows)(int64_t count, const dense_panel *panel, int64_t row);

/* Stores `n` results, up to a block, as float32 where int8 results would lie `at` bytes behind y and the residual. */
NNS_INLINE void dense_store_floats(const dense_panel *panel, int64_t at, int64_t n, nns_uvec sum, nns_vec multipliers) {
    int8_t some[NNS_BLOCK] = {0};
    if (panel->residual) memcpy(some, panel->residual + at, (size_t)n);
    const nns_vec made = int8_float_result(&panel->finish, sum, multipliers, panel->residual ? some : NULL);
    float *to = panel->finish.floats + (panel->y - panel->finish.first) + at;
    if (n == NNS_BLOCK)
        nns_store(to, made);
    else
        memcpy(to, &made, (size_t)n * sizeof *to);
}

NNS_INLINE void dense_store(const dense_panel *panel, int64_t row, int64_t column, nns_uvec sum) {
    const int64_t at = row * panel->m + column, n = nns_min_int(NNS_BLOCK, panel->columns - column);
    if (n <= 0) return;
    const nns_vec multipliers = nns_load(panel->multipliers + column);
    if (panel->finish.floats) {
        dense_store_floats(panel, at, n, sum, multipliers);
        return;
    }
    if (n == NNS_BLOCK) {
        const int8_t *residual = panel->residual ? panel->residual + at : NULL;
        const int8_block made = int8_narrow(&panel->finish, int8_result(&panel->finish, sum, multipliers, residual));
        memcpy(panel->y + at, &made, sizeof made);
        return;
    }
    int8_t some[NNS_BLOCK] = {0};
    if (panel->residual) memcpy(some, panel->residual + at, (size_t)n);
    const nns_ivec steps = int8_result(&panel->finish, sum, multipliers, panel->residual ? some : NULL);
    const int8_block made = int8_narrow(&panel->finish, steps);
    memcpy(panel->y + at, &made, (size_t)n);
}

/* One register tile: `count` rows of the batch × `vectors` output vectors. */
NNS_INLINE void dense_tile(const int count, const int vectors, const dense_panel *panel, int64_t row) {
    nns_uvec sums[DENSE_ROWS * DENSE_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_uvec bias = compute_load_bits(panel->bias + v * NNS_BLOCK);
        COMPUTE_FOR(r, count) sums[r * DENSE_VECTORS + v] = bias;
    }
    const int64_t bytes = vectors * NNS_BLOCK * INT8_QUAD, whole = panel->k / INT8_QUAD * INT8_QUAD;
    const int8_t *w = panel->w, *each[DENSE_ROWS];
    COMPUTE_FOR(r, count) each[r] = panel->x + (row + r) * panel->k;
    const bool far = panel->far;
    const nns_uvec flips = int8_flips();
    for (int64_t k = 0; k < whole; k += INT8_QUAD, w += bytes) {
        if (far)
            for (int64_t i = 0; i < bytes; i += DENSE_LINE) __builtin_prefetch(w + DENSE_AHEAD + i);
        int8_add_quad(count, vectors, sums, DENSE_VECTORS, flips, each, NULL, k, w);
    }
    if (whole < panel->k) {
        int8_t rest[DENSE_ROWS][INT8_QUAD] = {0};
        COMPUTE_FOR(r, count) {
            memcpy(rest[r], each[r] + whole, (size_t)(panel->k - whole));
            each[r] = rest[r];
        }
        int8_add_quad(count, vectors, sums, DENSE_VECTORS, flips, each, NULL, 0, w);
    }
    COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors)
        dense_store(panel, row + r, v * NNS_BLOCK, sums[r * DENSE_VECTORS + v]);
}

/* ---- rows in pairs ----------------------------------------------------------------------------------------------- */

#if INT8_EIGHTS
_Static_assert((int)DENSE_VECTORS % (int)EIGHT_VECTORS == 0, "a panel is no whole register tiles");
enum {
    DENSE_LEAST_PAIRED = 4,      /* rows for which converting the weights pays */
    DENSE_MOST_PAIRED = 1 << 26, /* bytes of converted rows, at most */
};

/* Converted rows and weights, in scratch. */
typedef struct {
    int64_t eights, record; /* of a pair of rows, and their bytes */
    int8_t *rows;           /* int8[pair][eight][row][8] */
    int8_t *weights;        /* int8[eight][vector][pair of lanes][lane][8] */
} dense_pairs;

static int64_t row_eights(const dense_int8_parameters *p) { return eights_of(nns_ceil_div(p->k, INT8_QUAD)); }

static dense_pairs pairs_of(const dense_int8_parameters *p, int8_t *scratch) {
    const int64_t eights = row_eights(p);
    return (dense_pairs){
        .eights = eights,
        .record = eights * EIGHT_PAIR,
        .rows = scratch + EIGHT_VECTORS * eights * EIGHT_WEIGHTS,
        .weights = scratch,
    };
}

/* Bytes of scratch; 0 if rows are not converted. */
static int64_t paired_bytes(const dense_int8_parameters *p) {
    const int64_t eights = row_eights(p), rows = NNS_PRODUCT(nns_ceil_div(p->n, 2) + EIGHT_WIDE, eights, EIGHT_PAIR);
    if (p->n < DENSE_LEAST_PAIRED || rows < 0 || rows > DENSE_MOST_PAIRED) return 0;
    return EIGHT_VECTORS * eights * EIGHT_WEIGHTS + rows;
}

/* Converts all rows; a last one without a partner is its own. */
static void convert_rows(const dense_int8_parameters *p, const int8_t *x, const dense_pairs *made) {
    for (int64_t row = 0; row < nns_ceil_div(p->n, 2) * 2; row++) {
        const int8_t *from = x + nns_min_int(row, p->n - 1) * p->k;
        int8_t *to = made->rows + row / 2 * made->record + row % 2 * EIGHT_CHANNELS;
        int64_t k = 0;
        for (; k + EIGHT_CHANNELS <= p->k; k += EIGHT_CHANNELS, to += EIGHT_PAIR) memcpy(to, from + k, EIGHT_CHANNELS);
        if (k < p->k) {
            memset(to, 0, EIGHT_CHANNELS);
            memcpy(to, from + k, (size_t)(p->k - k));
        }
    }
}

/* One register tile: `pairs` pairs of rows, a constant, from row `row` on and EIGHT_VECTORS vectors from `column` on. */
NNS_INLINE void dense_paired_tile(const int pairs, const dense_pairs *from, const dense_panel *panel, int64_t rows,
                                  int64_t row, int64_t column) {
    eight_sums sums[EIGHT_WIDE * EIGHT_VECTORS];
    COMPUTE_FOR(v, EIGHT_VECTORS) {
        const eight_sums bias = eight_bias(compute_load_bits(panel->bias + column + v * NNS_BLOCK));
        COMPUTE_FOR(p, pairs) sums[p * EIGHT_VECTORS + v] = bias;
    }
    const int8_t *each[EIGHT_WIDE];
    COMPUTE_FOR(p, pairs) each[p] = from->rows + (row / 2 + p) * from->record;
    eight_add(pairs, EIGHT_VECTORS, from->eights, each, from->weights, sums);
    nns_uvec blocks[2 * EIGHT_WIDE * EIGHT_VECTORS];
    COMPUTE_FOR(i, 2 * pairs * EIGHT_VECTORS)
        blocks[i] = eight_sums_of(sums[i / (2 * EIGHT_VECTORS) * EIGHT_VECTORS + i % EIGHT_VECTORS], i / EIGHT_VECTORS % 2);
    for (int64_t r = 0; r < nns_min_int(2 * pairs, rows - row); r++)
        for (int64_t v = 0; v < EIGHT_VECTORS; v++)
            dense_store(panel, row + r, column + v * NNS_BLOCK, blocks[r * EIGHT_VECTORS + v]);
}

/* Computes all rows of a panel of `vectors` vectors. */
static void dense_paired(const dense_pairs *from, const dense_panel *panel, int64_t rows, int64_t vectors) {
    const int64_t step = vectors * NNS_BLOCK * INT8_QUAD;
    for (int64_t first = 0; first < vectors && first * NNS_BLOCK < panel->columns; first += EIGHT_VECTORS) {
        for (int64_t v = 0; v < EIGHT_VECTORS; v++)
            eight_pack(panel->w + (first + v) * NNS_BLOCK * INT8_QUAD, step, nns_ceil_div(panel->k, INT8_QUAD),
                       from->weights + v * EIGHT_WEIGHTS, EIGHT_VECTORS * EIGHT_WEIGHTS);
        for (int64_t row = 0; row < rows; row += 2 * EIGHT_WIDE) {
            if (rows - row > 2 * EIGHT_MIDDLE)
                dense_paired_tile(EIGHT_WIDE, from, panel, rows, row, first * NNS_BLOCK);
            else if (rows - row > 2 * EIGHT_NARROW)
                dense_paired_tile(EIGHT_MIDDLE, from, panel, rows, row, first * NNS_BLOCK);
            else
                dense_paired_tile(EIGHT_NARROW, from, panel, rows, row, first * NNS_BLOCK);
        }
    }
}
#else
static int64_t paired_bytes(const dense_int8_parameters *p) {
    (void)p;
    return 0;
}
#endif

/* ---- units: panels ----------------------------------------------------------------------------------------------- */

static const char *dense_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const dense_int8_parameters *p = (const void *)args->p;
    const int64_t width = vectors * NNS_BLOCK, panels = nns_ceil_div(p->m, width), y = NNS_PRODUCT(p->n, p->m);
    *work = (nns_work){.units = panels, .scratch = paired_bytes(p)};
    return NNS_CHECK_SIZES(dense_int8, args, int8_result_bytes(y, &p->result), NNS_PRODUCT(p->n, p->k),
                           NNS_PRODUCT(panels, nns_ceil_div(p->k, INT8_QUAD), INT8_QUAD, width),
                           NNS_PRODUCT(2, panels, width, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(panels, width), y);
}

static void dense_run(const nns_args *args, int64_t begin, int64_t end, void *scratch, int64_t tile_rows, int64_t vectors,
                      dense_rows rows) {
    (void)scratch; /* unless rows are paired */
    const dense_int8_parameters *p = (const void *)args->p;
    const int64_t n = p->n, width = vectors * NNS_BLOCK, panels = nns_ceil_div(p->m, width);
    const int64_t panel_bytes = nns_ceil_div(p->k, INT8_QUAD) * INT8_QUAD * width;
    dense_panel panel = {.x = args->in[READ_X], .k = p->k, .m = p->m, .finish = int8_rounding_of(&p->rounding, &p->result, args->out[0])};
#if INT8_EIGHTS
    const bool paired = paired_bytes(p) > 0;
    const dense_pairs pairs = paired ? pairs_of(p, scratch) : (dense_pairs){0};
    if (paired) convert_rows(p, panel.x, &pairs);
#endif
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i * width;
        panel.columns = nns_min_int(width, panel.m - column);
        panel.w = (const int8_t *)args->in[READ_WEIGHTS] + i * panel_bytes;
        panel.bias = int8_bias(args->in[READ_BIAS], panels * width) + column;
        panel.multipliers = (const float *)args->in[READ_MULTIPLIERS] + column;
        panel.residual = args->in[READ_RESIDUAL] ? (const int8_t *)args->in[READ_RESIDUAL] + column : NULL;
        panel.y = (int8_t *)args->out[0] + column;
#if INT8_EIGHTS
        if (paired) {
            dense_paired(&pairs, &panel, n, vectors);
            continue;
        }
#endif
        for (int64_t row = 0; row < n; row += tile_rows) {
            panel.far = row == 0;
            rows(nns_min_int(tile_rows, n - row), &panel, row);
        }
    }
}

#define KERNEL(stem, name, where, rows, vectors)                                                  \
    WHERE_##where(static void stem##_rows(int64_t count, const dense_panel *panel, int64_t row) { \
        COMPUTE_BY_COUNT(count, rows, dense_tile, vectors, panel, row)                            \
    } NNS_DEFINE_KERNEL(stem, dense_check(args, work, vectors),                                   \
                        dense_run(args, begin, end, scratch, rows, vectors, stem##_rows)))
KERNELS_dense_int8(KERNEL)

NNS_DEFINE_FAMILY(dense_int8);
