/* Direct convolution of blocked tensors: any kernel, stride, padding, dilation and groups.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       the window, then groups, tiles per unit, order (0: weights stay while pixels pass; 1: pixels stay while weights
 *         pass), input blocks per pass (more passes sum up in y), and the activation's kind, a, b
 *
 * Output channels lie in sets: those of a group where groups end with a vector, else all. The vectors of a set are shared out
 * evenly among as few panels of at most VECTORS vectors as there can be. A panel reads the input channels of all groups that its
 * output channels belong to, [lane_begin, lane_end): its weights are float[input block][kh][kw][lane][output channel] with only
 * the lanes in that range. Panels follow one another; where they read different numbers of lanes, each has room for the most. */
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

/* Floats of a cache line. */
#define CONV_LINE 16

static const float zeros[NNS_BLOCK] __attribute__((aligned(64)));

/* ---- panels ------------------------------------------------------------------------------------------------------- */

/* Kinds of kernels: at most so many vectors of so many outputs per panel. */
typedef struct {
    int64_t vectors, length;
} conv_kind;

typedef struct {
    int64_t count;   /* sets */
    int64_t vectors; /* of each */
    int64_t panels;  /* of each */
} conv_sets;

typedef struct {
    int64_t first, vectors; /* its first output channel, and vectors from there on */
    int64_t lane_begin, lane_end;
} conv_panel;

static conv_sets sets_of(const window *s, int64_t groups, conv_kind kind) {
    const int64_t per_group = s->o / groups, count = per_group % kind.length ? 1 : groups;
    const int64_t vectors = nns_ceil_div(s->o / count, kind.length);
    return (conv_sets){count, vectors, nns_ceil_div(vectors, kind.vectors)};
}

/* The panel of that index among those of all sets. */
static conv_panel panel_of(const window *s, int64_t groups, conv_kind kind, const conv_sets *sets, int64_t index) {
    const int64_t set = index / sets->panels, part = index % sets->panels;
    const int64_t from = sets->vectors * part / sets->panels, to = sets->vectors * (part + 1) / sets->panels;
    conv_panel panel = {.first = (set * sets->vectors + from) * kind.length, .vectors = to - from};
    const int64_t last = nns_min_int(s->o, panel.first + panel.vectors * kind.length) - 1, per_group = s->o / groups;
    panel.lane_begin = panel.first / per_group * (s->c / groups);
    panel.lane_end = (last / per_group + 1) * (s->c / groups);
    return panel;
}

/* Most input channels that a panel reads. */
static int64_t most_lanes(const window *s, int64_t groups, conv_kind kind, const conv_sets *sets) {
    if (sets->count == groups) return s->c / groups;
    int64_t most = 0;
    for (int64_t i = 0; i < sets->panels; i++) {
        const conv_panel panel = panel_of(s, groups, kind, sets, i);
        most = nns_max_int(most, panel.lane_end - panel.lane_begin);
    }
    return most;
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

/* Has the next lines of the next panel's weights fetched to the second-level cache. */
NNS_INLINE void conv_fetch(conv_pass *pass) {
    if (pass->fetch >= pass->fetch_end) return;
    for (int64_t i = 0; i < pass->fetch_step; i += CONV_LINE) __builtin_prefetch(pass->fetch + i, 0, 2);
    pass->fetch += pass->fetch_step;
}

typedef nns_vec conv_vec_v;
#define conv_load_v nns_load
#define conv_store_v nns_store
#define conv_broadcast_v nns_broadcast
#define conv_max_v nns_max
#define conv_min_v nns_min

#if COMPUTE_HALVES
typedef compute_half conv_vec_h;
#define conv_load_h half_load
#define conv_store_h half_store
#define conv_broadcast_h half_broadcast
#define conv_max_h half_max
#define conv_min_h half_min
#endif

#define SHAPE(pixels, kind, vectors)                                                                                  \
    {pixels, tile_p##pixels##kind##vectors##_rounded, tile_p##pixels##kind##vectors,                                  \
     tile_p##pixels##kind##vectors##_flat}

/* The shapes of tiles by their vectors; they fill the registers. */
#if COMPUTE_MANY_REGISTERS

#define PIXELS 28
#define VECTORS 1
#define KIND v
#include "conv_direct.inc"
#define PIXELS 14
#define VECTORS 2
#define KIND v
#include "conv_direct.inc"
#define PIXELS 9
#define VECTORS 3
#define KIND v
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 4
#define KIND v
#include "conv_direct.inc"
static const conv_shape whole_shapes[] = {SHAPE(28, v, 1), SHAPE(14, v, 2), SHAPE(9, v, 3), SHAPE(6, v, 4)};

#else

#define PIXELS 12
#define VECTORS 1
#define KIND v
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 2
#define KIND v
#include "conv_direct.inc"
static const conv_shape whole_shapes[] = {SHAPE(12, v, 1), SHAPE(6, v, 2)};

#endif

#if COMPUTE_HALVES

#define PIXELS 28
#define VECTORS 1
#define KIND h
#include "conv_direct.inc"
#define PIXELS 14
#define VECTORS 2
#define KIND h
#include "conv_direct.inc"
#define PIXELS 9
#define VECTORS 3
#define KIND h
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 4
#define KIND h
#include "conv_direct.inc"
static const conv_shape half_shapes[] = {SHAPE(28, h, 1), SHAPE(14, h, 2), SHAPE(9, h, 3), SHAPE(6, h, 4)};

#endif

/* The shape of tiles for panels of that many vectors. */
static const conv_shape *shape_of(conv_kind kind, int64_t vectors) {
#if COMPUTE_HALVES
    if (kind.length == COMPUTE_HALF) return &half_shapes[vectors - 1];
#endif
    (void)kind;
    return &whole_shapes[vectors - 1];
}

/* Most pixels of a shape. */
enum { CONV_MOST_PIXELS = COMPUTE_MANY_REGISTERS ? 28 : 12 };

/* ---- units: (image, panel, chunk of pixels) ----------------------------------------------------------------------- */

typedef struct {
    conv_sets sets;
    int64_t panels;       /* of all sets */
    int64_t pixels;       /* per chunk */
    int64_t chunks;
} conv_grid;

static conv_grid grid_of(const window *s, const int64_t *p, conv_kind kind) {
    conv_grid grid = {.sets = sets_of(s, p[CONV_GROUPS], kind)};
    grid.pixels = p[CONV_TILES] * shape_of(kind, kind.vectors)->pixels;
    grid.panels = grid.sets.count * grid.sets.panels;
    grid.chunks = nns_ceil_div(s->oh * s->ow, grid.pixels);
    return grid;
}

static const char *conv_check(const nns_args *args, nns_work *work, conv_kind kind) {
    const int64_t *p = args->p;
    if (args->n_in != CONV_READS || args->n_out != 1 || args->n_p != CONV_PARAMETERS)
        return "a convolution wants 4 reads, 1 write and 22 parameters";
    const char *wrong = window_check(p);
    if (wrong) return wrong;
    const window s = window_read(p);
    const int64_t groups = p[CONV_GROUPS];
    if (groups < 1 || s.c % groups || s.o % groups) return "groups do not divide the channels";
    if (p[CONV_TILES] < 1 || p[CONV_BLOCKS] < 1 || p[CONV_ORDER] < 0 || p[CONV_ORDER] > 1 ||
        p[CONV_TILES] > INT32_MAX || p[CONV_BLOCKS] > INT32_MAX || !nns_activation_known(p[CONV_ACTIVATION]))
        return "a parameter of the convolution is out of range";
    const conv_grid grid = grid_of(&s, p, kind);
    const int64_t y = NNS_FLOAT_BYTES(s.n, blocks_of(s.o), NNS_BLOCK, s.oh, s.ow);
    const int64_t outputs = nns_ceil_div(s.o, kind.length) * kind.length;
    if (!nns_holds(args->in_bytes[CONV_X], NNS_FLOAT_BYTES(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w)))
        return "the convolution's input is too small";
    if (!nns_holds(args->in_bytes[CONV_W],
                   NNS_FLOAT_BYTES(outputs, most_lanes(&s, groups, kind, &grid.sets), s.kh, s.kw)))
        return "the convolution's weights are too small";
    if (args->in_bytes[CONV_BIAS] && !nns_holds(args->in_bytes[CONV_BIAS], NNS_FLOAT_BYTES(outputs)))
        return "the convolution's bias is too small";
    if (args->in_bytes[CONV_RESIDUAL] && !nns_holds(args->in_bytes[CONV_RESIDUAL], y))
        return "the convolution's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the convolution's output is too small";
    work->units = s.n * grid.panels * grid.chunks;
    work->scratch = CONV_MOST_PIXELS * (int64_t)sizeof(int64_t) + (s.kh + s.kw) * (int64_t)sizeof(uint32_t);
    return NULL;
}

/* Describes `rounded` pixels: the `count` from `first` on, and the last of them again. */
static void locate(const window *s, int64_t first, int64_t count, int64_t rounded, conv_pixels *pixels) {
    int64_t oh = first / s->ow, ow = first % s->ow;
    pixels->edge = false;
    for (int64_t p = 0; p < rounded; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        pixels->offsets[p] = (h * s->w + w) * NNS_BLOCK;
        pixels->edge |= h < 0 || w < 0 || h + (s->kh - 1) * s->dh >= s->h || w + (s->kw - 1) * s->dw >= s->w;
        if (p < count - 1 && ++ow == s->ow) ow = 0, oh++;
    }
    if (!pixels->edge) return;
    memset(pixels->rows, 0, (size_t)s->kh * sizeof(uint32_t));
    memset(pixels->columns, 0, (size_t)s->kw * sizeof(uint32_t));
    oh = first / s->ow, ow = first % s->ow;
    for (int64_t p = 0; p < rounded; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        for (int64_t i = 0; i < s->kh; i++)
            pixels->rows[i] |= (uint32_t)((uint64_t)(h + i * s->dh) < (uint64_t)s->h) << p;
        for (int64_t j = 0; j < s->kw; j++)
            pixels->columns[j] |= (uint32_t)((uint64_t)(w + j * s->dw) < (uint64_t)s->w) << p;
        if (p < count - 1 && ++ow == s->ow) ow = 0, oh++;
    }
}

/* Whether output pixel i reads input pixel i alone. */
static bool is_flat(const window *s) {
    return s->kh == 1 && s->kw == 1 && s->sh == 1 && s->sw == 1 && s->pt == 0 && s->pl == 0 && s->oh == s->h &&
           s->ow == s->w;
}

/* One pass over the pixels [begin, end) of one panel. */
static void run_pass(const window *s, conv_pass *pass, conv_pixels *pixels, int64_t begin, int64_t end,
                     const conv_shape *shape) {
    int64_t first = begin;
    if (is_flat(s))
        for (; end - first >= shape->pixels; first += shape->pixels) shape->flat(shape->pixels, pass, pixels, first);
    while (first < end) {
        const int64_t count = nns_min_int(shape->pixels, end - first);
        locate(s, first, count, shape->rounded(count), pixels);
        shape->any(count, pass, pixels, first);
        first += count;
    }
}

/* All passes over the pixels [begin, end) of one panel. */
static void run_chunk(const window *s, const int64_t *p, const conv_panel *panel, conv_pass *pass, conv_pixels *pixels,
                      int64_t begin, int64_t end, conv_kind kind) {
    const int64_t blocks_begin = pass->lane_begin / NNS_BLOCK, blocks_end = blocks_of(pass->lane_end);
    const int64_t per_lane = s->kh * s->kw * panel->vectors * kind.length;
    const conv_shape *shape = shape_of(kind, panel->vectors);
    const float *w = pass->w;
    pass->ahead = shape->pixels * s->sw * NNS_BLOCK;
    for (int64_t block = blocks_begin; block < blocks_end; block += p[CONV_BLOCKS]) {
        pass->block_begin = block;
        pass->block_end = nns_min_int(blocks_end, block + p[CONV_BLOCKS]);
        pass->first = block == blocks_begin;
        pass->last = pass->block_end == blocks_end;
        pass->w = w + nns_max_int(0, block * NNS_BLOCK - pass->lane_begin) * per_lane;
        run_pass(s, pass, pixels, begin, end, shape);
    }
}

/* What a pass over `panel` is told; everything but the range of blocks. */
static conv_pass pass_of(const nns_args *args, const window *s, int64_t image, const conv_panel *panel, conv_kind kind) {
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK, x_plane = s->h * s->w * NNS_BLOCK;
    const int64_t out = (image * blocks_of(s->o) + panel->first / NNS_BLOCK) * y_plane;
    const float *bias = args->in[CONV_BIAS], *residual = args->in[CONV_RESIDUAL];
    conv_pass pass = {
        .x = (const float *)args->in[CONV_X] + image * blocks_of(s->c) * x_plane,
        .bias = bias ? bias + panel->first : NULL,
        .residual = residual ? residual + out : NULL,
        .y = (float *)args->out[0] + out,
        .x_plane = x_plane,
        .lane_begin = panel->lane_begin,
        .lane_end = panel->lane_end,
        .kh = s->kh,
        .kw = s->kw,
        .tap_row = s->dh * s->w * NNS_BLOCK,
        .tap_column = s->dw * NNS_BLOCK,
        .ahead_columns = s->sw,
        .finish = epilogue_read(args->p + CONV_ACTIVATION),
    };
    for (int64_t v = 0; v < panel->vectors; v++) {
        const int64_t lane = panel->first % NNS_BLOCK + v * kind.length;
        pass.at[v] = lane / NNS_BLOCK * y_plane + lane % NNS_BLOCK;
    }
    const int64_t end = panel->first + panel->vectors * kind.length;
    pass.pads = end >= s->o && end % NNS_BLOCK;
    return pass;
}

/* Has the panel that comes next, of `floats`, fetched while the pixels of a chunk pass: its part `part` of `parts`. */
static void plan_fetch(int64_t floats, int64_t part, int64_t parts, int64_t tiles, conv_pass *pass) {
    const int64_t blocks = blocks_of(pass->lane_end) - pass->lane_begin / NNS_BLOCK;
    const int64_t share = nns_ceil_div(floats, parts), per_tile = nns_ceil_div(share, tiles);
    pass->fetch_end = pass->fetch + floats;
    pass->fetch += nns_min_int(floats, share * part);
    pass->fetch_step = nns_ceil_div(nns_ceil_div(per_tile, blocks * pass->kh * pass->kw), CONV_LINE) * CONV_LINE;
}

static void conv_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, conv_kind kind) {
    const int64_t *p = args->p;
    const window s = window_read(p);
    const conv_grid grid = grid_of(&s, p, kind);
    const int64_t per_output = most_lanes(&s, p[CONV_GROUPS], kind, &grid.sets) * s.kh * s.kw;
    const bool by_pixels = p[CONV_ORDER] == 1;
    conv_pixels pixels = {.offsets = scratch, .rows = (uint32_t *)((int64_t *)scratch + CONV_MOST_PIXELS)};
    pixels.columns = pixels.rows + s.kh;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (grid.panels * grid.chunks), rest = unit % (grid.panels * grid.chunks);
        const int64_t index = by_pixels ? rest % grid.panels : rest / grid.chunks;
        const int64_t chunk = by_pixels ? rest / grid.panels : rest % grid.chunks;
        const int64_t begin = chunk * grid.pixels, end = nns_min_int(s.oh * s.ow, begin + grid.pixels);
        const conv_panel panel = panel_of(&s, p[CONV_GROUPS], kind, &grid.sets, index);
        conv_pass pass = pass_of(args, &s, image, &panel, kind);
        pass.w = (const float *)args->in[CONV_W] + panel.first * per_output;
        pass.fetch = pass.fetch_end = pass.w + panel.vectors * kind.length * per_output;
        const int64_t to_next = by_pixels ? 1 : grid.chunks - chunk; /* units until this thread reads the next panel */
        if (index + 1 < grid.panels && unit + to_next < unit_end && (!by_pixels || chunk == 0)) {
            const conv_panel next = panel_of(&s, p[CONV_GROUPS], kind, &grid.sets, index + 1);
            const int64_t tiles = nns_ceil_div(end - begin, shape_of(kind, panel.vectors)->pixels);
            plan_fetch(next.vectors * kind.length * per_output, by_pixels ? 0 : chunk, by_pixels ? 1 : grid.chunks, tiles,
                       &pass);
        }
        run_chunk(&s, p, &panel, &pass, &pixels, begin, end, kind);
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

#define KERNEL(kind, vectors, length)                                                                                  \
    static const char *check_##kind##vectors(const nns_args *args, nns_work *work) {                                  \
        return conv_check(args, work, (conv_kind){vectors, length});                                                  \
    }                                                                                                                 \
    static void run_##kind##vectors(const nns_args *args, int64_t begin, int64_t end, void *scratch) {                \
        conv_run(args, begin, end, scratch, (conv_kind){vectors, length});                                            \
    }
#define ROW(pixels, kind, vectors) \
    {"conv_direct_p" #pixels #kind #vectors, check_##kind##vectors, run_##kind##vectors}

KERNEL(v, 1, NNS_BLOCK)
KERNEL(v, 2, NNS_BLOCK)
#if COMPUTE_MANY_REGISTERS
KERNEL(v, 3, NNS_BLOCK)
KERNEL(v, 4, NNS_BLOCK)
#endif
#if COMPUTE_HALVES
KERNEL(h, 1, COMPUTE_HALF)
KERNEL(h, 2, COMPUTE_HALF)
KERNEL(h, 3, COMPUTE_HALF)
KERNEL(h, 4, COMPUTE_HALF)
#endif

static const nns_kernel rows[] = {
#if COMPUTE_MANY_REGISTERS
    ROW(28, v, 1), ROW(14, v, 2), ROW(9, v, 3), ROW(6, v, 4),
#else
    ROW(12, v, 1), ROW(6, v, 2),
#endif
#if COMPUTE_HALVES
    ROW(28, h, 1), ROW(14, h, 2), ROW(9, h, 3), ROW(6, h, 4),
#endif
};

const nns_kernel_family nns_family_conv_direct = NNS_FAMILY(rows);
