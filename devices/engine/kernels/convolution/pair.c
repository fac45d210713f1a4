/* Fused pairs of convolutions, in bands of rows; the intermediate tensor stays in scratch memory:
 *
 *   expand_depthwise   a pointwise convolution, then a depthwise one
 *   depthwise_project  a depthwise convolution, then a pointwise one
 *
 * reads   x, weights and bias (or NULL) of the first, weights and bias (or NULL) of the second, residual of the second
 *         (like the output) or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest; the geometry is the depthwise convolution's
 *
 * Weights of the pointwise convolution lie in panels of VECTORS output vectors, float[panel][input
 * channel][VECTORS][block]; those of the depthwise one are float[block][kh][kw][lane]. */
#include "by_element.h"
#include "pointwise.h"

/* Both families have these parameters and operands. */
typedef expand_depthwise_parameters pair_parameters;
NNS_DEFINE_READS(expand_depthwise);

/* ---- shared checks ----------------------------------------------------------------------------------------------- */

/* Channels of the input, the intermediate tensor and the output of a pair. */
typedef struct {
    int64_t in, middle, out;
} pair_channels;

/* Checks the parameters and the sizes of the operands, for these channels and `first` and `second` bytes of weights. */
static const char *pair_check(const nns_args *args, const kernel_geometry *s, pair_channels channels, int64_t first,
                              int64_t second) {
    const int64_t out = blocks_of(channels.out), y = NNS_FLOAT_BYTES(s->n, out, NNS_BLOCK, s->oh, s->ow);
    if (s->c != s->o) return "a depthwise convolution must have as many output channels as input channels";
    return NNS_CHECK_SIZES(
        expand_depthwise, args, y, NNS_FLOAT_BYTES(s->n, blocks_of(channels.in), NNS_BLOCK, s->h, s->w), first,
        NNS_FLOAT_BYTES(blocks_of(channels.middle), NNS_BLOCK), second, NNS_FLOAT_BYTES(out, NNS_BLOCK), y);
}

static int64_t depthwise_weight_bytes(const kernel_geometry *s) {
    return NNS_FLOAT_BYTES(blocks_of(s->c), NNS_BLOCK, s->kh, s->kw);
}

static const char *pair_scratch(nns_work *work, int64_t bytes, int64_t note) {
    if (bytes < 0 || bytes > POINTWISE_MAX_SCRATCH) return "the pair's bands are too large";
    work->scratch = bytes + note;
    return NULL;
}

/* ---- register tiles of the pointwise convolution, which stay in registers over all input channels ---------------- */

enum { PAIR_PIXELS = NNS_MOST(expand_depthwise, 1), PAIR_VECTORS = NNS_MOST(expand_depthwise, 2) };
_Static_assert((int)PAIR_PIXELS <= (int)COMPUTE_MOST_COUNT, "COMPUTE_BY_COUNT has no case for a tile of this many pixels");

NNS_INLINE void pair_lane(const int count, const int vectors, nns_vec acc[PAIR_PIXELS][PAIR_VECTORS], const float *x,
                          const float *w) {
    nns_vec weights[PAIR_VECTORS];
    COMPUTE_FOR(v, vectors) weights[v] = nns_load(w + v * NNS_BLOCK);
    COMPUTE_FOR(p, count) {
        const nns_vec input = nns_broadcast(x[p * NNS_BLOCK]);
        COMPUTE_FOR(v, vectors) acc[p][v] += input * weights[v];
        COMPUTE_FOR(v, vectors) COMPUTE_IN_REGISTER(acc[p][v], count * vectors, vectors);
    }
}

NNS_INLINE void pair_store(const int count, const int vectors, nns_vec acc[PAIR_PIXELS][PAIR_VECTORS],
                           const pointwise *job, int64_t pixel) {
    COMPUTE_FOR(v, vectors) {
        float *y = job->y + v * job->y_plane + pixel * NNS_BLOCK;
        if (job->residual) {
            const float *residual = job->residual + v * job->y_plane + pixel * NNS_BLOCK;
            COMPUTE_FOR(p, count) acc[p][v] += nns_load(residual + p * NNS_BLOCK);
        }
        COMPUTE_FOR(p, count) nns_store(y + p * NNS_BLOCK, epilogue_clamp(&job->finish, acc[p][v]));
    }
    if (!job->finish.second_pass) return;
    int64_t at[PAIR_VECTORS];
    COMPUTE_FOR(v, vectors) at[v] = v * job->y_plane;
    epilogue_rows(&job->finish, job->y + pixel * NNS_BLOCK, at, vectors, count * NNS_BLOCK);
}

/* Computes `count` pixels. Prefetches `lines` vectors from `next` on for every full block of input channels. */
NNS_INLINE void pair_tile(const int count, const int pixels, const int vectors, const pointwise *job, int64_t pixel,
                          const float *next, int64_t lines) {
    nns_vec acc[PAIR_PIXELS][PAIR_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_vec bias = job->bias ? nns_load(job->bias + v * NNS_BLOCK) : nns_zero();
        COMPUTE_FOR(p, count) acc[p][v] = bias;
    }
    const float *x = job->x + pixel * NNS_BLOCK, *w = job->w;
    int64_t left = job->channels;
    for (; left >= NNS_BLOCK; left -= NNS_BLOCK, x += job->x_plane) {
        for (int64_t i = 0; i < lines; i++, next += NNS_BLOCK) __builtin_prefetch(next, 0, 2);
#if COMPUTE_BY_ELEMENT
        const element_inputs inputs = {.first = x};
        element_fetch(count, x + pixels * NNS_BLOCK);
        element_block(count, vectors, acc[0], PAIR_VECTORS, &inputs, w);
        w += NNS_BLOCK * vectors * NNS_BLOCK;
        continue;
#endif
        COMPUTE_FOR(p, count) __builtin_prefetch(x + (pixels + p) * NNS_BLOCK);
        COMPUTE_UNROLL_LANES
        for (int64_t lane = 0; lane < NNS_BLOCK; lane++, w += vectors * NNS_BLOCK)
            pair_lane(count, vectors, acc, x + lane, w);
    }
    for (int64_t lane = 0; lane < left; lane++, w += vectors * NNS_BLOCK) pair_lane(count, vectors, acc, x + lane, w);
    pair_store(count, vectors, acc, job, pixel);
}

/* All pixels, in tiles of nearly equal width, up to `most`. */
NNS_INLINE void pair_tiles(const int most, const int vectors, const pointwise *job, int64_t pixels) {
    int64_t tiles = nns_ceil_div(pixels, most);
    const int64_t blocks = job->channels / NNS_BLOCK;
    const int64_t lines = job->next && blocks ? nns_ceil_div(job->channels * vectors, blocks * tiles) : 0;
    const float *next = job->next;
    for (int64_t pixel = 0; tiles; tiles--) {
        const int64_t count = nns_ceil_div(pixels - pixel, tiles);
        COMPUTE_BY_COUNT(count, most, pair_tile, most, vectors, job, pixel, next, lines)
        pixel += count;
        if (next) next += blocks * lines * NNS_BLOCK;
    }
}

/* ---- expand, then depthwise: units are (image, panel, band) ------------------------------------------------------ */

static const char *expand_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (blocks_of(s.c) % vectors) return "the tile's vectors do not divide the intermediate tensor's";
    const char *wrong = pair_check(args, &s, (pair_channels){p->other, s.c, s.c},
                                   NNS_FLOAT_BYTES(blocks_of(s.c), NNS_BLOCK, p->other), depthwise_weight_bytes(&s));
    if (wrong) return wrong;
    work->units = s.n * (blocks_of(s.c) / vectors) * nns_ceil_div(s.oh, p->band);
    return pair_scratch(work, NNS_FLOAT_BYTES(vectors, NNS_BLOCK, ring_rows(&s, p->band), s.w), RING_NOTE_BYTES);
}

static void expand_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t vectors,
                       pointwise_tiles tiles) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t panels = blocks_of(s->c) / vectors, bands = nns_ceil_div(s->oh, p->band);
    const int64_t x_plane = s->h * s->w * NNS_BLOCK, y_plane = s->oh * s->ow * NNS_BLOCK, width = vectors * NNS_BLOCK;
    const int64_t ring = ring_rows(s, p->band), ring_plane = ring * s->w * NNS_BLOCK;
    const float *bias1 = args->in[READ_BIAS1], *bias2 = args->in[READ_BIAS2], *residual = args->in[READ_RESIDUAL];
    float *rows = (float *)((char *)scratch + RING_NOTE_BYTES);
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / (panels * bands), panel = unit / bands % panels;
        const int64_t begin = unit % bands * p->band, end = nns_min_int(s->oh, begin + p->band);
        const float *w = (const float *)args->in[READ_WEIGHTS1] + panel * p->other * width;
        const row_range wanted = rows_read(s, begin, end);
        const row_range missing = ring_missing(scratch, image * panels + panel + 1, wanted);
        const pointwise expand = {
            .x = (const float *)args->in[READ_X] + image * blocks_of(p->other) * x_plane,
            .w = w,
            .next = panel + 1 < panels && missing.begin == wanted.begin ? w + p->other * width : NULL,
            .bias = bias1 ? bias1 + panel * width : NULL,
            .y = rows,
            .x_plane = x_plane,
            .y_plane = ring_plane,
            .channels = p->other,
            .finish = epilogue_of(&p->first_activation),
        };
        ring_fill(&expand, tiles, missing, s->w, ring);
        for (int64_t v = 0; v < vectors; v++) {
            const int64_t block = panel * vectors + v;
            const int64_t out = (image * blocks_of(s->c) + block) * y_plane + begin * s->ow * NNS_BLOCK;
            const depthwise_rows filter = {
                .x = rows + v * ring_plane,
                .w = (const float *)args->in[READ_WEIGHTS2] + block * s->kh * s->kw * NNS_BLOCK,
                .bias = bias2 ? bias2 + block * NNS_BLOCK : NULL,
                .residual = residual ? residual + out : NULL,
                .y = (float *)args->out[0] + out,
                .finish = epilogue_of(&p->activation),
            };
            ring_filter(s, filter, wanted, begin, end, ring);
        }
    }
}

/* ---- depthwise, then project: units are (image, band) ------------------------------------------------------------ */

static const char *project_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (blocks_of(p->other) % vectors) return "the tile's vectors do not divide the output's";
    const char *wrong = pair_check(args, &s, (pair_channels){s.c, s.c, p->other}, depthwise_weight_bytes(&s),
                                   NNS_FLOAT_BYTES(blocks_of(p->other), NNS_BLOCK, s.c));
    if (wrong) return wrong;
    work->units = s.n * nns_ceil_div(s.oh, p->band);
    return pair_scratch(work, NNS_FLOAT_BYTES(blocks_of(s.c), NNS_BLOCK, nns_min_int(s.oh, p->band), s.ow), 0);
}

typedef struct {
    const nns_args *args;
    kernel_geometry s;
    int64_t vectors;
    pointwise_tiles tiles;
} project_job;

/* The depthwise convolution of output rows [begin, end) of an image, for all blocks, into scratch memory. */
static void project_first(const project_job *job, int64_t image, int64_t begin, int64_t end, float *scratch) {
    const kernel_geometry *s = &job->s;
    const pair_parameters *p = (const void *)job->args->p;
    const float *bias = job->args->in[READ_BIAS1];
    depthwise_rows rows = {
        .x = (const float *)job->args->in[READ_X] + image * blocks_of(s->c) * s->h * s->w * NNS_BLOCK,
        .w = job->args->in[READ_WEIGHTS1],
        .y = scratch,
        .begin = begin,
        .end = end,
        .finish = epilogue_of(&p->first_activation),
    };
    for (int64_t block = 0; block < blocks_of(s->c); block++) {
        rows.bias = bias ? bias + block * NNS_BLOCK : NULL;
        nns_depthwise_rows(s, &rows);
        rows.x += s->h * s->w * NNS_BLOCK;
        rows.w += s->kh * s->kw * NNS_BLOCK;
        rows.y += (end - begin) * s->ow * NNS_BLOCK;
    }
}

/* The pointwise convolution of the rows that `project_first` left in scratch memory. */
static void project_second(const project_job *job, int64_t image, int64_t begin, int64_t end, const float *scratch) {
    const pair_parameters *p = (const void *)job->args->p;
    const kernel_geometry *s = &job->s;
    const float *bias = job->args->in[READ_BIAS2], *residual = job->args->in[READ_RESIDUAL];
    const int64_t blocks = blocks_of(p->other), pixels = (end - begin) * s->ow, y_plane = s->oh * s->ow * NNS_BLOCK;
    const int64_t out = image * blocks * y_plane + begin * s->ow * NNS_BLOCK;
    const pointwise project = {
        .x = scratch,
        .w = job->args->in[READ_WEIGHTS2],
        .bias = bias,
        .residual = residual ? residual + out : NULL,
        .y = (float *)job->args->out[0] + out,
        .x_plane = pixels * NNS_BLOCK,
        .y_plane = y_plane,
        .channels = s->c,
        .finish = epilogue_of(&p->activation),
    };
    pointwise_panels(project, blocks, job->vectors, job->tiles, pixels);
}

static void project_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t vectors,
                        pointwise_tiles tiles) {
    const pair_parameters *p = (const void *)args->p;
    const project_job job = {args, p->geometry, vectors, tiles};
    const int64_t bands = nns_ceil_div(job.s.oh, p->band);
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / bands, begin = unit % bands * p->band;
        const int64_t end = nns_min_int(job.s.oh, begin + p->band);
        project_first(&job, image, begin, end, scratch);
        project_second(&job, image, begin, end, scratch);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Kernels of both families use the same tiles. */
#define TILES(stem, name, where, pixels, vectors)                                 \
    WHERE_##where(static void stem##_tiles(const pointwise *job, int64_t count) { \
        pair_tiles(pixels, vectors, job, count);                                  \
    })
KERNELS_expand_depthwise(TILES)

#define TILES_OF(stem, name, where, pixels, vectors) WHERE_##where([vectors] = stem##_tiles,)
const pointwise_tiles nns_pointwise_tiles[] = {KERNELS_expand_depthwise(TILES_OF)};

#define KERNEL(stem, where, vectors, order, tiles)                            \
    WHERE_##where(NNS_DEFINE_KERNEL(stem, order##_check(args, work, vectors), \
                                    order##_run(args, begin, end, scratch, vectors, tiles)))
#define EXPAND(stem, name, where, pixels, vectors) KERNEL(stem, where, vectors, expand, stem##_tiles)
#define PROJECT(stem, name, where, pixels, vectors) KERNEL(stem, where, vectors, project, p##pixels##v##vectors##_tiles)
KERNELS_expand_depthwise(EXPAND)
KERNELS_depthwise_project(PROJECT)

NNS_DEFINE_FAMILY(expand_depthwise);
NNS_DEFINE_FAMILY(depthwise_project);
