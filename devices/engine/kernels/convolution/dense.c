/* Dense layers on plain tensors: y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (padded to whole panels), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       as in the manifest
 *
 * Weights lie in panels of VECTORS output vectors: float[k][VECTORS][block], zero beyond m. */
#include "by_element.h"

NNS_DEFINE_READS(dense);

/* Prefetch distance of weights, in floats: 4 KiB, about 200 ns at memory speed. */
#define DENSE_AHEAD 1024

enum { DENSE_ROWS = NNS_MOST(dense, 1), DENSE_VECTORS = NNS_MOST(dense, 2) };
_Static_assert((int)DENSE_ROWS <= (int)COMPUTE_MOST_COUNT, "COMPUTE_BY_COUNT has no case for a tile of this many rows");

typedef struct {
    const float *x;
    const float *w, *bias, *residual; /* of the panel; the latter two or NULL */
    float *y;                         /* first column of the panel */
    int64_t k, m;
    int64_t columns; /* columns of the panel that are in y */
    bool far;        /* the weights are not in a cache: first tile of rows */
    epilogue finish;
} dense_panel;

/* Computes `count` rows of a panel from `row` on. */
typedef void (*dense_rows)(int64_t count, const dense_panel *panel, int64_t row);

NNS_INLINE void dense_store(const dense_panel *panel, int64_t row, int64_t column, nns_vec value) {
    const int64_t at = row * panel->m + column, n = nns_min_int(NNS_BLOCK, panel->columns - column);
    if (n <= 0) return;
    const bool whole = n == NNS_BLOCK;
    if (panel->residual)
        value += whole ? nns_load(panel->residual + at) : nns_load_some(panel->residual + at, n, 0);
    value = epilogue_clamp(&panel->finish, value);
    if (whole)
        nns_store(panel->y + at, value);
    else
        nns_store_some(panel->y + at, value, n);
}

/* One register tile: `count` rows of the batch × `vectors` output vectors. */
NNS_INLINE void dense_tile(const int count, const int vectors, const dense_panel *panel, int64_t row) {
    nns_vec acc[DENSE_ROWS][DENSE_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_vec bias = panel->bias ? nns_load(panel->bias + v * NNS_BLOCK) : nns_zero();
        COMPUTE_FOR(r, count) acc[r][v] = bias;
    }
    const float *w = panel->w, *x = panel->x + row * panel->k;
    int64_t k = 0;
#if COMPUTE_BY_ELEMENT
    const float *each[DENSE_ROWS];
    COMPUTE_FOR(r, count) each[r] = x + r * panel->k;
    element_inputs inputs = {.each = each};
    const bool far = panel->far;
    for (const int64_t whole = panel->k / NNS_BLOCK * NNS_BLOCK; k < whole; k += NNS_BLOCK) {
        if (far) {
            COMPUTE_FOR(v, vectors) __builtin_prefetch(w + DENSE_AHEAD + v * NNS_BLOCK * NNS_BLOCK);
        }
        element_block(count, vectors, acc[0], DENSE_VECTORS, &inputs, w);
        inputs.at += NNS_BLOCK * (int64_t)sizeof(float);
        w += NNS_BLOCK * vectors * NNS_BLOCK;
    }
#endif
    for (; k < panel->k; k++, w += vectors * NNS_BLOCK) {
        if (panel->far) {
            COMPUTE_UNROLL
            for (int v = 0; v < vectors * NNS_BLOCK; v += 16) __builtin_prefetch(w + DENSE_AHEAD + v);
        }
        nns_vec weights[DENSE_VECTORS];
        COMPUTE_FOR(v, vectors) weights[v] = nns_load(w + v * NNS_BLOCK);
        COMPUTE_FOR(r, count) {
            const nns_vec input = nns_broadcast(x[r * panel->k + k]);
            COMPUTE_FOR(v, vectors) acc[r][v] += input * weights[v];
        }
    }
    COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors) dense_store(panel, row + r, v * NNS_BLOCK, acc[r][v]);
}

static const char *dense_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const dense_parameters *p = (const void *)args->p;
    const int64_t width = vectors * NNS_BLOCK, panels = nns_ceil_div(p->m, width), y = NNS_FLOAT_BYTES(p->n, p->m);
    *work = (nns_work){.units = panels};
    return NNS_CHECK_SIZES(dense, args, y, NNS_FLOAT_BYTES(p->n, p->k), NNS_FLOAT_BYTES(panels, p->k, width),
                           NNS_FLOAT_BYTES(panels, width), y);
}

static void dense_run(const nns_args *args, int64_t begin, int64_t end, int64_t tile_rows, int64_t vectors,
                      dense_rows rows) {
    const dense_parameters *p = (const void *)args->p;
    const int64_t n = p->n, width = vectors * NNS_BLOCK;
    dense_panel panel = {.x = args->in[READ_X], .k = p->k, .m = p->m};
    panel.finish = epilogue_of(&p->activation);
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i * width;
        panel.columns = nns_min_int(width, panel.m - column);
        panel.w = (const float *)args->in[READ_WEIGHTS] + i * panel.k * width;
        panel.bias = args->in[READ_BIAS] ? (const float *)args->in[READ_BIAS] + column : NULL;
        panel.residual = args->in[READ_RESIDUAL] ? (const float *)args->in[READ_RESIDUAL] + column : NULL;
        panel.y = (float *)args->out[0] + column;
        for (int64_t row = 0; row < n; row += tile_rows) {
            panel.far = row == 0;
            rows(nns_min_int(tile_rows, n - row), &panel, row);
        }
        if (panel.finish.second_pass)
            for (int64_t row = 0; row < n; row++)
                epilogue_second_pass(&panel.finish, panel.y + row * panel.m, panel.columns);
    }
}

#define KERNEL(stem, name, where, rows, vectors)                                                  \
    WHERE_##where(static void stem##_rows(int64_t count, const dense_panel *panel, int64_t row) { \
        COMPUTE_BY_COUNT(count, rows, dense_tile, vectors, panel, row)                            \
    } NNS_DEFINE_KERNEL(stem, dense_check(args, work, vectors),                                   \
                        dense_run(args, begin, end, rows, vectors, stem##_rows)))
KERNELS_dense(KERNEL)

NNS_DEFINE_FAMILY(dense);
