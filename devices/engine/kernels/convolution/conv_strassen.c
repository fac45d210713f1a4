/* 1 × 1 convolutions of blocked tensors, and dense layers of plain matrices, by one step of Strassen's algorithm, in
 * Winograd's form with seven products instead of eight, on tiles that stay in the near caches.
 *
 * reads   x, weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest; with strides, `ow` is the length of an output row. The pixels read are copied first then, and
 *         those of a dense layer, whose pixels are rows of the matrices
 *
 * Input channels are two halves of `half` full blocks each, then the rest. Output vectors are `pairs` panels of
 * VECTORS vectors in each half, then single vectors. Weights of a pair are float[channel][VECTORS][block] for X11,
 * X12, the rest (first half of outputs); S2, S3, X22, the rest again; S1, S4, the rest (second half of outputs). A
 * single vector's are float[channel][block].
 *
 * Pixels, input channels and output channels are each divided in two, so X and W have 2 × 2 quarters each. Their
 * product takes seven products of quarters instead of eight. In Winograd's form, with prepared sums of weights,
 *
 *     S1 = X21 + X22    S2 = S1 - X11    S3 = X11 - X21    S4 = X12 - S2
 *     P1 = X11·W11      P2 = X12·W21     P3 = S4·W22       P4 = X22·(W11 - W12 + W22 - W21)
 *     P5 = S1·(W12 - W11)                P6 = S2·(W11 - W12 + W22)                P7 = S3·(W22 - W12)
 *     Y11 = P1 + P2     U2 = P1 + P6     U3 = U2 + P7
 *     Y12 = U2 + P5 + P3                 Y21 = U3 - P4     Y22 = U3 + P5
 *
 * A sum of products costs nothing if one product accumulates in the registers of another. */
#include "by_element.h"

/* Floats at the front of the scratch for the number of the group of tiles whose sums the scratch holds (0: none). */
enum { STRASSEN_NOTE = 64 / sizeof(float) };

NNS_DEFINE_READS(conv_strassen);

enum { STRASSEN_PIXELS = NNS_MOST(conv_strassen, 1), STRASSEN_VECTORS = NNS_MOST(conv_strassen, 2) };
_Static_assert((int)STRASSEN_PIXELS <= (int)COMPUTE_MOST_EACH, "no function for a tile of this many pixels");

/* A matrix of pixels × channels: the first pixel in the first block, and floats between blocks. */
typedef struct {
    const float *at;
    int64_t plane;
} strassen_operand;

/* Two ranges of `count` pixels, whose channels are two halves and a rest. The ranges may overlap. */
typedef struct {
    strassen_operand upper[2], lower[2]; /* both halves of the channels, of the first and second pixel range */
    strassen_operand sums[4];            /* S1 … S4 */
    strassen_operand rest[2];            /* the remaining channels of both pixel ranges */
    int64_t count, repeated;             /* pixels of a range; pixels in both ranges */
    int64_t half_blocks, rest_lanes;
} strassen_pixels;

/* Destinations: `to[i][j]` belongs to pixel range i and half j of the output channels. */
typedef struct {
    float *to[2][2];
    const float *residual[2][2], *bias[2]; /* or NULL */
    int64_t y_plane, y_step; /* floats between output vectors, and between pixels */
    epilogue finish;
    float *saved; /* 4 tiles */
} strassen_results;

/* ---- register tiles ---------------------------------------------------------------------------------------------- */

/* acc += x · w over `lanes` channels; returns the address after its weights. */
NNS_INLINE const float *strassen_lanes(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS],
                                       const float *x, int64_t lanes, const float *w) {
    COMPUTE_UNROLL_LANES
    for (int64_t lane = 0; lane < lanes; lane++, w += vectors * NNS_BLOCK) {
        nns_vec weights[STRASSEN_VECTORS];
        COMPUTE_FOR(v, vectors) weights[v] = nns_load(w + v * NNS_BLOCK);
        COMPUTE_FOR(v, vectors) __builtin_prefetch(w + (16 * vectors + v) * NNS_BLOCK);
        COMPUTE_FOR(p, count) {
            const nns_vec input = nns_broadcast(x[p * NNS_BLOCK + lane]);
            COMPUTE_FOR(v, vectors) acc[p][v] += input * weights[v];
            COMPUTE_FOR(v, vectors) COMPUTE_IN_REGISTER(acc[p][v], count * vectors, vectors);
        }
    }
    return w;
}

NNS_INLINE const float *strassen_product(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS],
                                        strassen_operand x, int64_t blocks, const float *w) {
#if COMPUTE_BY_ELEMENT
    for (int64_t block = 0; block < blocks; block++, w += NNS_BLOCK * vectors * NNS_BLOCK, x.at += x.plane) {
        const element_inputs inputs = {.first = x.at};
        element_block(count, vectors, acc[0], STRASSEN_VECTORS, &inputs, w);
    }
#else
    for (int64_t block = 0; block < blocks; block++)
        w = strassen_lanes(count, vectors, acc, x.at + block * x.plane, NNS_BLOCK, w);
#endif
    return w;
}

NNS_INLINE const float *strassen_rest(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS],
                                     strassen_operand x, int64_t lanes, const float *w) {
    for (; lanes > 0; lanes -= NNS_BLOCK, x.at += x.plane)
        w = strassen_lanes(count, vectors, acc, x.at, nns_min_int(lanes, NNS_BLOCK), w);
    return w;
}

NNS_INLINE void strassen_clear(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS]) {
    COMPUTE_FOR(p, count) COMPUTE_FOR(v, vectors) acc[p][v] = nns_zero();
}

NNS_INLINE void strassen_save(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS], float *to) {
    COMPUTE_FOR(p, count) COMPUTE_FOR(v, vectors) nns_store(to + (p * vectors + v) * NNS_BLOCK, acc[p][v]);
}

NNS_INLINE void strassen_load(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS], const float *from) {
    COMPUTE_FOR(p, count) COMPUTE_FOR(v, vectors) acc[p][v] = nns_load(from + (p * vectors + v) * NNS_BLOCK);
}

NNS_INLINE void strassen_add(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS], const float *from) {
    COMPUTE_FOR(p, count) COMPUTE_FOR(v, vectors) acc[p][v] += nns_load(from + (p * vectors + v) * NNS_BLOCK);
}

/* The second pass of the epilogue over `runs` runs of `n` floats that are `apart` floats apart. */
NNS_INLINE void strassen_second_pass(const strassen_results *r, float *y, int64_t runs, int64_t apart, int64_t n) {
    int64_t at[STRASSEN_PIXELS > STRASSEN_VECTORS ? STRASSEN_PIXELS : STRASSEN_VECTORS];
    for (int64_t run = 0; run < runs; run++) at[run] = run * apart;
    epilogue_rows(&r->finish, y, at, runs, n);
}

/* Applies the epilogue and writes the results, except the first `skip` pixels, which belong to the other range. */
NNS_INLINE void strassen_finish(const int count, const int vectors, nns_vec (*acc)[STRASSEN_VECTORS],
                               const strassen_results *r, int range, int half, int64_t skip) {
    COMPUTE_FOR(v, vectors) {
        float *y = r->to[range][half] + v * r->y_plane;
        const float *residual = r->residual[range][half] ? r->residual[range][half] + v * r->y_plane : NULL;
        const nns_vec bias = r->bias[half] ? nns_load(r->bias[half] + v * NNS_BLOCK) : nns_zero();
        COMPUTE_FOR(p, count) acc[p][v] += bias;
        COMPUTE_FOR(p, count) {
            if (p < skip) continue;
            const nns_vec sum = residual ? acc[p][v] + nns_load(residual + p * r->y_step) : acc[p][v];
            nns_store(y + p * r->y_step, epilogue_clamp(&r->finish, sum));
        }
    }
    if (!r->finish.second_pass) return;
    float *first = r->to[range][half] + skip * r->y_step;
    if (r->y_step == NNS_BLOCK)
        strassen_second_pass(r, first, vectors, r->y_plane, (count - skip) * NNS_BLOCK);
    else
        strassen_second_pass(r, first, count - skip, r->y_step, vectors * NNS_BLOCK);
}

/* All four products of a pair of panels, whose weights are at `w`. */
NNS_INLINE void strassen_pair(const int count, const int pixels, const int vectors, const strassen_pixels *x,
                              const strassen_results *r, const float *w) {
    const int64_t blocks = x->half_blocks, tile = pixels * vectors * NNS_BLOCK;
    float *p1 = r->saved, *u2 = p1 + tile, *u3 = u2 + tile, *p5 = u3 + tile;
    nns_vec acc[STRASSEN_PIXELS][STRASSEN_VECTORS];
    strassen_clear(count, vectors, acc);
    w = strassen_product(count, vectors, acc, x->upper[0], blocks, w);
    strassen_save(count, vectors, acc, p1);
    w = strassen_product(count, vectors, acc, x->upper[1], blocks, w);
    w = strassen_rest(count, vectors, acc, x->rest[0], x->rest_lanes, w);
    strassen_finish(count, vectors, acc, r, 0, 0, 0);

    strassen_load(count, vectors, acc, p1);
    w = strassen_product(count, vectors, acc, x->sums[1], blocks, w);
    strassen_save(count, vectors, acc, u2);
    w = strassen_product(count, vectors, acc, x->sums[2], blocks, w);
    strassen_save(count, vectors, acc, u3);
    w = strassen_product(count, vectors, acc, x->lower[1], blocks, w);
    w = strassen_rest(count, vectors, acc, x->rest[1], x->rest_lanes, w);
    strassen_finish(count, vectors, acc, r, 1, 0, x->repeated);

    strassen_clear(count, vectors, acc);
    w = strassen_product(count, vectors, acc, x->sums[0], blocks, w);
    strassen_save(count, vectors, acc, p5);
    strassen_add(count, vectors, acc, u2);
    w = strassen_product(count, vectors, acc, x->sums[3], blocks, w);
    const float *rest = w;
    w = strassen_rest(count, vectors, acc, x->rest[0], x->rest_lanes, w);
    strassen_finish(count, vectors, acc, r, 0, 1, 0);

    strassen_load(count, vectors, acc, p5);
    strassen_add(count, vectors, acc, u3);
    strassen_rest(count, vectors, acc, x->rest[1], x->rest_lanes, rest);
    strassen_finish(count, vectors, acc, r, 1, 1, x->repeated);
}

/* The plain product with one output vector, whose weights are at `w`: to[.][0]. */
NNS_INLINE void strassen_single(const int count, const strassen_pixels *x, const strassen_results *r, const float *w) {
    COMPUTE_FOR(range, 2) {
        const strassen_operand *halves = range ? x->lower : x->upper;
        nns_vec acc[STRASSEN_PIXELS][STRASSEN_VECTORS];
        strassen_clear(count, 1, acc);
        const float *next = strassen_product(count, 1, acc, halves[0], x->half_blocks, w);
        next = strassen_product(count, 1, acc, halves[1], x->half_blocks, next);
        strassen_rest(count, 1, acc, x->rest[range], x->rest_lanes, next);
        strassen_finish(count, 1, acc, r, range, 0, range ? x->repeated : 0);
    }
}

/* Fills `sums` for the pixels. */
NNS_INLINE void strassen_encode(const int pixels, const strassen_pixels *x, float *sums) {
    const int64_t plane = pixels * NNS_BLOCK, size = x->half_blocks * plane;
    for (int64_t block = 0; block < x->half_blocks; block++) {
        const float *x11 = x->upper[0].at + block * x->upper[0].plane;
        const float *x12 = x->upper[1].at + block * x->upper[1].plane;
        const float *x21 = x->lower[0].at + block * x->lower[0].plane;
        const float *x22 = x->lower[1].at + block * x->lower[1].plane;
        float *to = sums + block * plane;
        for (int64_t i = 0; i < x->count * NNS_BLOCK; i += NNS_BLOCK) {
            const nns_vec a11 = nns_load(x11 + i), a21 = nns_load(x21 + i);
            const nns_vec s1 = a21 + nns_load(x22 + i), s2 = s1 - a11;
            nns_store(to + i, s1);
            nns_store(to + size + i, s2);
            nns_store(to + 2 * size + i, a11 - a21);
            nns_store(to + 3 * size + i, nns_load(x12 + i) - s2);
        }
    }
}

typedef void compute_panel(const strassen_pixels *pixels, const strassen_results *results, const float *w);

/* The tiles of one kernel. */
typedef struct {
    compute_panel *pair[COMPUTE_MOST_EACH], *single[COMPUTE_MOST_EACH]; /* [n - 1]: for n pixels */
    void (*encode)(const strassen_pixels *pixels, float *sums);
} strassen_tile;

/* ---- units: (image, group of tiles, chunk of panels) ------------------------------------------------------------- */

typedef struct {
    int64_t half, rest;              /* blocks of a half; channels in no half */
    int64_t pairs, singles, panels;  /* panels: both together */
    int64_t tiles, groups, chunks;   /* tiles of pixels; groups of tiles; chunks of panels */
    int64_t copied, memory;          /* floats of the scratch of a tile: of its copied pixels; in all */
} strassen_grid;

static strassen_grid grid_of(const conv_strassen_parameters *p, int64_t pixels, int64_t vectors) {
    strassen_grid g;
    g.half = p->c / NNS_BLOCK / 2;
    g.rest = p->c - 2 * g.half * NNS_BLOCK;
    g.pairs = blocks_of(p->o) / (2 * vectors);
    g.singles = blocks_of(p->o) - 2 * vectors * g.pairs;
    g.panels = g.pairs + g.singles;
    g.tiles = nns_max_int(p->divisions, nns_ceil_div(p->pixels, 2 * pixels));
    g.groups = nns_ceil_div(g.tiles, p->tiles);
    g.chunks = nns_ceil_div(g.panels, p->panels);
    g.copied = p->ow || p->rows ? blocks_of(p->c) * 2 * pixels * NNS_BLOCK : 0;
    g.memory = g.copied + 4 * g.half * pixels * NNS_BLOCK;
    return g;
}

/* Floats of a pair's weights. */
static int64_t pair_size(const strassen_grid *g, int64_t vectors) {
    return (7 * g->half * NNS_BLOCK + 3 * g->rest) * vectors * NNS_BLOCK;
}

/* Floats of an image of the input. */
static int64_t input_size(const conv_strassen_parameters *p) {
    if (p->rows) return NNS_PRODUCT(p->pixels, p->c);
    return NNS_PRODUCT(blocks_of(p->c), NNS_BLOCK, p->ow ? NNS_PRODUCT(p->h, p->w) : p->pixels);
}

static const char *strassen_check(const nns_args *args, nns_work *work, int64_t pixels, int64_t vectors) {
    const conv_strassen_parameters *p = (const void *)args->p;
    const strassen_grid g = grid_of(p, pixels, vectors);
    const int64_t n = p->n, y = NNS_FLOAT_BYTES(n, blocks_of(p->o), NNS_BLOCK, p->pixels);
    if (p->divisions > nns_ceil_div(p->pixels, 2)) return "there are more tiles than pairs of pixels";
    if (p->ow && ((nns_ceil_div(p->pixels, p->ow) - 1) * p->sh >= p->h || (p->ow - 1) * p->sw >= p->w))
        return "strides lead out of the image";
    if (p->rows && (p->n > 1 || p->ow || p->o % NNS_BLOCK)) return "rows have neither images nor strides nor parts of blocks";
    const int64_t weights = g.pairs * pair_size(&g, vectors) + g.singles * p->c * NNS_BLOCK;
    const char *wrong =
        NNS_CHECK_SIZES(conv_strassen, args, y, NNS_FLOAT_BYTES(n, input_size(p)),
                        NNS_FLOAT_BYTES(weights), NNS_FLOAT_BYTES(blocks_of(p->o), NNS_BLOCK), y);
    if (wrong) return wrong;
    const int64_t tiles = nns_min_int(p->tiles, g.tiles);
    const int64_t saved = STRASSEN_NOTE + 4 * pixels * vectors * NNS_BLOCK;
    work->units = n * g.groups * g.chunks;
    work->scratch = NNS_FLOAT_BYTES(tiles, g.memory);
    if (work->scratch < 0 || work->scratch > INT64_MAX / 2) return "Strassen's convolution needs too much scratch";
    work->scratch += saved * (int64_t)sizeof(float);
    return NULL;
}

/* First pixel of tile `index`; tile sizes are nearly equal, and even, so that no pixel is in both ranges, but for an odd last
 * one. */
static int64_t tile_begin(const strassen_grid *g, int64_t total, int64_t index) {
    return nns_min_int(total, index * nns_ceil_div(total, 2) / g->tiles * 2);
}

/* The pixels of tile `index` of the image `x`. `memory` holds the copied pixels, if any, and the sums. */
static strassen_pixels pixels_of(const strassen_grid *g, const float *x, int64_t total, int64_t index, int64_t stride,
                                 const float *memory, int64_t *first) {
    const int64_t begin = tile_begin(g, total, index), end = tile_begin(g, total, index + 1);
    const int64_t count = nns_ceil_div(end - begin, 2), plane = g->copied ? 2 * stride : total * NNS_BLOCK;
    strassen_pixels pixels = {.count = count, .half_blocks = g->half, .rest_lanes = g->rest};
    pixels.repeated = 2 * count - (end - begin);
    for (int range = 0; range < 2; range++) {
        first[range] = range ? end - count : begin;
        const float *at = g->copied ? memory + (first[range] - begin) * NNS_BLOCK : x + first[range] * NNS_BLOCK;
        strassen_operand *halves = range ? pixels.lower : pixels.upper;
        halves[0] = (strassen_operand){at, plane};
        halves[1] = (strassen_operand){at + g->half * plane, plane};
        pixels.rest[range] = (strassen_operand){at + 2 * g->half * plane, plane};
    }
    for (int i = 0; i < 4; i++)
        pixels.sums[i] = (strassen_operand){memory + g->copied + i * g->half * stride, stride};
    return pixels;
}

/* Copies the pixels `begin` to `end` of the output's grid from the image `x`, whose strides lie between them; the planes of `to`
 * are `plane` floats apart. */
static void copy_pixels(const conv_strassen_parameters *p, const float *x, int64_t begin, int64_t end, float *to,
                        int64_t plane) {
    for (int64_t block = 0; block < blocks_of(p->c); block++, x += p->h * p->w * NNS_BLOCK, to += plane) {
        int64_t row = begin / p->ow, column = begin % p->ow;
        for (int64_t pixel = begin; pixel < end; pixel++) {
            nns_store(to + (pixel - begin) * NNS_BLOCK, nns_load(x + (row * p->sh * p->w + column * p->sw) * NNS_BLOCK));
            if (++column == p->ow) row++, column = 0;
        }
    }
}

/* Copies the rows `begin` to `end` of the matrix `x` to planes of blocks, which are `plane` floats apart. */
static void copy_rows(const conv_strassen_parameters *p, const float *x, int64_t begin, int64_t end, float *to,
                      int64_t plane) {
    for (const float *row = x + begin * p->c; begin < end; begin++, row += p->c, to += NNS_BLOCK) {
        int64_t c = 0;
        for (; c + NNS_BLOCK <= p->c; c += NNS_BLOCK) nns_store(to + c / NNS_BLOCK * plane, nns_load(row + c));
        if (c < p->c) nns_store(to + c / NNS_BLOCK * plane, nns_load_some(row + c, p->c - c, 0));
    }
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
            const int64_t at = vector * results->y_plane + first[range] * results->y_step;
            results->to[range][half] = y + at;
            results->residual[range][half] = residual ? residual + at : NULL;
        }
    }
    const int64_t of_single = (2 * g->half * NNS_BLOCK + g->rest) * NNS_BLOCK;
    if (paired)
        tile->pair[pixels->count - 1](pixels, results, w + panel * size);
    else
        tile->single[pixels->count - 1](pixels, results, w + g->pairs * size + single * of_single);
}

static void strassen_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t tile_pixels,
                         int64_t vectors, const strassen_tile *tile) {
    const conv_strassen_parameters *p = (const void *)args->p;
    const int64_t total = p->pixels;
    const strassen_grid g = grid_of(p, tile_pixels, vectors);
    const int64_t x_image = input_size(p), stride = tile_pixels * NNS_BLOCK;
    const int64_t y_image = blocks_of(p->o) * total * NNS_BLOCK;
    const float *x = args->in[READ_X], *residual = args->in[READ_RESIDUAL];
    strassen_results results = {.y_plane = total * NNS_BLOCK, .y_step = NNS_BLOCK};
    if (p->rows) results.y_plane = NNS_BLOCK, results.y_step = p->o;
    results.finish = epilogue_of(&p->activation);
    int64_t *encoded = scratch;
    results.saved = (float *)scratch + STRASSEN_NOTE;
    float *memory = results.saved + 4 * tile_pixels * vectors * NNS_BLOCK;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (g.groups * g.chunks), group = unit / g.chunks % g.groups, chunk = unit % g.chunks;
        const int64_t from = group * g.tiles / g.groups, to = (group + 1) * g.tiles / g.groups;
        const int64_t panel_begin = chunk * p->panels;
        const int64_t panel_end = nns_min_int(g.panels, panel_begin + p->panels);
        const int64_t number = image * g.groups + group + 1;
        for (int64_t panel = panel_begin; panel < panel_end; panel++) {
            for (int64_t t = from; t < to; t++) {
                float *mine = memory + (t - from) * g.memory;
                int64_t first[2];
                const strassen_pixels pixels = pixels_of(&g, x + image * x_image, total, t, stride, mine, first);
                if (*encoded != number) {
                    const int64_t end = first[1] + pixels.count;
                    if (p->ow) copy_pixels(p, x + image * x_image, first[0], end, mine, 2 * stride);
                    if (p->rows) copy_rows(p, x, first[0], end, mine, 2 * stride);
                    tile->encode(&pixels, mine + g.copied);
                }
                run_panel(&g, &pixels, first, panel, vectors, &results, (float *)args->out[0] + image * y_image,
                          args->in[READ_BIAS], residual ? residual + image * y_image : NULL, args->in[READ_WEIGHTS],
                          tile);
            }
            *encoded = number;
        }
    }
}

#define PAIR(n, stem, pixels, vectors)                                                                                 \
    static __attribute__((noinline)) void stem##_pair_##n(const strassen_pixels *x, const strassen_results *results,   \
                                                          const float *w) {                                            \
        if (n <= pixels) strassen_pair(n <= pixels ? n : 1, pixels, vectors, x, results, w);                           \
    }
#define PAIR_NAME(n, stem) stem##_pair_##n,
#define SINGLE(n, stem, pixels)                                                                                        \
    static __attribute__((noinline)) void stem##_single_##n(const strassen_pixels *x, const strassen_results *results, \
                                                            const float *w) {                                          \
        if (n <= pixels) strassen_single(n <= pixels ? n : 1, x, results, w);                                          \
    }
#define SINGLE_NAME(n, stem) stem##_single_##n,
#define KERNEL(stem, name, where, pixels, vectors)                                                                     \
    WHERE_##where(COMPUTE_EACH_COUNT(PAIR, stem, pixels, vectors) COMPUTE_EACH_COUNT(SINGLE, stem, pixels)             \
    static void stem##_encode(const strassen_pixels *x, float *sums) { strassen_encode(pixels, x, sums); }             \
    static const strassen_tile stem##_tile = {                                                                         \
        {COMPUTE_EACH_COUNT(PAIR_NAME, stem)}, {COMPUTE_EACH_COUNT(SINGLE_NAME, stem)}, stem##_encode};                \
    NNS_DEFINE_KERNEL(stem, strassen_check(args, work, pixels, vectors),                                               \
                      strassen_run(args, begin, end, scratch, pixels, vectors, &stem##_tile)))
KERNELS_conv_strassen(KERNEL)

NNS_DEFINE_FAMILY(conv_strassen);
