/* Direct convolution of blocked tensors: any kernel, stride, padding, dilation and groups.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       the window, then groups, tiles per unit, order (0: weights stay while pixels pass; 1: pixels stay while weights
 *         pass), input blocks per pass (more passes sum up in y), and the activation's kind, a, b
 *
 * Weights lie in panels of VECTORS output vectors, one after another. A panel reads the input channels of all groups that
 * its output channels belong to, [lane_begin, lane_end): its weights are float[input block][kh][kw][lane][VECTORS][block]
 * with only the lanes in that range. Panels are as far apart as the widest of them takes. */
#include "conv_direct.h"

enum {
    CONV_GROUPS = WINDOW_COUNT,
    CONV_TILES,
    CONV_ORDER,
    CONV_BLOCKS,
    CONV_ACTIVATION,
    CONV_PARAMETERS = CONV_ACTIVATION + 3,
};

enum { CONV_X, CONV_W, CONV_BIAS, CONV_RESIDUAL, CONV_READS };

static const float zeros[NNS_BLOCK] __attribute__((aligned(64)));

/* ---- panels ------------------------------------------------------------------------------------------------------- */

/* Input channels that panel `index` of `vectors` output vectors reads. */
static void panel_lanes(const window *s, int64_t groups, int64_t vectors, int64_t index, int64_t *begin, int64_t *end) {
    const int64_t width = vectors * NNS_BLOCK, per_group = s->o / groups;
    const int64_t first = index * width, last = nns_min_int(first + width, s->o) - 1;
    *begin = first / per_group * (s->c / groups);
    *end = (last / per_group + 1) * (s->c / groups);
}

static int64_t widest_panel(const window *s, int64_t groups, int64_t vectors) {
    if (groups == 1) return s->c;
    int64_t widest = 0;
    for (int64_t i = 0; i < blocks_of(s->o) / vectors; i++) {
        int64_t begin, end;
        panel_lanes(s, groups, vectors, i, &begin, &end);
        widest = nns_max_int(widest, end - begin);
    }
    return widest;
}

/* ---- units: (image, panel, chunk of tiles) ------------------------------------------------------------------------ */

typedef struct {
    int64_t panels, tiles, chunks;
} conv_grid;

static conv_grid grid_of(const window *s, const int64_t *p, int64_t pixels, int64_t vectors) {
    const int64_t tiles = nns_ceil_div(s->oh * s->ow, pixels);
    return (conv_grid){blocks_of(s->o) / vectors, tiles, nns_ceil_div(tiles, p[CONV_TILES])};
}

static const char *conv_check(const nns_args *args, nns_work *work, int64_t pixels, int64_t vectors) {
    const int64_t *p = args->p;
    if (args->n_in != CONV_READS || args->n_out != 1 || args->n_p != CONV_PARAMETERS)
        return "a convolution wants 4 reads, 1 write and 22 parameters";
    const char *wrong = window_check(p);
    if (wrong) return wrong;
    const window s = window_read(p);
    const int64_t groups = p[CONV_GROUPS];
    if (groups < 1 || s.c % groups || s.o % groups) return "groups do not divide the channels";
    if (blocks_of(s.o) % vectors) return "the tile's vectors do not divide the output's";
    if (p[CONV_TILES] < 1 || p[CONV_BLOCKS] < 1 || p[CONV_ORDER] < 0 || p[CONV_ORDER] > 1 ||
        p[CONV_TILES] > INT32_MAX || p[CONV_BLOCKS] > INT32_MAX || !nns_activation_known(p[CONV_ACTIVATION]))
        return "a parameter of the convolution is out of range";
    const conv_grid grid = grid_of(&s, p, pixels, vectors);
    const int64_t width = vectors * NNS_BLOCK;
    const int64_t y = NNS_FLOAT_BYTES(s.n, grid.panels, width, s.oh, s.ow);
    if (!nns_holds(args->in_bytes[CONV_X], NNS_FLOAT_BYTES(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w)))
        return "the convolution's input is too small";
    if (!nns_holds(args->in_bytes[CONV_W],
                   NNS_FLOAT_BYTES(grid.panels, widest_panel(&s, groups, vectors), s.kh, s.kw, width)))
        return "the convolution's weights are too small";
    if (args->in_bytes[CONV_BIAS] && !nns_holds(args->in_bytes[CONV_BIAS], NNS_FLOAT_BYTES(grid.panels, width)))
        return "the convolution's bias is too small";
    if (args->in_bytes[CONV_RESIDUAL] && !nns_holds(args->in_bytes[CONV_RESIDUAL], y))
        return "the convolution's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the convolution's output is too small";
    work->units = s.n * grid.panels * grid.chunks;
    work->scratch = pixels * (int64_t)sizeof(int64_t) + (s.kh + s.kw) * (int64_t)sizeof(uint32_t);
    return NULL;
}

/* Describes the `count` pixels from `first` on. */
static void locate(const window *s, int64_t first, int64_t count, conv_pixels *pixels) {
    int64_t oh = first / s->ow, ow = first % s->ow;
    pixels->edge = false;
    for (int64_t p = 0; p < count; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        pixels->offsets[p] = (h * s->w + w) * NNS_BLOCK;
        pixels->edge |= h < 0 || w < 0 || h + (s->kh - 1) * s->dh >= s->h || w + (s->kw - 1) * s->dw >= s->w;
        if (++ow == s->ow) ow = 0, oh++;
    }
    if (!pixels->edge) return;
    memset(pixels->rows, 0, (size_t)s->kh * sizeof(uint32_t));
    memset(pixels->columns, 0, (size_t)s->kw * sizeof(uint32_t));
    oh = first / s->ow, ow = first % s->ow;
    for (int64_t p = 0; p < count; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        for (int64_t i = 0; i < s->kh; i++)
            pixels->rows[i] |= (uint32_t)((uint64_t)(h + i * s->dh) < (uint64_t)s->h) << p;
        for (int64_t j = 0; j < s->kw; j++)
            pixels->columns[j] |= (uint32_t)((uint64_t)(w + j * s->dw) < (uint64_t)s->w) << p;
        if (++ow == s->ow) ow = 0, oh++;
    }
}

/* All passes over one chunk of tiles of one panel. */
static void run_chunk(const window *s, const int64_t *p, conv_pass *pass, conv_pixels *pixels, int64_t tile_begin,
                      int64_t tile_end, int64_t tile_pixels, int64_t vectors, conv_tile tile) {
    const int64_t begin = pass->lane_begin / NNS_BLOCK, end = blocks_of(pass->lane_end);
    const int64_t total = s->oh * s->ow, per_lane = s->kh * s->kw * vectors * NNS_BLOCK;
    const float *panel = pass->w;
    for (int64_t block = begin; block < end; block += p[CONV_BLOCKS]) {
        pass->block_begin = block;
        pass->block_end = nns_min_int(end, block + p[CONV_BLOCKS]);
        pass->first = block == begin;
        pass->last = pass->block_end == end;
        pass->w = panel + nns_max_int(0, block * NNS_BLOCK - pass->lane_begin) * per_lane;
        for (int64_t t = tile_begin; t < tile_end; t++) {
            const int64_t first = t * tile_pixels, count = nns_min_int(tile_pixels, total - first);
            locate(s, first, count, pixels);
            tile(count, pass, pixels, first);
        }
    }
}

static void conv_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t tile_pixels,
                     int64_t vectors, conv_tile tile) {
    const int64_t *p = args->p;
    const window s = window_read(p);
    const conv_grid grid = grid_of(&s, p, tile_pixels, vectors);
    const int64_t width = vectors * NNS_BLOCK, y_plane = s.oh * s.ow * NNS_BLOCK, x_plane = s.h * s.w * NNS_BLOCK;
    const int64_t panel_size = widest_panel(&s, p[CONV_GROUPS], vectors) * s.kh * s.kw * width;
    const float *x = args->in[CONV_X], *w = args->in[CONV_W], *bias = args->in[CONV_BIAS];
    const float *residual = args->in[CONV_RESIDUAL];
    float *y = args->out[0];
    conv_pixels pixels = {.offsets = scratch, .rows = (uint32_t *)((int64_t *)scratch + tile_pixels)};
    pixels.columns = pixels.rows + s.kh;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (grid.panels * grid.chunks), rest = unit % (grid.panels * grid.chunks);
        const int64_t panel = p[CONV_ORDER] ? rest % grid.panels : rest / grid.chunks;
        const int64_t chunk = p[CONV_ORDER] ? rest / grid.panels : rest % grid.chunks;
        const int64_t out = (image * grid.panels + panel) * vectors * y_plane;
        conv_pass pass = {
            .x = x + image * blocks_of(s.c) * x_plane,
            .w = w + panel * panel_size,
            .bias = bias ? bias + panel * width : NULL,
            .residual = residual ? residual + out : NULL,
            .y = y + out,
            .x_plane = x_plane,
            .y_plane = y_plane,
            .kh = s.kh,
            .kw = s.kw,
            .tap_row = s.dh * s.w * NNS_BLOCK,
            .tap_column = s.dw * NNS_BLOCK,
            .ahead = tile_pixels * s.sw * NNS_BLOCK,
            .ahead_columns = s.sw,
            .finish = epilogue_read(p + CONV_ACTIVATION),
        };
        panel_lanes(&s, p[CONV_GROUPS], vectors, panel, &pass.lane_begin, &pass.lane_end);
        const int64_t begin = chunk * p[CONV_TILES];
        run_chunk(&s, p, &pass, &pixels, begin, nns_min_int(grid.tiles, begin + p[CONV_TILES]), tile_pixels, vectors,
                  tile);
    }
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

#if COMPUTE_MANY_REGISTERS

#define PIXELS 28
#define VECTORS 1
#include "conv_direct.inc"
#define PIXELS 14
#define VECTORS 2
#include "conv_direct.inc"
#define PIXELS 9
#define VECTORS 3
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 4
#include "conv_direct.inc"

#define ROW(tile) {"conv_direct_" #tile, tile_##tile##_check, tile_##tile##_run}
static const nns_kernel rows[] = {ROW(p28v1), ROW(p14v2), ROW(p9v3), ROW(p6v4)};

#else

#define PIXELS 12
#define VECTORS 1
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 2
#include "conv_direct.inc"
#define PIXELS 4
#define VECTORS 3
#include "conv_direct.inc"

#define ROW(tile) {"conv_direct_" #tile, tile_##tile##_check, tile_##tile##_run}
static const nns_kernel rows[] = {ROW(p12v1), ROW(p6v2), ROW(p4v3)};

#endif

const nns_kernel_family nns_family_conv_direct = NNS_FAMILY(rows);
