/* 1 × 1 convolutions of blocked tensors by one step of Strassen's algorithm, in Winograd's form with seven products instead of
 * eight, on tiles that stay in the near caches.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * Input channels are two halves of `half` full blocks each, then the rest. Output vectors are `pairs` panels of VECTORS vectors in
 * each half, then single vectors. Weights of a pair are float[channel][VECTORS][block] for X11, X12, the rest (first half of outputs); S2,
 * S3, X22, the rest again; S1, S4, the rest (second half of outputs). A single vector's are float[channel][block]. */
#include "conv_strassen.h"

/* Floats at the front of the scratch for the number of the group of tiles whose sums the scratch holds (0: none). */
enum { STRASSEN_NOTE = 64 / sizeof(float) };

NNS_DEFINE_READS(conv_strassen);

typedef struct {
    int64_t half, rest;              /* blocks of a half; channels in no half */
    int64_t pairs, singles, panels;  /* panels: both together */
    int64_t tiles, groups, chunks;   /* tiles of pixels; groups of tiles; chunks of panels */
} strassen_grid;

static strassen_grid grid_of(const conv_strassen_parameters *p, int64_t pixels, int64_t vectors) {
    strassen_grid g;
    g.half = p->c / NNS_BLOCK / 2;
    g.rest = p->c - 2 * g.half * NNS_BLOCK;
    g.pairs = blocks_of(p->o) / (2 * vectors);
    g.singles = blocks_of(p->o) - 2 * vectors * g.pairs;
    g.panels = g.pairs + g.singles;
    g.tiles = nns_ceil_div(p->pixels, 2 * pixels);
    g.groups = nns_ceil_div(g.tiles, p->tiles);
    g.chunks = nns_ceil_div(g.panels, p->panels);
    return g;
}

/* Floats of a pair's weights. */
static int64_t pair_size(const strassen_grid *g, int64_t vectors) {
    return (7 * g->half * NNS_BLOCK + 3 * g->rest) * vectors * NNS_BLOCK;
}

static const char *strassen_check(const nns_args *args, nns_work *work, int64_t pixels, int64_t vectors) {
    const conv_strassen_parameters *p = (const void *)args->p;
    const strassen_grid g = grid_of(p, pixels, vectors);
    const int64_t n = p->n, y = NNS_FLOAT_BYTES(n, blocks_of(p->o), NNS_BLOCK, p->pixels);
    const int64_t lanes = blocks_of(p->o) * NNS_BLOCK;
    const int64_t weights = g.pairs * pair_size(&g, vectors) + g.singles * p->c * NNS_BLOCK;
    if (!nns_holds(args->in_bytes[READ_X],
                   NNS_FLOAT_BYTES(n, blocks_of(p->c), NNS_BLOCK, p->pixels)))
        return "the input of Strassen's convolution is too small";
    if (!nns_holds(args->in_bytes[READ_WEIGHTS], NNS_FLOAT_BYTES(weights)))
        return "the weights of Strassen's convolution are too small";
    if (args->in_bytes[READ_BIAS] && !nns_holds(args->in_bytes[READ_BIAS], NNS_FLOAT_BYTES(lanes)))
        return "the bias of Strassen's convolution is too small";
    if (args->in_bytes[READ_RESIDUAL] && !nns_holds(args->in_bytes[READ_RESIDUAL], y))
        return "the residual of Strassen's convolution is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the output of Strassen's convolution is too small";
    const int64_t tiles = nns_min_int(p->tiles, g.tiles);
    const int64_t saved = STRASSEN_NOTE + 4 * pixels * vectors * NNS_BLOCK;
    work->units = n * g.groups * g.chunks;
    work->scratch = NNS_FLOAT_BYTES(tiles, 4 * g.half * pixels * NNS_BLOCK);
    if (work->scratch < 0 || work->scratch > INT64_MAX / 2) return "Strassen's convolution needs too much scratch";
    work->scratch += saved * (int64_t)sizeof(float);
    return NULL;
}

/* The pixels of tile `index`; tile sizes are nearly equal. `x` is the image. */
static strassen_pixels pixels_of(const strassen_grid *g, const float *x, int64_t total, int64_t index, int64_t stride,
                                 const float *sums, int64_t *first) {
    const int64_t begin = index * total / g->tiles, end = (index + 1) * total / g->tiles;
    const int64_t count = nns_ceil_div(end - begin, 2), plane = total * NNS_BLOCK;
    strassen_pixels pixels = {.count = count, .half_blocks = g->half, .rest_lanes = g->rest};
    pixels.repeated = 2 * count - (end - begin);
    for (int range = 0; range < 2; range++) {
        first[range] = range ? end - count : begin;
        const float *at = x + first[range] * NNS_BLOCK;
        strassen_operand *halves = range ? pixels.lower : pixels.upper;
        halves[0] = (strassen_operand){at, plane};
        halves[1] = (strassen_operand){at + g->half * plane, plane};
        pixels.rest[range] = (strassen_operand){at + 2 * g->half * plane, plane};
    }
    for (int i = 0; i < 4; i++) pixels.sums[i] = (strassen_operand){sums + i * g->half * stride, stride};
    return pixels;
}

/* Computes a panel for the pixels that begin at `first`; y and residual are the image's, bias and w the layer's. */
static void run_panel(const strassen_grid *g, const strassen_pixels *pixels, const int64_t first[2], int64_t panel,
                      int64_t vectors, strassen_results *results, float *y, const float *bias, const float *residual,
                      const float *w, const strassen_tile *tile) {
    const bool paired = panel < g->pairs;
    const int64_t size = pair_size(g, vectors), single = panel - g->pairs;
    const int64_t left = paired ? panel * vectors : 2 * g->pairs * vectors + single;
    for (int half = 0; half < (paired ? 2 : 1); half++) {
        const int64_t vector = left + half * g->pairs * vectors;
        results->bias[half] = bias ? bias + vector * NNS_BLOCK : NULL;
        for (int range = 0; range < 2; range++) {
            const int64_t at = vector * results->y_plane + first[range] * NNS_BLOCK;
            results->to[range][half] = y + at;
            results->residual[range][half] = residual ? residual + at : NULL;
        }
    }
    if (paired)
        tile->pair(pixels, results, w + panel * size);
    else
        tile->single(pixels, results, w + g->pairs * size + single * (2 * g->half * NNS_BLOCK + g->rest) * NNS_BLOCK);
}

static void strassen_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t tile_pixels,
                         int64_t vectors, const strassen_tile *tile) {
    const conv_strassen_parameters *p = (const void *)args->p;
    const int64_t total = p->pixels;
    const strassen_grid g = grid_of(p, tile_pixels, vectors);
    const int64_t x_image = blocks_of(p->c) * total * NNS_BLOCK, stride = tile_pixels * NNS_BLOCK;
    const int64_t y_image = blocks_of(p->o) * total * NNS_BLOCK;
    const float *x = args->in[READ_X], *residual = args->in[READ_RESIDUAL];
    strassen_results results = {.y_plane = total * NNS_BLOCK, .finish = epilogue_of(&p->activation)};
    int64_t *encoded = scratch;
    results.saved = (float *)scratch + STRASSEN_NOTE;
    float *sums = results.saved + 4 * tile_pixels * vectors * NNS_BLOCK;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (g.groups * g.chunks), group = unit / g.chunks % g.groups, chunk = unit % g.chunks;
        const int64_t tile_begin = group * g.tiles / g.groups, tile_end = (group + 1) * g.tiles / g.groups;
        const int64_t panel_begin = chunk * p->panels;
        const int64_t panel_end = nns_min_int(g.panels, panel_begin + p->panels);
        const int64_t number = image * g.groups + group + 1;
        for (int64_t panel = panel_begin; panel < panel_end; panel++) {
            for (int64_t t = tile_begin; t < tile_end; t++) {
                float *mine = sums + (t - tile_begin) * 4 * g.half * stride;
                int64_t first[2];
                const strassen_pixels pixels = pixels_of(&g, x + image * x_image, total, t, stride, mine, first);
                if (*encoded != number) tile->encode(&pixels, mine);
                run_panel(&g, &pixels, first, panel, vectors, &results, (float *)args->out[0] + image * y_image,
                          args->in[READ_BIAS], residual ? residual + image * y_image : NULL, args->in[READ_WEIGHTS],
                          tile);
            }
            *encoded = number;
        }
    }
}

#define PIXELS NNS_COLUMN_1
#define VECTORS NNS_COLUMN_2
#define NNS_TEMPLATE "convolution/conv_strassen.inc"
#define NNS_ROWS KERNELS_conv_strassen
#include "each_kernel.h"

NNS_DEFINE_FAMILY(conv_strassen);
