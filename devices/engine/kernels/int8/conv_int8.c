/* Direct convolution of int8 in the blocked layout: any kernel, stride, padding, dilation and groups.
 *
 * reads   x, weights, bias (int32[2][lanes of the output], as int8_bias says), multipliers (a float per lane: of a sum,
 *         in steps of the output's scale), residual like the output or NULL
 * writes  y, which may be the residual's memory; or float32 (p->result)
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * A set is the output channels of a group if groups consist of whole vectors, else all output channels. The vectors of
 * a set are divided evenly among the fewest possible panels of at most VECTORS vectors. A panel reads the quads of
 * input channels that its output channels' groups meet. Its weights are int8[input block][kh][kw][quad][output
 * channel][4] with only those quads. Panels are contiguous; all have the size of the largest. */
#include "convolution/conv_pixels.h"
#include "int8/product.h"

NNS_DEFINE_READS(conv_int8);

/* Bytes of a cache line. */
#define CONV_LINE 64

enum { CONV_MOST_PIXELS = NNS_MOST(conv_int8, 1), CONV_MOST_VECTORS = NNS_MOST(conv_int8, 2) };
_Static_assert(CONV_MOST_PIXELS < 32, "masks have one bit per pixel of a tile");

/* All of one panel for one image. Output vector v lies v * y_plane bytes behind `y` and `residual`. */
typedef struct {
    const int8_t *x; /* first block of this image */
    const int8_t *w;
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* or NULL */
    int8_t *y;
    int64_t x_plane, y_plane;             /* bytes between blocks */
    int64_t quad_begin, quad_end;         /* quads of input channels */
    int64_t kh, kw, tap_row, tap_column;  /* taps, and bytes from one to the next */
    int64_t ahead;                        /* bytes from a tile's pixels to the next one's */
    const int8_t *outside;                /* a block of zero points */
    const int8_t *fetch, *fetch_end;      /* weights of the next panel that are not prefetched yet */
    int64_t fetch_step;                   /* bytes prefetched per tap and input block */
    int8_rounding finish;
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

typedef struct {
    int64_t count;   /* sets */
    int64_t vectors; /* of each */
    int64_t panels;  /* of each */
} conv_sets;

typedef struct {
    int64_t first, vectors; /* first output channel, and number of vectors */
    int64_t quad_begin, quad_end;
} conv_panel;

static conv_sets sets_of(const kernel_geometry *s, int64_t groups, int64_t vectors) {
    const int64_t count = s->o / groups % NNS_BLOCK ? 1 : groups;
    const int64_t each = nns_ceil_div(s->o / count, NNS_BLOCK);
    return (conv_sets){count, each, nns_ceil_div(each, vectors)};
}

/* Panel `index` among those of all sets. */
static conv_panel panel_of(const kernel_geometry *s, int64_t groups, const conv_sets *sets, int64_t index) {
    const int64_t set = index / sets->panels, part = index % sets->panels;
    const int64_t from = sets->vectors * part / sets->panels, to = sets->vectors * (part + 1) / sets->panels;
    conv_panel panel = {.first = (set * sets->vectors + from) * NNS_BLOCK, .vectors = to - from};
    const int64_t last = nns_min_int(s->o, panel.first + panel.vectors * NNS_BLOCK) - 1, per_group = s->o / groups;
    panel.quad_begin = panel.first / per_group * (s->c / groups) / INT8_QUAD;
    panel.quad_end = nns_ceil_div((last / per_group + 1) * (s->c / groups), INT8_QUAD);
    return panel;
}

/* Maximum quads of input channels that a panel reads. */
static int64_t most_quads(const kernel_geometry *s, int64_t groups, const conv_sets *sets) {
    if (groups == 1) return nns_ceil_div(s->c, INT8_QUAD);
    int64_t most = 0;
    for (int64_t i = 0; i < sets->count * sets->panels; i++) {
        const conv_panel panel = panel_of(s, groups, sets, i);
        most = nns_max_int(most, panel.quad_end - panel.quad_begin);
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

/* Adds quads [begin, end) of one block; returns the address after their weights. */
NNS_INLINE const int8_t *add_quads(const int count, const int vectors, nns_uvec *sums, nns_uvec flips,
                                   const int8_t *const *each, const int8_t *first, int64_t begin, int64_t end,
                                   const int8_t *w) {
    const int64_t bytes = vectors * NNS_BLOCK * INT8_QUAD;
    if (end - begin == INT8_QUADS) {
        COMPUTE_UNROLL
        for (int64_t quad = 0; quad < INT8_QUADS; quad++, w += bytes)
            int8_add_quad(count, vectors, sums, CONV_MOST_VECTORS, flips, each, first, quad * INT8_QUAD, w);
    } else {
        for (int64_t quad = begin; quad < end; quad++, w += bytes)
            int8_add_quad(count, vectors, sums, CONV_MOST_VECTORS, flips, each, first, quad * INT8_QUAD, w);
    }
    return w;
}

/* Points `each` to the pixels' inputs of one tap: to zero points outside the input. Whether any is inside, or all. */
NNS_INLINE void locate_tap(const int count, const conv_pass *pass, const conv_pixels *pixels, const int8_t *plane,
                           int64_t i, int64_t j, const int8_t **each) {
    const int64_t tap = i * pass->tap_row + j * pass->tap_column;
    COMPUTE_FOR(p, count) each[p] = plane + (tap + pixels->offsets[p]);
    if (!pixels->edge) return;
    const uint32_t inside = pixels->rows[i] & pixels->columns[j];
    COMPUTE_FOR(p, count) each[p] = inside >> p & 1 ? each[p] : pass->outside;
}

/* Rounds and stores `valid` of `count` pixels. */
NNS_INLINE void store_tile(const int count, const int vectors, const int64_t valid, const nns_uvec *sums,
                           const conv_pass *pass, int64_t pixel) {
    COMPUTE_FOR(v, vectors) {
        const nns_vec multipliers = nns_load(pass->multipliers + v * NNS_BLOCK);
        const int64_t at = v * pass->y_plane + pixel * NNS_BLOCK;
        int8_store(count, valid, &pass->finish, sums + v, CONV_MOST_VECTORS, multipliers,
                   pass->residual ? pass->residual + at : NULL, pass->y + at);
    }
}

/* One tile: computes `count` pixels and stores `valid` of them. With `flat` output pixel i reads input pixel i only. */
NNS_INLINE void tile_of(const int count, const int vectors, const int64_t valid, const bool flat, conv_pass *pass,
                        const conv_pixels *pixels, int64_t pixel) {
    nns_uvec sums[CONV_MOST_PIXELS * CONV_MOST_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_uvec bias = compute_load_bits(pass->bias + v * NNS_BLOCK);
        COMPUTE_FOR(p, count) sums[p * CONV_MOST_VECTORS + v] = bias;
    }
    const nns_uvec flips = int8_flips();
    const int8_t *w = pass->w, *each[CONV_MOST_PIXELS];
    const int64_t end = nns_ceil_div(pass->quad_end, INT8_QUADS);
    for (int64_t block = pass->quad_begin / INT8_QUADS; block < end; block++) {
        const int8_t *plane = pass->x + block * pass->x_plane;
        const int64_t first = nns_max_int(0, pass->quad_begin - block * INT8_QUADS);
        const int64_t last = nns_min_int(INT8_QUADS, pass->quad_end - block * INT8_QUADS);
        if (flat) {
            const int8_t *x = plane + pixel * NNS_BLOCK;
            COMPUTE_UNROLL
            for (int at = 0; at < count * NNS_BLOCK; at += CONV_LINE) __builtin_prefetch(x + pass->ahead + at);
            conv_fetch(pass);
            w = add_quads(count, vectors, sums, flips, NULL, x, first, last, w);
            continue;
        }
        for (int64_t i = 0; i < pass->kh; i++) {
            for (int64_t j = 0; j < pass->kw; j++) {
                conv_fetch(pass);
                locate_tap(count, pass, pixels, plane, i, j, each);
                w = add_quads(count, vectors, sums, flips, each, NULL, first, last, w);
            }
        }
    }
    store_tile(count, vectors, valid, sums, pass, pixel);
}

/* A tile of up to `most` pixels. */
NNS_INLINE void any_tile(const int most, const int vectors, int64_t count, conv_pass *pass, const conv_pixels *pixels,
                         int64_t pixel) {
    const int half = CONV_HALF(most), quarter = CONV_QUARTER(most);
    if (count == most)
        tile_of(most, vectors, most, false, pass, pixels, pixel);
    else if (count <= quarter)
        tile_of(quarter, vectors, count, false, pass, pixels, pixel);
    else if (count <= half)
        tile_of(half, vectors, count, false, pass, pixels, pixel);
    else
        tile_of(most, vectors, count, false, pass, pixels, pixel);
}

#define TILES(stem, name, where, count, vectors)                                                                 \
    WHERE_##where(static void stem##_any(int64_t n, conv_pass *pass, const conv_pixels *pixels, int64_t pixel) { \
        any_tile(count, vectors, n, pass, pixels, pixel);                                                        \
    } static void stem##_flat(int64_t n, conv_pass *pass, const conv_pixels *pixels, int64_t pixel) {            \
        (void)n;                                                                                                 \
        tile_of(count, vectors, count, true, pass, pixels, pixel);                                               \
    })
KERNELS_conv_int8(TILES)

/* Tile shapes by vectors; each fills the registers. */
#define SHAPE(stem, name, where, pixels, vectors) WHERE_##where([vectors - 1] = {pixels, stem##_any, stem##_flat},)
static const conv_shape shapes[CONV_MOST_VECTORS] = {KERNELS_conv_int8(SHAPE)};

/* ---- units: (image, panel, chunk of pixels) ---------------------------------------------------------------------- */

typedef struct {
    conv_sets sets;
    int64_t panels; /* of all sets */
    int64_t pixels; /* per chunk */
    int64_t chunks;
} conv_grid;

static conv_grid grid_of(const conv_int8_parameters *p, int64_t vectors) {
    const kernel_geometry *s = &p->geometry;
    conv_grid grid = {.sets = sets_of(s, p->groups, vectors)};
    grid.pixels = p->tiles * shapes[vectors - 1].pixels;
    grid.panels = grid.sets.count * grid.sets.panels;
    grid.chunks = nns_ceil_div(s->oh * s->ow, grid.pixels);
    return grid;
}

static const char *conv_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const conv_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c % p->groups || s.o % p->groups) return "groups do not divide the channels";
    const conv_grid grid = grid_of(p, vectors);
    const int64_t lanes = blocks_of(s.o) * NNS_BLOCK;
    const int64_t y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    const char *wrong = NNS_CHECK_SIZES(
        conv_int8, args, int8_result_bytes(y, &p->result), NNS_PRODUCT(s.n, blocks_of(s.c), NNS_BLOCK, s.h, s.w),
        NNS_PRODUCT(lanes, most_quads(&s, p->groups, &grid.sets), INT8_QUAD, s.kh, s.kw),
        NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(lanes), y);
    if (wrong) return wrong;
    work->units = s.n * grid.panels * grid.chunks;
    work->scratch = CONV_MOST_PIXELS * (int64_t)sizeof(int64_t) + NNS_BLOCK + (s.kh + s.kw) * (int64_t)sizeof(uint32_t);
    return NULL;
}

/* The pixels [begin, end) of one panel. */
static void run_chunk(const kernel_geometry *s, conv_pass *pass, conv_pixels *pixels, int64_t begin, int64_t end,
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

/* The pass over `panel` for one image, without weights to prefetch. */
static conv_pass pass_of(const nns_args *args, const conv_int8_parameters *p, int64_t image, const conv_panel *panel,
                         int64_t per_output, const int8_t *outside) {
    const kernel_geometry *s = &p->geometry;
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK, x_plane = s->h * s->w * NNS_BLOCK;
    const int64_t out = (image * blocks_of(s->o) + panel->first / NNS_BLOCK) * y_plane;
    const int8_t *residual = args->in[READ_RESIDUAL];
    conv_pass pass = {
        .x = (const int8_t *)args->in[READ_X] + image * blocks_of(s->c) * x_plane,
        .w = (const int8_t *)args->in[READ_WEIGHTS] + panel->first * per_output,
        .bias = int8_bias(args->in[READ_BIAS], blocks_of(s->o) * NNS_BLOCK) + panel->first,
        .multipliers = (const float *)args->in[READ_MULTIPLIERS] + panel->first,
        .residual = residual ? residual + out : NULL,
        .y = (int8_t *)args->out[0] + out,
        .x_plane = x_plane,
        .y_plane = y_plane,
        .quad_begin = panel->quad_begin,
        .quad_end = panel->quad_end,
        .kh = s->kh,
        .kw = s->kw,
        .tap_row = s->dh * s->w * NNS_BLOCK,
        .tap_column = s->dw * NNS_BLOCK,
        .ahead = shapes[panel->vectors - 1].pixels * NNS_BLOCK,
        .outside = outside,
        .finish = int8_rounding_of(&p->rounding, &p->result, args->out[0]),
    };
    pass.fetch = pass.fetch_end = pass.w + panel->vectors * NNS_BLOCK * per_output;
    return pass;
}

/* Plans the prefetch of part `part` of `parts` of the next panel (`bytes` bytes) during a chunk of pixels. */
static void plan_fetch(int64_t bytes, int64_t part, int64_t parts, int64_t tiles, conv_pass *pass) {
    const int64_t blocks = nns_ceil_div(pass->quad_end, INT8_QUADS) - pass->quad_begin / INT8_QUADS;
    const int64_t share = nns_ceil_div(bytes, parts), per_tile = nns_ceil_div(share, tiles);
    pass->fetch_end = pass->fetch + bytes;
    pass->fetch += nns_min_int(bytes, share * part);
    pass->fetch_step = nns_ceil_div(nns_ceil_div(per_tile, blocks * pass->kh * pass->kw), CONV_LINE) * CONV_LINE;
}

static void conv_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t vectors) {
    const conv_int8_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const conv_grid grid = grid_of(p, vectors);
    const int64_t per_output = most_quads(&s, p->groups, &grid.sets) * INT8_QUAD * s.kh * s.kw;
    const bool by_pixels = p->order == 1;
    int8_t *outside = (int8_t *)((int64_t *)scratch + CONV_MOST_PIXELS);
    memset(outside, (int)p->zero, NNS_BLOCK);
    conv_pixels pixels = {.offsets = scratch, .rows = (uint32_t *)(void *)(outside + NNS_BLOCK)};
    pixels.columns = pixels.rows + s.kh;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (grid.panels * grid.chunks), rest = unit % (grid.panels * grid.chunks);
        const int64_t index = by_pixels ? rest % grid.panels : rest / grid.chunks;
        const int64_t chunk = by_pixels ? rest / grid.panels : rest % grid.chunks;
        const int64_t begin = chunk * grid.pixels, end = nns_min_int(s.oh * s.ow, begin + grid.pixels);
        const conv_panel panel = panel_of(&s, p->groups, &grid.sets, index);
        const conv_shape *shape = &shapes[panel.vectors - 1];
        conv_pass pass = pass_of(args, p, image, &panel, per_output, outside);
        const int64_t to_next = by_pixels ? 1 : grid.chunks - chunk; /* units until this thread reads the next panel */
        if (index + 1 < grid.panels && unit + to_next < unit_end && (!by_pixels || chunk == 0)) {
            const conv_panel next = panel_of(&s, p->groups, &grid.sets, index + 1);
            const int64_t tiles = nns_ceil_div(end - begin, shape->pixels);
            plan_fetch(next.vectors * NNS_BLOCK * per_output, by_pixels ? 0 : chunk, by_pixels ? 1 : grid.chunks, tiles,
                       &pass);
        }
        run_chunk(&s, &pass, &pixels, begin, end, shape);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define KERNEL(stem, name, where, pixels, vectors)                         \
    WHERE_##where(NNS_DEFINE_KERNEL(stem, conv_check(args, work, vectors), \
                                    conv_run(args, begin, end, scratch, vectors)))
KERNELS_conv_int8(KERNEL)

NNS_DEFINE_FAMILY(conv_int8);
