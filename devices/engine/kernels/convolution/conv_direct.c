/* Direct convolution of blocked tensors: any kernel, stride, padding, dilation and groups.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * A set is the output channels of a group if groups consist of whole vectors, else all output channels. The vectors
 * of a set are divided evenly among the fewest possible panels of at most VECTORS vectors. A panel reads the input
 * channels [lane_begin, lane_end) of all groups of its output channels. Its weights are float[input
 * block][kh][kw][lane][output channel] with only the lanes in that range. Panels are contiguous; all have the size of
 * the largest. */
#include "by_element.h"
#include "convolution/conv_pixels.h"

NNS_DEFINE_READS(conv_direct);

/* Floats of a cache line. */
#define CONV_LINE 16

static const float zeros[NNS_BLOCK] __attribute__((aligned(64)));

enum { CONV_MOST_PIXELS = NNS_MOST(conv_direct, 1), CONV_MOST_VECTORS = NNS_MOST(conv_direct, 2) };
_Static_assert(CONV_MOST_PIXELS < 32, "masks have one bit per pixel of a tile");

/* One pass over a panel: some output vectors and a range of input channels. Output vector v lies `at[v]` floats from
 * `y`, and its residual `at[v]` floats from `residual`. */
typedef struct {
    const float *x;         /* first block of this image */
    const float *w;         /* weights of the panel from the first input block of this pass */
    const float *bias;      /* of the panel, or NULL */
    const float *residual;  /* first block of the panel, or NULL */
    float *y;               /* first block of the panel */
    int64_t at[CONV_MOST_VECTORS];
    bool pads;              /* the last vector is the first half of a block whose other half is padding */
    int64_t x_plane;                       /* floats between blocks of the input */
    int64_t block_begin, block_end;        /* input blocks of this pass */
    int64_t lane_begin, lane_end;          /* input channels of the panel, in all passes */
    int64_t kh, kw, tap_row, tap_column;   /* taps, and floats from one to the next */
    bool first, last;                      /* pass: starts from the bias; ends with the epilogue */
    int64_t ahead_columns;                 /* taps of a row that earlier tiles did not prefetch for the next tile */
    int64_t ahead;                         /* floats from a tile's pixels to the next one's */
    const float *fetch, *fetch_end;        /* weights of the next panel that are not prefetched yet */
    int64_t fetch_step;                    /* floats prefetched per tap and input block */
    epilogue finish;
} conv_pass;

/* Computes `count` output pixels from `pixel` on, which are consecutive in the flattened output plane. `pixels`
 * describes `rounded_count` pixels: a tile has code for some counts only and repeats the last pixel for the others. */
typedef void (*conv_tile)(int64_t count, conv_pass *pass, const conv_pixels *pixels, int64_t pixel);

/* One shape of tile. */
typedef struct {
    int64_t pixels;
    conv_tile any;
    conv_tile flat; /* `pixels` pixels, if output pixel i reads input pixel i only */
} conv_shape;

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* Kind of kernel: maximum vectors per panel, and outputs per vector. */
typedef struct {
    int64_t vectors, length;
} conv_kind;

typedef struct {
    int64_t count;   /* sets */
    int64_t vectors; /* of each */
    int64_t panels;  /* of each */
} conv_sets;

typedef struct {
    int64_t first, vectors; /* first output channel, and number of vectors */
    int64_t lane_begin, lane_end;
} conv_panel;

static conv_sets sets_of(const kernel_geometry *s, int64_t groups, conv_kind kind) {
    const int64_t per_group = s->o / groups, count = per_group % kind.length ? 1 : groups;
    const int64_t vectors = nns_ceil_div(s->o / count, kind.length);
    return (conv_sets){count, vectors, nns_ceil_div(vectors, kind.vectors)};
}

/* Panel `index` among those of all sets. */
static conv_panel panel_of(const kernel_geometry *s, int64_t groups, conv_kind kind, const conv_sets *sets,
                           int64_t index) {
    const int64_t set = index / sets->panels, part = index % sets->panels;
    const int64_t from = sets->vectors * part / sets->panels, to = sets->vectors * (part + 1) / sets->panels;
    conv_panel panel = {.first = (set * sets->vectors + from) * kind.length, .vectors = to - from};
    const int64_t last = nns_min_int(s->o, panel.first + panel.vectors * kind.length) - 1, per_group = s->o / groups;
    panel.lane_begin = panel.first / per_group * (s->c / groups);
    panel.lane_end = (last / per_group + 1) * (s->c / groups);
    return panel;
}

/* Maximum input channels that a panel reads. */
static int64_t most_lanes(const kernel_geometry *s, int64_t groups, conv_kind kind, const conv_sets *sets) {
    if (sets->count == groups) return s->c / groups;
    int64_t most = 0;
    for (int64_t i = 0; i < sets->panels; i++) {
        const conv_panel panel = panel_of(s, groups, kind, sets, i);
        most = nns_max_int(most, panel.lane_end - panel.lane_begin);
    }
    return most;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Prefetches the next lines of the next panel's weights to the second-level cache. */
NNS_INLINE void conv_fetch(conv_pass *pass) {
    if (pass->fetch >= pass->fetch_end) return;
    for (int64_t i = 0; i < pass->fetch_step; i += CONV_LINE) __builtin_prefetch(pass->fetch + i, 0, 2);
    pass->fetch += pass->fetch_step;
}

#if COMPUTE_BY_ELEMENT
/* The same for copies of the members of a pass; returns the new `fetch`. */
NNS_INLINE const float *conv_fetch_from(const float *fetch, const float *end, int64_t step) {
    if (fetch >= end) return fetch;
    for (int64_t i = 0; i < step; i += CONV_LINE) __builtin_prefetch(fetch + i, 0, 2);
    return fetch + step;
}
#endif

typedef nns_vec conv_vec_v;
#define conv_load_v nns_load
#define conv_put_v nns_store
#define conv_broadcast_v nns_broadcast
#define conv_max_v epilogue_max
#define conv_min_v epilogue_min
#define KIND v
#include "convolution/conv_direct.inc"

#if COMPUTE_HALVES
typedef compute_half conv_vec_h;
#define conv_load_h half_load
#define conv_put_h half_store
#define conv_broadcast_h half_broadcast
#define conv_max_h half_max
#define conv_min_h half_min
#define KIND h
#include "convolution/conv_direct.inc"
#endif

#define TILES(stem, name, where, count, vectors, kind)                                                           \
    WHERE_##where(static void stem##_any(int64_t n, conv_pass *pass, const conv_pixels *pixels, int64_t pixel) { \
        conv_any_##kind(count, vectors, n, pass, pixels, pixel);                                                 \
    } static void stem##_flat(int64_t n, conv_pass *pass, const conv_pixels *pixels, int64_t pixel) {            \
        (void)n;                                                                                                 \
        conv_of_##kind(count, vectors, count, true, pass, pixels, pixel);                                        \
    })
KERNELS_conv_direct(TILES)

/* Tile shapes by kind and vectors; each fills the registers. */
enum { SHAPES_v, SHAPES_h, SHAPES_COUNT };
#define SHAPE(stem, name, where, pixels, vectors, kind) \
    WHERE_##where([SHAPES_##kind][vectors - 1] = {pixels, stem##_any, stem##_flat},)
static const conv_shape shapes[SHAPES_COUNT][CONV_MOST_VECTORS] = {KERNELS_conv_direct(SHAPE)};

/* The tile shape for panels of `vectors` vectors. */
static const conv_shape *shape_of(conv_kind kind, int64_t vectors) {
    return &shapes[kind.length == NNS_BLOCK ? SHAPES_v : SHAPES_h][vectors - 1];
}

/* ---- units: (image, panel, chunk of pixels) ---------------------------------------------------------------------- */

typedef struct {
    conv_sets sets;
    int64_t panels;       /* of all sets */
    int64_t pixels;       /* per chunk */
    int64_t chunks;
} conv_grid;

static conv_grid grid_of(const kernel_geometry *s, const conv_direct_parameters *p, conv_kind kind) {
    conv_grid grid = {.sets = sets_of(s, p->groups, kind)};
    grid.pixels = p->tiles * shape_of(kind, kind.vectors)->pixels;
    grid.panels = grid.sets.count * grid.sets.panels;
    grid.chunks = nns_ceil_div(s->oh * s->ow, grid.pixels);
    return grid;
}

static const char *conv_check(const nns_args *args, nns_work *work, conv_kind kind) {
    const conv_direct_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const int64_t groups = p->groups;
    if (s.c % groups || s.o % groups) return "groups do not divide the channels";
    const conv_grid grid = grid_of(&s, p, kind);
    const int64_t y = NNS_FLOAT_BYTES(s.n, blocks_of(s.o), NNS_BLOCK, s.oh, s.ow);
    const int64_t outputs = nns_ceil_div(s.o, kind.length) * kind.length;
    const char *wrong = NNS_CHECK_SIZES(
        conv_direct, args, y, NNS_FLOAT_BYTES(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w),
        NNS_FLOAT_BYTES(outputs, most_lanes(&s, groups, kind, &grid.sets), s.kh, s.kw), NNS_FLOAT_BYTES(outputs), y);
    if (wrong) return wrong;
    work->units = s.n * grid.panels * grid.chunks;
    work->scratch = CONV_MOST_PIXELS * (int64_t)sizeof(int64_t) + (s.kh + s.kw) * (int64_t)sizeof(uint32_t);
    return NULL;
}

/* One pass over the pixels [begin, end) of one panel. */
static void run_pass(const kernel_geometry *s, conv_pass *pass, conv_pixels *pixels, int64_t begin, int64_t end,
                     const conv_shape *shape) {
    int64_t first = begin;
    if (is_flat(s))
        for (; end - first >= shape->pixels; first += shape->pixels) shape->flat(shape->pixels, pass, pixels, first);
    while (first < end) {
        const int64_t count = nns_min_int(shape->pixels, end - first);
        locate(s, first, count, rounded_count(shape->pixels, count), pixels);
        shape->any(count, pass, pixels, first);
        first += count;
    }
}

/* All passes over the pixels [begin, end) of one panel. */
static void run_chunk(const kernel_geometry *s, const conv_direct_parameters *p, const conv_panel *panel,
                      conv_pass *pass, conv_pixels *pixels, int64_t begin, int64_t end, conv_kind kind) {
    const int64_t blocks_begin = pass->lane_begin / NNS_BLOCK, blocks_end = blocks_of(pass->lane_end);
    const int64_t per_lane = s->kh * s->kw * panel->vectors * kind.length;
    const conv_shape *shape = shape_of(kind, panel->vectors);
    const float *w = pass->w;
    pass->ahead = shape->pixels * s->sw * NNS_BLOCK;
    for (int64_t block = blocks_begin; block < blocks_end; block += p->blocks) {
        pass->block_begin = block;
        pass->block_end = nns_min_int(blocks_end, block + p->blocks);
        pass->first = block == blocks_begin;
        pass->last = pass->block_end == blocks_end;
        pass->w = w + nns_max_int(0, block * NNS_BLOCK - pass->lane_begin) * per_lane;
        run_pass(s, pass, pixels, begin, end, shape);
    }
}

/* The pass over `panel`, without its range of input blocks. */
static conv_pass pass_of(const nns_args *args, const kernel_geometry *s, int64_t image, const conv_panel *panel,
                         conv_kind kind) {
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK, x_plane = s->h * s->w * NNS_BLOCK;
    const int64_t out = (image * blocks_of(s->o) + panel->first / NNS_BLOCK) * y_plane;
    const float *bias = args->in[READ_BIAS], *residual = args->in[READ_RESIDUAL];
    conv_pass pass = {
        .x = (const float *)args->in[READ_X] + image * blocks_of(s->c) * x_plane,
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
        .finish = epilogue_of(&((const conv_direct_parameters *)(const void *)args->p)->activation),
    };
    for (int64_t v = 0; v < panel->vectors; v++) {
        const int64_t lane = panel->first % NNS_BLOCK + v * kind.length;
        pass.at[v] = lane / NNS_BLOCK * y_plane + lane % NNS_BLOCK;
    }
    const int64_t end = panel->first + panel->vectors * kind.length;
    pass.pads = end >= s->o && end % NNS_BLOCK;
    return pass;
}

/* Plans the prefetch of part `part` of `parts` of the next panel (`floats` floats) during a chunk of pixels. */
static void plan_fetch(int64_t floats, int64_t part, int64_t parts, int64_t tiles, conv_pass *pass) {
    const int64_t blocks = blocks_of(pass->lane_end) - pass->lane_begin / NNS_BLOCK;
    const int64_t share = nns_ceil_div(floats, parts), per_tile = nns_ceil_div(share, tiles);
    pass->fetch_end = pass->fetch + floats;
    pass->fetch += nns_min_int(floats, share * part);
    pass->fetch_step = nns_ceil_div(nns_ceil_div(per_tile, blocks * pass->kh * pass->kw), CONV_LINE) * CONV_LINE;
}

static void conv_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, conv_kind kind) {
    const conv_direct_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const conv_grid grid = grid_of(&s, p, kind);
    const int64_t per_output = most_lanes(&s, p->groups, kind, &grid.sets) * s.kh * s.kw;
    const bool by_pixels = p->order == 1;
    conv_pixels pixels = {.offsets = scratch, .rows = (uint32_t *)((int64_t *)scratch + CONV_MOST_PIXELS)};
    pixels.columns = pixels.rows + s.kh;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (grid.panels * grid.chunks), rest = unit % (grid.panels * grid.chunks);
        const int64_t index = by_pixels ? rest % grid.panels : rest / grid.chunks;
        const int64_t chunk = by_pixels ? rest / grid.panels : rest % grid.chunks;
        const int64_t begin = chunk * grid.pixels, end = nns_min_int(s.oh * s.ow, begin + grid.pixels);
        const conv_panel panel = panel_of(&s, p->groups, kind, &grid.sets, index);
        conv_pass pass = pass_of(args, &s, image, &panel, kind);
        pass.w = (const float *)args->in[READ_WEIGHTS] + panel.first * per_output;
        pass.fetch = pass.fetch_end = pass.w + panel.vectors * kind.length * per_output;
        const int64_t to_next = by_pixels ? 1 : grid.chunks - chunk; /* units until this thread reads the next panel */
        if (index + 1 < grid.panels && unit + to_next < unit_end && (!by_pixels || chunk == 0)) {
            const conv_panel next = panel_of(&s, p->groups, kind, &grid.sets, index + 1);
            const int64_t tiles = nns_ceil_div(end - begin, shape_of(kind, panel.vectors)->pixels);
            plan_fetch(next.vectors * kind.length * per_output, by_pixels ? 0 : chunk, by_pixels ? 1 : grid.chunks,
                       tiles, &pass);
        }
        run_chunk(&s, p, &panel, &pass, &pixels, begin, end, kind);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define LENGTH_v NNS_BLOCK
#define LENGTH_h (NNS_BLOCK / 2)
#define KERNEL(stem, name, where, pixels, vectors, kind)                                               \
    WHERE_##where(NNS_DEFINE_KERNEL(stem, conv_check(args, work, (conv_kind){vectors, LENGTH_##kind}), \
                                    conv_run(args, begin, end, scratch, (conv_kind){vectors, LENGTH_##kind})))
KERNELS_conv_direct(KERNEL)

NNS_DEFINE_FAMILY(conv_direct);
