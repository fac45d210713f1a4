/* Dense layers on plain tensors: y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (padded to whole panels), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       as in the manifest
 *
 * Weights lie in panels of VECTORS output vectors: float[k][VECTORS][block], zero beyond m. */
#include "compute.h"

NNS_DEFINE_READS(dense);

/* Prefetch distance of weights, in floats: 4 KiB, about 200 ns at memory speed. */
#define DENSE_AHEAD 1024

typedef struct {
    const float *x;
    const float *w, *bias, *residual; /* of the panel; the latter two or NULL */
    float *y;                         /* first column of the panel */
    int64_t k, m;
    int64_t columns; /* columns of the panel that are in y */
    bool far;        /* the weights are not in a cache: first tile of rows */
    epilogue finish;
} dense_panel;

typedef void (*dense_tile)(int64_t count, const dense_panel *panel, int64_t row);

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

static const char *dense_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const dense_parameters *p = (const void *)args->p;
    const int64_t width = vectors * NNS_BLOCK, panels = nns_ceil_div(p->m, width);
    const int64_t y = NNS_FLOAT_BYTES(p->n, p->m);
    if (!nns_holds(args->in_bytes[READ_X], NNS_FLOAT_BYTES(p->n, p->k)))
        return "the dense layer's input is too small";
    if (!nns_holds(args->in_bytes[READ_WEIGHTS], NNS_FLOAT_BYTES(panels, p->k, width)))
        return "the dense layer's weights are too small";
    if (args->in_bytes[READ_BIAS] && !nns_holds(args->in_bytes[READ_BIAS], NNS_FLOAT_BYTES(panels, width)))
        return "the dense layer's bias is too small";
    if (args->in_bytes[READ_RESIDUAL] && !nns_holds(args->in_bytes[READ_RESIDUAL], y))
        return "the dense layer's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the dense layer's output is too small";
    work->units = panels;
    work->scratch = 0;
    return NULL;
}

static void dense_run(const nns_args *args, int64_t begin, int64_t end, int64_t tile_rows, int64_t vectors,
                      dense_tile tile) {
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
            tile(nns_min_int(tile_rows, n - row), &panel, row);
        }
        if (panel.finish.second_pass)
            for (int64_t row = 0; row < n; row++)
                epilogue_second_pass(&panel.finish, panel.y + row * panel.m, panel.columns);
    }
}

#define ROWS NNS_COLUMN_1
#define VECTORS NNS_COLUMN_2
#define NNS_TEMPLATE "convolution/dense.inc"
#define NNS_ROWS KERNELS_dense
#include "each_kernel.h"

NNS_DEFINE_FAMILY(dense);
