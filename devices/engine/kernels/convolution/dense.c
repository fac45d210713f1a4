/* Dense layers on plain tensors: y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (padded to whole panels), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       as in the manifest
 *
 * Weights lie in panels of VECTORS output vectors: float[k][VECTORS][block], zero beyond m. A panel of dense_int16 is
 * float[VECTORS][block], the scales of the outputs, then int16[k][VECTORS][block]; it computes in float32 all the same. */
#include "by_element.h"

NNS_DEFINE_READS(dense);

/* Prefetch distance of weights, in bytes: about 200 ns at memory speed. */
#define DENSE_AHEAD 4096

/* Bytes of a cache line. */
#define DENSE_LINE 64

enum { FULL = sizeof(float), SHORT = sizeof(int16_t) }; /* bytes of a weight */

enum { DENSE_ROWS = NNS_MOST(dense, 1), DENSE_VECTORS = NNS_MOST(dense, 2) };
_Static_assert(DENSE_ROWS >= NNS_MOST(dense_int16, 1) && DENSE_VECTORS >= NNS_MOST(dense_int16, 2),
               "sums have no place for a tile of dense_int16");
_Static_assert((int)DENSE_ROWS <= (int)COMPUTE_MOST_COUNT, "COMPUTE_BY_COUNT has no case for a tile of this many rows");

typedef struct {
    const float *x;
    const char *w;                    /* of the panel */
    const float *scales;              /* of its outputs, or NULL */
    const float *bias, *residual;     /* of the panel, or NULL */
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

NNS_INLINE nns_vec dense_bias(const dense_panel *panel, int v) {
    return panel->bias ? nns_load(panel->bias + v * NNS_BLOCK) : nns_zero();
}

/* A vector of weights of `bytes` bytes each. */
NNS_INLINE nns_vec dense_weights(const int bytes, const char *w) {
    if (bytes == FULL) return nns_load((const void *)w);
    typedef int16_t shorts __attribute__((vector_size(NNS_BLOCK * sizeof(int16_t))));
    shorts read;
    memcpy(&read, w, sizeof read);
    return __builtin_convertvector(__builtin_convertvector(read, nns_ivec), nns_vec);
}

/* One register tile: `count` rows of the batch × `vectors` output vectors, with weights of `bytes` bytes. */
NNS_INLINE void dense_tile(const int count, const int vectors, const int bytes, const dense_panel *panel,
                           int64_t row) {
    nns_vec acc[DENSE_ROWS][DENSE_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_vec first = bytes == FULL ? dense_bias(panel, v) : nns_zero();
        COMPUTE_FOR(r, count) acc[r][v] = first;
    }
    const char *w = panel->w;
    const float *x = panel->x + row * panel->k;
    int64_t k = 0;
#if COMPUTE_BY_ELEMENT
    const float *each[DENSE_ROWS];
    COMPUTE_FOR(r, count) each[r] = x + r * panel->k;
    element_inputs inputs = {.each = each};
    const bool far = panel->far;
    const int64_t whole = bytes == FULL ? panel->k / NNS_BLOCK * NNS_BLOCK : 0;
    for (; k < whole; k += NNS_BLOCK) {
        if (far) {
            COMPUTE_FOR(v, vectors) __builtin_prefetch(w + DENSE_AHEAD + v * NNS_BLOCK * NNS_BLOCK * FULL);
        }
        element_block(count, vectors, acc[0], DENSE_VECTORS, &inputs, (const void *)w);
        inputs.at += NNS_BLOCK * (int64_t)sizeof(float);
        w += NNS_BLOCK * vectors * NNS_BLOCK * FULL;
    }
#endif
    for (; k < panel->k; k++, w += vectors * NNS_BLOCK * bytes) {
        if (panel->far) {
            COMPUTE_UNROLL
            for (int at = 0; at < vectors * NNS_BLOCK * bytes; at += DENSE_LINE)
                __builtin_prefetch(w + DENSE_AHEAD + at);
        }
        nns_vec weights[DENSE_VECTORS];
        COMPUTE_FOR(v, vectors) weights[v] = dense_weights(bytes, w + v * NNS_BLOCK * bytes);
        COMPUTE_FOR(r, count) {
            const nns_vec input = nns_broadcast(x[r * panel->k + k]);
            COMPUTE_FOR(v, vectors) acc[r][v] += input * weights[v];
        }
    }
    if (bytes == SHORT) {
        COMPUTE_FOR(v, vectors) {
            const nns_vec scales = nns_load(panel->scales + v * NNS_BLOCK), bias = dense_bias(panel, v);
            COMPUTE_FOR(r, count) acc[r][v] = acc[r][v] * scales + bias;
        }
    }
    COMPUTE_FOR(r, count) COMPUTE_FOR(v, vectors) dense_store(panel, row + r, v * NNS_BLOCK, acc[r][v]);
}

/* Bytes of the weights of an output, with its scale. */
static int64_t column_bytes(int64_t k, int64_t bytes) { return k * bytes + (bytes == SHORT ? FULL : 0); }

static const char *dense_check(const nns_args *args, nns_work *work, int64_t vectors, int64_t bytes) {
    const dense_parameters *p = (const void *)args->p;
    const int64_t width = vectors * NNS_BLOCK, panels = nns_ceil_div(p->m, width), y = NNS_FLOAT_BYTES(p->n, p->m);
    *work = (nns_work){.units = panels};
    return NNS_CHECK_SIZES(dense, args, y, NNS_FLOAT_BYTES(p->n, p->k),
                           NNS_PRODUCT(panels, width, column_bytes(p->k, bytes)), NNS_FLOAT_BYTES(panels, width), y);
}

static void dense_run(const nns_args *args, int64_t begin, int64_t end, int64_t tile_rows, int64_t vectors,
                      int64_t bytes, dense_rows rows) {
    const dense_parameters *p = (const void *)args->p;
    const int64_t n = p->n, width = vectors * NNS_BLOCK;
    dense_panel panel = {.x = args->in[READ_X], .k = p->k, .m = p->m};
    panel.finish = epilogue_of(&p->activation);
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i * width;
        panel.columns = nns_min_int(width, panel.m - column);
        panel.w = (const char *)args->in[READ_WEIGHTS] + i * width * column_bytes(panel.k, bytes);
        if (bytes == SHORT) {
            panel.scales = (const void *)panel.w;
            panel.w += width * FULL;
        }
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

#define KERNEL(stem, where, rows, vectors, bytes)                                                 \
    WHERE_##where(static void stem##_rows(int64_t count, const dense_panel *panel, int64_t row) { \
        COMPUTE_BY_COUNT(count, rows, dense_tile, vectors, bytes, panel, row)                     \
    } NNS_DEFINE_KERNEL(stem, dense_check(args, work, vectors, bytes),                            \
                        dense_run(args, begin, end, rows, vectors, bytes, stem##_rows)))
#define KERNEL_OF_FULL(stem, name, where, rows, vectors) KERNEL(stem, where, rows, vectors, FULL)
#define KERNEL_OF_SHORT(stem, name, where, rows, vectors) KERNEL(stem, where, rows, vectors, SHORT)
KERNELS_dense(KERNEL_OF_FULL)
KERNELS_dense_int16(KERNEL_OF_SHORT)

NNS_DEFINE_FAMILY(dense);
NNS_DEFINE_FAMILY(dense_int16);
