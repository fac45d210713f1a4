/* First layers: a convolution that reads a plain NCHW tensor of few channels and writes a blocked one.
 *
 * reads   x (NCHW), weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory
 * p       as in the manifest
 *
 * Weights lie in panels of VECTORS output vectors: float[channel][kh][kw][VECTORS][block].
 *
 * The input rows of a unit are copied with their padding to scratch. There, neighbouring output pixels read floats
 * that are a fixed step apart. The step is the stride if tiles have code for it. For other strides the columns are
 * sorted by phase (column modulo stride), and the step is 1. */
#include "by_element.h"

NNS_DEFINE_READS(conv_planar);

/* Whether tiles have code for a step of 1 only: multiply-adds by element read neighbouring floats. */
#define PLANAR_ONE_STEP COMPUTE_BY_ELEMENT

enum { PLANAR_MOST_PIXELS = NNS_MOST(conv_planar, 1), PLANAR_MOST_VECTORS = NNS_MOST(conv_planar, 2) };

/* Maximum bytes of the packed rows of a unit. */
#define PLANAR_PACKED_BYTES (1 << 26)

/* Floats of a cache line. */
#define PLANAR_LINE 16

/* Arguments shared by the tiles of one output row and one panel. */
typedef struct {
    const float *w, *bias, *residual; /* of the panel; the latter two or NULL, the residual from this row on */
    float *y;                         /* of the panel, from this row on */
    const int64_t *offsets;           /* of each tap from the packed row, in floats, and one more number */
    int64_t taps, step, y_plane;
    epilogue finish;
} planar_row;

/* Computes `count` pixels of a row from `pixel` on; `x` is the packed row of the first channel and tap. May read the
 * inputs of a whole tile. */
typedef void (*planar_pixels)(int64_t count, const planar_row *row, const float *x, int64_t pixel);

#if COMPUTE_BY_ELEMENT
/* Adds all taps to neighbouring pixels; `x` is the first channel and tap of the first one. Finds the inputs of a tap
 * during the tap before. */
NNS_INLINE void planar_taps(const int vectors, const int count,
                            nns_vec acc[PLANAR_MOST_PIXELS][PLANAR_MOST_VECTORS], const planar_row *row,
                            const float *x) {
    const int64_t *offsets = row->offsets, taps = row->taps;
    const float *w = row->w, *inputs = x + offsets[0];
    COMPUTE_UNROLL_NINE /* taps of a 3 × 3 kernel */
    for (int64_t t = 0; t < taps; t++, w += vectors * NNS_BLOCK) {
        const float *next = x + offsets[t + 1];
        __asm__("" : "+r"(next)); /* loaded here, not when it is used */
        element_tap(count, vectors, acc[0], PLANAR_MOST_VECTORS, inputs, w);
        inputs = next;
    }
}
#endif

/* One register tile: computes `count` neighbouring pixels of an output row × `vectors` output vectors, and stores
 * `valid` of the pixels. */
NNS_INLINE void planar_tile(const int step, const int vectors, const int count, const int64_t valid,
                            const planar_row *row, const float *x, int64_t pixel) {
    nns_vec acc[PLANAR_MOST_PIXELS][PLANAR_MOST_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_vec bias = row->bias ? nns_load(row->bias + v * NNS_BLOCK) : nns_zero();
        COMPUTE_FOR(p, count) acc[p][v] = bias;
    }
#if COMPUTE_BY_ELEMENT
    planar_taps(vectors, count, acc, row, x + pixel * step);
#else
    const float *w = row->w;
    for (int64_t t = 0; t < row->taps; t++, w += vectors * NNS_BLOCK) {
        const float *inputs = x + row->offsets[t] + pixel * step;
        nns_vec weights[PLANAR_MOST_VECTORS];
        COMPUTE_FOR(v, vectors) weights[v] = nns_load(w + v * NNS_BLOCK);
        COMPUTE_FOR(p, count) {
            const nns_vec input = nns_broadcast(inputs[p * step]);
            COMPUTE_FOR(v, vectors) acc[p][v] += input * weights[v];
        }
    }
#endif
    COMPUTE_FOR(v, vectors) {
        const int64_t at = v * row->y_plane + pixel * NNS_BLOCK;
        if (row->residual) {
            COMPUTE_FOR(p, count)
                if (p < valid) acc[p][v] += nns_load(row->residual + at + p * NNS_BLOCK);
        }
        if (row->finish.bounded_below) {
            COMPUTE_FOR(p, count) acc[p][v] = epilogue_max(nns_broadcast(row->finish.low), acc[p][v]);
        }
        if (row->finish.bounded_above) {
            COMPUTE_FOR(p, count) acc[p][v] = epilogue_min(nns_broadcast(row->finish.high), acc[p][v]);
        }
        COMPUTE_FOR(p, count)
            if (p < valid) nns_store(row->y + at + p * NNS_BLOCK, acc[p][v]);
        if (row->finish.second_pass) epilogue_second_pass(&row->finish, row->y + at, valid * NNS_BLOCK);
    }
}

/* Computes up to `pixels` pixels. */
NNS_INLINE void planar_step(const int step, const int pixels, const int vectors, int64_t count, const planar_row *row,
                            const float *x, int64_t pixel) {
    const int half = (pixels + 1) / 2, quarter = (pixels + 3) / 4;
    if (count == pixels)
        planar_tile(step, vectors, pixels, pixels, row, x, pixel);
    else if (count <= quarter)
        planar_tile(step, vectors, quarter, count, row, x, pixel);
    else if (count <= half)
        planar_tile(step, vectors, half, count, row, x, pixel);
    else
        planar_tile(step, vectors, pixels, count, row, x, pixel);
}

NNS_INLINE void planar_any_step(const int pixels, const int vectors, int64_t count, const planar_row *row,
                                const float *x, int64_t pixel) {
#if PLANAR_ONE_STEP
    planar_step(1, pixels, vectors, count, row, x, pixel);
#else
    switch (row->step) {
    case 4: planar_step(4, pixels, vectors, count, row, x, pixel); break;
    case 2: planar_step(2, pixels, vectors, count, row, x, pixel); break;
    default: planar_step(1, pixels, vectors, count, row, x, pixel);
    }
#endif
}

/* The scratch: offsets of the taps, then packed rows float[channel][row][phase][column], then padding that a tile may
 * read. */
typedef struct {
    int64_t panels, chunks;
    int64_t rows;    /* input rows per channel that a unit reads */
    int64_t phases, step;
    int64_t columns; /* per phase */
    int64_t taps;
} planar_grid;

static planar_grid grid_of(const kernel_geometry *s, const conv_planar_parameters *p, int64_t vectors) {
    const bool direct = s->sw == 1 || (!PLANAR_ONE_STEP && (s->sw == 2 || s->sw == 4));
    const int64_t phases = direct ? 1 : s->sw, step = direct ? s->sw : 1;
    return (planar_grid){
        .panels = blocks_of(s->o) / vectors,
        .chunks = nns_ceil_div(s->oh, p->rows),
        .rows = (nns_min_int(p->rows, s->oh) - 1) * s->sh + (s->kh - 1) * s->dh + 1,
        .phases = phases,
        .step = step,
        .columns = (s->ow - 1) * step + 1 + (s->kw - 1) * s->dw / phases,
        .taps = s->c * s->kh * s->kw,
    };
}

static const char *planar_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const conv_planar_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (blocks_of(s.o) % vectors) return "the tile's vectors do not divide the output's";
    const planar_grid grid = grid_of(&s, p, vectors);
    const int64_t width = vectors * NNS_BLOCK, y = NNS_FLOAT_BYTES(s.n, grid.panels, width, s.oh, s.ow);
    const char *wrong =
        NNS_CHECK_SIZES(conv_planar, args, y, NNS_FLOAT_BYTES(s.n, s.c, s.h, s.w),
                        NNS_FLOAT_BYTES(grid.panels, grid.taps, width), NNS_FLOAT_BYTES(grid.panels, width), y);
    if (wrong) return wrong;
    const int64_t packed = NNS_FLOAT_BYTES(s.c, grid.rows, grid.phases, grid.columns);
    if (packed < 0 || packed > PLANAR_PACKED_BYTES) return "the packed rows are too large";
    work->units = s.n * grid.chunks;
    work->scratch = (grid.taps + COMPUTE_BY_ELEMENT) * (int64_t)sizeof(int64_t) + packed;
    work->scratch += PLANAR_MOST_PIXELS * grid.step * (int64_t)sizeof(float);
    return NULL;
}

/* Copies `n` columns of a row to the columns from `begin` on, sorted by phase. */
static void pack_phases(const planar_grid *grid, const float *row, int64_t begin, int64_t n, float *to) {
#if PLANAR_ONE_STEP
    for (int64_t phase = 0; phase < grid->phases; phase++, to += grid->columns) {
        const int64_t first = nns_ceil_div(nns_max_int(0, begin - phase), grid->phases);
        const float *from = row + phase - begin;
        for (int64_t i = first; i * grid->phases + phase < begin + n; i++) to[i] = from[i * grid->phases];
    }
#else
    for (int64_t i = begin; i < begin + n; i++) to[i % grid->phases * grid->columns + i / grid->phases] = row[i - begin];
#endif
}

/* Copies a row with its padding, with columns sorted by phase. */
static void pack_row(const kernel_geometry *s, const planar_grid *grid, const float *row, float *to) {
    const int64_t width = grid->phases * grid->columns, n = nns_min_int(s->w, nns_max_int(0, width - s->pl));
    const int64_t begin = nns_min_int(s->pl, width);
    if (grid->phases == 1) {
        for (int64_t i = 0; i < begin; i++) to[i] = 0;
        memcpy(to + begin, row, (size_t)n * sizeof(float));
        for (int64_t i = begin + n; i < width; i++) to[i] = 0;
    } else {
        memset(to, 0, (size_t)width * sizeof(float));
        pack_phases(grid, row, begin, n, to);
    }
}

/* Packs the input rows of the output rows from `oh` on; `x` is the image. */
static void pack_rows(const kernel_geometry *s, const planar_grid *grid, const float *x, int64_t oh, int64_t rows,
                      float *to) {
    for (int64_t c = 0; c < s->c; c++) {
        for (int64_t i = 0; i < rows; i++) {
            const int64_t h = oh * s->sh - s->pt + i;
            float *packed = to + (c * grid->rows + i) * grid->phases * grid->columns;
            if (h < 0 || h >= s->h)
                memset(packed, 0, (size_t)(grid->phases * grid->columns) * sizeof(float));
            else
                pack_row(s, grid, x + (c * s->h + h) * s->w, packed);
        }
    }
}

static void tap_offsets(const kernel_geometry *s, const planar_grid *grid, int64_t *offsets) {
    for (int64_t c = 0; c < s->c; c++)
        for (int64_t i = 0; i < s->kh; i++)
            for (int64_t j = 0; j < s->kw; j++) {
                const int64_t column = j * s->dw;
                *offsets++ = ((c * grid->rows + i * s->dh) * grid->phases + column % grid->phases) * grid->columns +
                             column / grid->phases;
            }
    if (COMPUTE_BY_ELEMENT) *offsets = 0;
}

/* Lines of the image that a later unit reads, prefetched to the second-level cache while tiles are computed: after a run of
 * a network the image is in no cache. */
typedef struct {
    const float *x;                 /* the first of the rows in the first channel */
    int64_t plane, lines, of_plane; /* floats between channels; lines of all channels, and of each */
    int64_t step, next;             /* lines per tile; the next one */
} planar_fetch;

/* Prefetches what the output rows [begin, end) read and earlier ones do not, during `tiles` tiles. */
static planar_fetch fetch_of(const kernel_geometry *s, const float *x, int64_t begin, int64_t end, int64_t tiles) {
    const int64_t overlap = nns_max_int(0, (s->kh - 1) * s->dh + 1 - s->sh);
    const int64_t first = nns_max_int(0, begin * s->sh - s->pt + overlap);
    const int64_t last = nns_min_int(s->h, (end - 1) * s->sh - s->pt + (s->kh - 1) * s->dh + 1);
    const int64_t of_plane = begin < end && first < last ? nns_ceil_div((last - first) * s->w, PLANAR_LINE) : 0;
    return (planar_fetch){.x = x + first * s->w,
                          .plane = s->h * s->w,
                          .lines = s->c * of_plane,
                          .of_plane = of_plane,
                          .step = nns_ceil_div(s->c * of_plane, tiles)};
}

NNS_INLINE void fetch_some(planar_fetch *fetch) {
    const int64_t end = nns_min_int(fetch->lines, fetch->next + fetch->step);
    for (; fetch->next < end; fetch->next++) {
        const int64_t channel = fetch->next / fetch->of_plane, line = fetch->next % fetch->of_plane;
        __builtin_prefetch(fetch->x + channel * fetch->plane + line * PLANAR_LINE, 0, 2);
    }
}

static void planar_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t tile_pixels,
                       int64_t vectors, planar_pixels tile) {
    const conv_planar_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const planar_grid grid = grid_of(&s, p, vectors);
    const int64_t width = vectors * NNS_BLOCK, y_plane = s.oh * s.ow * NNS_BLOCK;
    const float *x = args->in[READ_X], *w = args->in[READ_WEIGHTS], *bias = args->in[READ_BIAS];
    const float *residual = args->in[READ_RESIDUAL];
    float *y = args->out[0], *packed = (float *)((int64_t *)scratch + grid.taps + COMPUTE_BY_ELEMENT);
    planar_row row = {.offsets = scratch, .taps = grid.taps, .step = grid.step, .y_plane = y_plane};
    row.finish = epilogue_of(&p->activation);
    tap_offsets(&s, &grid, scratch);
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / grid.chunks, first = unit % grid.chunks * p->rows;
        const int64_t last = nns_min_int(s.oh, first + p->rows);
        const float *plane = x + image * s.c * s.h * s.w;
        pack_rows(&s, &grid, plane, first, (last - 1 - first) * s.sh + (s.kh - 1) * s.dh + 1, packed);
        planar_fetch fetch = fetch_of(&s, plane, last, nns_min_int(s.oh, last + p->rows),
                                      grid.panels * (last - first) * nns_ceil_div(s.ow, tile_pixels));
        for (int64_t panel = 0; panel < grid.panels; panel++) {
            row.w = w + panel * grid.taps * width;
            row.bias = bias ? bias + panel * width : NULL;
            for (int64_t oh = first; oh < last; oh++) {
                const int64_t out = (image * grid.panels + panel) * vectors * y_plane + oh * s.ow * NNS_BLOCK;
                row.y = y + out;
                row.residual = residual ? residual + out : NULL;
                const float *from = packed + (oh - first) * s.sh * grid.phases * grid.columns;
                for (int64_t pixel = 0; pixel < s.ow; pixel += tile_pixels) {
                    fetch_some(&fetch);
                    tile(nns_min_int(tile_pixels, s.ow - pixel), &row, from, pixel);
                }
            }
        }
    }
}

#define KERNEL(stem, name, where, pixels, vectors)                                                               \
    WHERE_##where(static void stem##_tile(int64_t count, const planar_row *row, const float *x, int64_t pixel) { \
        planar_any_step(pixels, vectors, count, row, x, pixel);                                                  \
    } NNS_DEFINE_KERNEL(stem, planar_check(args, work, vectors),                                                 \
                        planar_run(args, begin, end, scratch, pixels, vectors, stem##_tile)))
KERNELS_conv_planar(KERNEL)

NNS_DEFINE_FAMILY(conv_planar);
