/* First layers: a convolution that reads a plain NCHW tensor of few channels and writes a blocked one.
 *
 * reads   x (NCHW), weights, bias or NULL (one float per lane of the output), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory
 * p       as in the manifest
 *
 * Weights lie in panels of VECTORS output vectors: float[channel][kh][kw][VECTORS][block].
 *
 * The input rows of a unit are copied with their padding to scratch. There, neighbouring output pixels read floats that are a
 * fixed step apart. The step is the stride if tiles have code for it. For other strides the columns are sorted by phase (column
 * modulo stride), and the step is 1. */
#include "compute.h"

NNS_DEFINE_READS(conv_planar);

/* Maximum pixels of a tile. */
#define PLANAR_MOST_PIXELS 14

/* Maximum bytes of the packed rows of a unit. */
#define PLANAR_PACKED_BYTES (1 << 26)

/* Arguments shared by the tiles of one output row and one panel. */
typedef struct {
    const float *w, *bias, *residual; /* of the panel; the latter two or NULL, the residual from this row on */
    float *y;                         /* of the panel, from this row on */
    const int64_t *offsets;           /* of each tap from the packed row, in floats */
    int64_t taps, step, y_plane;
    epilogue finish;
} planar_row;

/* Computes `count` pixels of a row from `pixel` on; `x` is the packed row of the first channel and tap. May read the inputs
 * of a whole tile. */
typedef void (*planar_tile)(int64_t count, const planar_row *row, const float *x, int64_t pixel);

/* The scratch: offsets of the taps, then packed rows float[channel][row][phase][column], then padding that a tile may read. */
typedef struct {
    int64_t panels, chunks;
    int64_t rows;    /* input rows per channel that a unit reads */
    int64_t phases, step;
    int64_t columns; /* per phase */
    int64_t taps;
} planar_grid;

static planar_grid grid_of(const kernel_geometry *s, const conv_planar_parameters *p, int64_t vectors) {
    const bool direct = s->sw == 1 || s->sw == 2 || s->sw == 4;
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
    if (!nns_holds(args->in_bytes[READ_X], NNS_FLOAT_BYTES(s.n, s.c, s.h, s.w)))
        return "the planar convolution's input is too small";
    if (!nns_holds(args->in_bytes[READ_WEIGHTS], NNS_FLOAT_BYTES(grid.panels, grid.taps, width)))
        return "the planar convolution's weights are too small";
    if (args->in_bytes[READ_BIAS] && !nns_holds(args->in_bytes[READ_BIAS], NNS_FLOAT_BYTES(grid.panels, width)))
        return "the planar convolution's bias is too small";
    if (args->in_bytes[READ_RESIDUAL] && !nns_holds(args->in_bytes[READ_RESIDUAL], y))
        return "the planar convolution's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the planar convolution's output is too small";
    const int64_t packed = NNS_FLOAT_BYTES(s.c, grid.rows, grid.phases, grid.columns);
    if (packed < 0 || packed > PLANAR_PACKED_BYTES) return "the planar convolution's packed rows are too large";
    work->units = s.n * grid.chunks;
    work->scratch = grid.taps * (int64_t)sizeof(int64_t) + packed;
    work->scratch += PLANAR_MOST_PIXELS * grid.step * (int64_t)sizeof(float);
    return NULL;
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
        for (int64_t i = begin; i < begin + n; i++)
            to[i % grid->phases * grid->columns + i / grid->phases] = row[i - begin];
    }
}

/* Packs the input rows of the output rows from `oh` on; `x` is the image. */
static void pack_rows(const kernel_geometry *s, const planar_grid *grid, const float *x, int64_t oh, int64_t rows, float *to) {
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
}

static void planar_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t tile_pixels,
                       int64_t vectors, planar_tile tile) {
    const conv_planar_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const planar_grid grid = grid_of(&s, p, vectors);
    const int64_t width = vectors * NNS_BLOCK, y_plane = s.oh * s.ow * NNS_BLOCK;
    const float *x = args->in[READ_X], *w = args->in[READ_WEIGHTS], *bias = args->in[READ_BIAS];
    const float *residual = args->in[READ_RESIDUAL];
    float *y = args->out[0], *packed = (float *)((int64_t *)scratch + grid.taps);
    planar_row row = {.offsets = scratch, .taps = grid.taps, .step = grid.step, .y_plane = y_plane};
    row.finish = epilogue_of(&p->activation);
    tap_offsets(&s, &grid, scratch);
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / grid.chunks, first = unit % grid.chunks * p->rows;
        const int64_t last = nns_min_int(s.oh, first + p->rows);
        pack_rows(&s, &grid, x + image * s.c * s.h * s.w, first, (last - 1 - first) * s.sh + (s.kh - 1) * s.dh + 1,
                  packed);
        for (int64_t panel = 0; panel < grid.panels; panel++) {
            row.w = w + panel * grid.taps * width;
            row.bias = bias ? bias + panel * width : NULL;
            for (int64_t oh = first; oh < last; oh++) {
                const int64_t out = (image * grid.panels + panel) * vectors * y_plane + oh * s.ow * NNS_BLOCK;
                row.y = y + out;
                row.residual = residual ? residual + out : NULL;
                const float *from = packed + (oh - first) * s.sh * grid.phases * grid.columns;
                for (int64_t pixel = 0; pixel < s.ow; pixel += tile_pixels)
                    tile(nns_min_int(tile_pixels, s.ow - pixel), &row, from, pixel);
            }
        }
    }
}

#define PIXELS NNS_COLUMN_1
#define VECTORS NNS_COLUMN_2
#define NNS_TEMPLATE "convolution/conv_planar.inc"
#define NNS_ROWS KERNELS_conv_planar
#include "each_kernel.h"

NNS_DEFINE_FAMILY(conv_planar);
