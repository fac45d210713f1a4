/* Direct convolution of blocked tensors: any kernel, stride, padding, dilation and groups.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       the window, then groups, tiles per unit, order (0: weights stay while pixels pass; 1: pixels stay while weights
 *         pass), input blocks per pass (more passes sum up in y), and the activation's kind, a, b
 *
 * Output channels lie in sets: those of a group where groups end with a vector or half a one, else all. A set's vectors are its
 * whole blocks and then, where up to half a block is left at its end or at its begin, a half vector. They are shared out evenly
 * among as few panels of at most VECTORS vectors as there can be. A panel reads the input channels of all groups that its
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

/* Output vectors of one set: `whole` blocks from channel `first` on, then perhaps half a vector at channel `half`. */
typedef struct {
    int64_t first, whole, half;
    bool has_half;
} conv_set;

typedef struct {
    int64_t count;    /* sets */
    int64_t channels; /* of each */
    int64_t panels;   /* of each */
} conv_sets;

typedef struct {
    conv_set set;     /* the panel's part of it */
    int64_t before;   /* output channels in the panels before */
    int64_t lane_begin, lane_end;
} conv_panel;

/* The output vectors of a set of `channels` channels from `begin` on. */
static conv_set set_of(int64_t begin, int64_t channels) {
    const int64_t first = blocks_of(begin) * NNS_BLOCK, left = begin + channels - first;
    conv_set set = {.first = first, .whole = left / NNS_BLOCK};
    const int64_t rest = left % NNS_BLOCK;
    if (first > begin) {
        set.half = begin;
        set.has_half = true;
    } else if (rest > 0 && rest <= COMPUTE_OUTPUT_UNIT % NNS_BLOCK) {
        set.half = first + set.whole * NNS_BLOCK;
        set.has_half = true;
    } else if (rest > 0) {
        set.whole++;
    }
    return set;
}

static conv_sets sets_of(const window *s, int64_t groups, int64_t vectors) {
    const int64_t per_group = s->o / groups;
    conv_sets sets = {1, s->o, 0};
    if (per_group % COMPUTE_OUTPUT_UNIT == 0) sets.count = groups, sets.channels = per_group;
    const conv_set set = set_of(0, sets.channels);
    sets.panels = nns_ceil_div(set.whole + set.has_half, vectors);
    return sets;
}

/* The panel of that index among those of all sets. */
static conv_panel panel_of(const window *s, int64_t groups, const conv_sets *sets, int64_t index) {
    const int64_t begin = index / sets->panels * sets->channels, part = index % sets->panels;
    const conv_set all = set_of(begin, sets->channels);
    const int64_t vectors = all.whole + all.has_half;
    const int64_t from = vectors * part / sets->panels, to = vectors * (part + 1) / sets->panels;
    conv_panel panel = {.set = all, .before = begin + from * NNS_BLOCK};
    panel.set.first = all.first + from * NNS_BLOCK;
    panel.set.whole = nns_min_int(to, all.whole) - from;
    panel.set.has_half = to > all.whole;
    int64_t low = panel.set.whole ? panel.set.first : all.half, high = panel.set.first + panel.set.whole * NNS_BLOCK;
    if (panel.set.has_half) {
        low = nns_min_int(low, all.half);
        high = nns_max_int(panel.set.whole ? high : 0, all.half + COMPUTE_OUTPUT_UNIT);
    }
    const int64_t per_group = s->o / groups;
    panel.lane_begin = low / per_group * (s->c / groups);
    panel.lane_end = ((nns_min_int(high, s->o) - 1) / per_group + 1) * (s->c / groups);
    return panel;
}

/* Most input channels that a panel reads. */
static int64_t most_lanes(const window *s, int64_t groups, const conv_sets *sets) {
    if (sets->count == groups) return s->c / groups;
    int64_t most = 0;
    for (int64_t i = 0; i < sets->panels; i++) {
        const conv_panel panel = panel_of(s, groups, sets, i);
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

/* The shapes of tiles, which fill the registers. A panel of fewer vectors than its kernel's takes the shape of that many. */
#if COMPUTE_MANY_REGISTERS

#define PIXELS 28
#define VECTORS 1
#define HALF 0
#include "conv_direct.inc"
#define PIXELS 14
#define VECTORS 2
#define HALF 0
#include "conv_direct.inc"
#define PIXELS 9
#define VECTORS 3
#define HALF 0
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 4
#define HALF 0
#include "conv_direct.inc"
#if COMPUTE_HALVES
#define PIXELS 28
#define VECTORS 1
#define HALF 1
#include "conv_direct.inc"
#define PIXELS 14
#define VECTORS 2
#define HALF 1
#include "conv_direct.inc"
#define PIXELS 9
#define VECTORS 3
#define HALF 1
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 4
#define HALF 1
#include "conv_direct.inc"
#endif

#else

#define PIXELS 12
#define VECTORS 1
#define HALF 0
#include "conv_direct.inc"
#define PIXELS 6
#define VECTORS 2
#define HALF 0
#include "conv_direct.inc"
#define PIXELS 4
#define VECTORS 3
#define HALF 0
#include "conv_direct.inc"

#endif

#define SHAPE(P, V, H) \
    {P, tile_p##P##v##V##h##H##_rounded, tile_p##P##v##V##h##H, tile_p##P##v##V##h##H##_flat}
#if COMPUTE_HALVES
#define SHAPES(P, V) {SHAPE(P, V, 0), SHAPE(P, V, 1)}
#else
#define SHAPES(P, V) {SHAPE(P, V, 0)}
#endif

/* By vectors - 1, and whether the last of them is a half. */
#if COMPUTE_MANY_REGISTERS
static const conv_shape shapes[][1 + COMPUTE_HALVES] = {SHAPES(28, 1), SHAPES(14, 2), SHAPES(9, 3), SHAPES(6, 4)};
enum { CONV_MOST_PIXELS = 28 };
#else
static const conv_shape shapes[][1 + COMPUTE_HALVES] = {SHAPES(12, 1), SHAPES(6, 2), SHAPES(4, 3)};
enum { CONV_MOST_PIXELS = 12 };
#endif

/* ---- units: (image, panel, chunk of pixels) ----------------------------------------------------------------------- */

typedef struct {
    conv_sets sets;
    int64_t panels;       /* of all sets */
    int64_t pixels;       /* per chunk */
    int64_t chunks;
} conv_grid;

static conv_grid grid_of(const window *s, const int64_t *p, int64_t vectors) {
    conv_grid grid = {.sets = sets_of(s, p[CONV_GROUPS], vectors), .pixels = p[CONV_TILES] * shapes[vectors - 1][0].pixels};
    grid.panels = grid.sets.count * grid.sets.panels;
    grid.chunks = nns_ceil_div(s->oh * s->ow, grid.pixels);
    return grid;
}

static const char *conv_check(const nns_args *args, nns_work *work, int64_t vectors) {
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
    const conv_grid grid = grid_of(&s, p, vectors);
    const int64_t y = NNS_FLOAT_BYTES(s.n, blocks_of(s.o), NNS_BLOCK, s.oh, s.ow);
    if (!nns_holds(args->in_bytes[CONV_X], NNS_FLOAT_BYTES(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w)))
        return "the convolution's input is too small";
    if (!nns_holds(args->in_bytes[CONV_W],
                   NNS_FLOAT_BYTES(outputs_held(s.o), most_lanes(&s, groups, &grid.sets), s.kh, s.kw)))
        return "the convolution's weights are too small";
    if (args->in_bytes[CONV_BIAS] && !nns_holds(args->in_bytes[CONV_BIAS], NNS_FLOAT_BYTES(outputs_held(s.o))))
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
                      int64_t begin, int64_t end) {
    const int64_t blocks_begin = pass->lane_begin / NNS_BLOCK, blocks_end = blocks_of(pass->lane_end);
    const int64_t per_lane = s->kh * s->kw * (panel->set.whole * NNS_BLOCK + panel->set.has_half * NNS_BLOCK / 2);
    const conv_shape *shape = &shapes[panel->set.whole + panel->set.has_half - 1][panel->set.has_half];
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
static conv_pass pass_of(const nns_args *args, const window *s, int64_t image, const conv_panel *panel, int64_t lanes) {
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK, x_plane = s->h * s->w * NNS_BLOCK;
    const int64_t y_image = image * blocks_of(s->o) * y_plane, half = panel->set.half;
    const int64_t whole_at = y_image + panel->set.first / NNS_BLOCK * y_plane;
    const int64_t half_at = y_image + half / NNS_BLOCK * y_plane + half % NNS_BLOCK;
    const float *bias = args->in[CONV_BIAS], *residual = args->in[CONV_RESIDUAL];
    float *y = args->out[0];
    return (conv_pass){
        .x = (const float *)args->in[CONV_X] + image * blocks_of(s->c) * x_plane,
        .w = (const float *)args->in[CONV_W] + panel->before * lanes * s->kh * s->kw,
        .bias = bias ? bias + panel->set.first : NULL,
        .residual = residual ? residual + whole_at : NULL,
        .y = y + whole_at,
        .half = {.bias = bias ? bias + half : NULL,
                 .residual = residual ? residual + half_at : NULL,
                 .y = y + half_at,
                 .pads = half % NNS_BLOCK == 0 && half + COMPUTE_OUTPUT_UNIT >= s->o},
        .x_plane = x_plane,
        .y_plane = y_plane,
        .lane_begin = panel->lane_begin,
        .lane_end = panel->lane_end,
        .kh = s->kh,
        .kw = s->kw,
        .tap_row = s->dh * s->w * NNS_BLOCK,
        .tap_column = s->dw * NNS_BLOCK,
        .ahead_columns = s->sw,
        .finish = epilogue_read(args->p + CONV_ACTIVATION),
    };
}

static void conv_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t vectors) {
    const int64_t *p = args->p;
    const window s = window_read(p);
    const conv_grid grid = grid_of(&s, p, vectors);
    const int64_t lanes = most_lanes(&s, p[CONV_GROUPS], &grid.sets);
    conv_pixels pixels = {.offsets = scratch, .rows = (uint32_t *)((int64_t *)scratch + CONV_MOST_PIXELS)};
    pixels.columns = pixels.rows + s.kh;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (grid.panels * grid.chunks), rest = unit % (grid.panels * grid.chunks);
        const int64_t index = p[CONV_ORDER] ? rest % grid.panels : rest / grid.chunks;
        const int64_t chunk = p[CONV_ORDER] ? rest / grid.panels : rest % grid.chunks;
        const conv_panel panel = panel_of(&s, p[CONV_GROUPS], &grid.sets, index);
        conv_pass pass = pass_of(args, &s, image, &panel, lanes);
        const int64_t begin = chunk * grid.pixels;
        run_chunk(&s, p, &panel, &pass, &pixels, begin, nns_min_int(s.oh * s.ow, begin + grid.pixels));
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

#define KERNEL(pixels, vectors)                                                                                       \
    static const char *check_v##vectors(const nns_args *args, nns_work *work) {                                       \
        return conv_check(args, work, vectors);                                                                       \
    }                                                                                                                 \
    static void run_v##vectors(const nns_args *args, int64_t begin, int64_t end, void *scratch) {                     \
        conv_run(args, begin, end, scratch, vectors);                                                                 \
    }
#define ROW(pixels, vectors) {"conv_direct_p" #pixels "v" #vectors, check_v##vectors, run_v##vectors}

#if COMPUTE_MANY_REGISTERS
KERNEL(28, 1)
KERNEL(14, 2)
KERNEL(9, 3)
KERNEL(6, 4)
static const nns_kernel rows[] = {ROW(28, 1), ROW(14, 2), ROW(9, 3), ROW(6, 4)};
#else
KERNEL(12, 1)
KERNEL(6, 2)
KERNEL(4, 3)
static const nns_kernel rows[] = {ROW(12, 1), ROW(6, 2), ROW(4, 3)};
#endif

const nns_kernel_family nns_family_conv_direct = NNS_FAMILY(rows);
