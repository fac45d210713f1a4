/* Dense layers on plain tensors: y = activation(x · Wᵀ + bias + residual).
 *
 * reads   x [n][k], weights, bias or NULL (padded to whole panels), residual [n][m] or NULL
 * writes  y [n][m], which may be the residual's memory
 * p       n, k, m, and the activation's kind, a, b
 *
 * Weights lie in panels of VECTORS output vectors: float[k][VECTORS][block], zero beyond m. */
#include "compute.h"

enum { DENSE_N, DENSE_K, DENSE_M, DENSE_ACTIVATION, DENSE_PARAMETERS = DENSE_ACTIVATION + 3 };
enum { DENSE_X, DENSE_W, DENSE_BIAS, DENSE_RESIDUAL, DENSE_READS };

/* How far ahead weights are fetched, in floats: 4 KiB, some 200 ns at the memory's speed. */
#define DENSE_AHEAD 1024

typedef struct {
    const float *x;
    const float *w, *bias, *residual; /* of the panel; the latter two or NULL */
    float *y;                         /* first column of the panel */
    int64_t k, m;
    int64_t columns; /* of the panel that exist */
    bool far;        /* weights are read for the first time and once only */
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
    const int64_t *p = args->p;
    if (args->n_in != DENSE_READS || args->n_out != 1 || args->n_p != DENSE_PARAMETERS)
        return "a dense layer wants 4 reads, 1 write and 6 parameters";
    if (!nns_all_within(p, DENSE_ACTIVATION, 1, INT32_MAX)) return "an extent of the dense layer is out of range";
    if (!nns_activation_known(p[DENSE_ACTIVATION])) return "the dense layer's activation is unknown";
    const int64_t width = vectors * NNS_BLOCK, panels = nns_ceil_div(p[DENSE_M], width);
    const int64_t y = NNS_FLOAT_BYTES(p[DENSE_N], p[DENSE_M]);
    if (!nns_holds(args->in_bytes[DENSE_X], NNS_FLOAT_BYTES(p[DENSE_N], p[DENSE_K])))
        return "the dense layer's input is too small";
    if (!nns_holds(args->in_bytes[DENSE_W], NNS_FLOAT_BYTES(panels, p[DENSE_K], width)))
        return "the dense layer's weights are too small";
    if (args->in_bytes[DENSE_BIAS] && !nns_holds(args->in_bytes[DENSE_BIAS], NNS_FLOAT_BYTES(panels, width)))
        return "the dense layer's bias is too small";
    if (args->in_bytes[DENSE_RESIDUAL] && !nns_holds(args->in_bytes[DENSE_RESIDUAL], y))
        return "the dense layer's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the dense layer's output is too small";
    work->units = panels;
    work->scratch = 0;
    return NULL;
}

static void dense_run(const nns_args *args, int64_t begin, int64_t end, int64_t tile_rows, int64_t vectors,
                      dense_tile tile) {
    const int64_t *p = args->p, n = p[DENSE_N], width = vectors * NNS_BLOCK;
    dense_panel panel = {.x = args->in[DENSE_X], .k = p[DENSE_K], .m = p[DENSE_M]};
    panel.finish = epilogue_read(p + DENSE_ACTIVATION);
    for (int64_t i = begin; i < end; i++) {
        const int64_t column = i * width;
        panel.columns = nns_min_int(width, panel.m - column);
        panel.w = (const float *)args->in[DENSE_W] + i * panel.k * width;
        panel.bias = args->in[DENSE_BIAS] ? (const float *)args->in[DENSE_BIAS] + column : NULL;
        panel.residual = args->in[DENSE_RESIDUAL] ? (const float *)args->in[DENSE_RESIDUAL] + column : NULL;
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

#if COMPUTE_MANY_REGISTERS
#define ROWS 6
#define VECTORS 4
#include "dense.inc"
static const nns_kernel rows[] = {{"dense_v4", tile_r6v4_check, tile_r6v4_run}};
#else
#define ROWS 6
#define VECTORS 2
#include "dense.inc"
static const nns_kernel rows[] = {{"dense_v2", tile_r6v2_check, tile_r6v2_run}};
#endif

const nns_kernel_family nns_family_dense = NNS_FAMILY(rows);
