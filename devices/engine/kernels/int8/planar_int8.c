/* First layers of int8: a convolution that reads a plain NCHW tensor of few channels and writes a blocked one.
 *
 * reads   x (NCHW), weights, bias (int32[2][lanes of the output], as int8_bias says), multipliers (a float per lane: of
 *         a sum, in steps of the output's scale), residual like the output or NULL
 * writes  y (blocked), which may be the residual's memory; or float32 (p->result)
 * p       as in the manifest
 *
 * The bias of a lane has the zero point of x times all its weights subtracted. Taps outside the input read the zero
 * point.
 *
 * The input rows of a unit are copied with their padding to scratch, the channels of a column beside each other. There,
 * the inputs of a kernel row are neighbours, and a quad may hold channels of two columns. Weights lie in panels of
 * VECTORS output vectors: int8[kh][quad][VECTORS][lane][4], zero beyond the kernel row. */
#include "int8/product.h"

NNS_DEFINE_READS(conv_int8_planar);

enum { PLANAR_MOST_PIXELS = NNS_MOST(conv_int8_planar, 1), PLANAR_MOST_VECTORS = NNS_MOST(conv_int8_planar, 2) };

/* Maximum bytes of the packed rows of a unit. */
#define PLANAR_PACKED_BYTES (INT64_C(1) << 26)

/* Arguments shared by the tiles of one output row and one panel. */
typedef struct {
    const int8_t *x; /* packed row of the first tap */
    const int8_t *w; /* of the panel */
    const int32_t *bias;
    const float *multipliers;
    const int8_t *residual; /* of the panel, from this row on; or NULL */
    int8_t *y;              /* of the panel, from this row on */
    int64_t kh, quads;      /* rows of the kernel, and quads of each */
    int64_t tap_row, step;  /* bytes from a packed row of the kernel to the next one, and between pixels */
    int64_t y_plane;
    int8_rounding finish;
} planar_row;

/* One register tile: computes `count` neighbouring pixels of an output row × `vectors` output vectors, and stores
 * `valid` of the pixels. */
NNS_INLINE void planar_tile(const int vectors, const int count, const int64_t valid, const planar_row *row,
                            int64_t pixel) {
    nns_uvec sums[PLANAR_MOST_PIXELS * PLANAR_MOST_VECTORS];
    COMPUTE_FOR(v, vectors) {
        const nns_uvec bias = compute_load_bits(row->bias + v * NNS_BLOCK);
        COMPUTE_FOR(p, count) sums[p * PLANAR_MOST_VECTORS + v] = bias;
    }
    const nns_uvec flips = int8_flips();
    const int8_t *w = row->w, *each[PLANAR_MOST_PIXELS];
    COMPUTE_FOR(p, count) each[p] = row->x + (pixel + p) * row->step;
    for (int64_t i = 0; i < row->kh; i++)
        for (int64_t quad = 0; quad < row->quads; quad++, w += vectors * NNS_BLOCK * INT8_QUAD)
            int8_add_quad(count, vectors, sums, PLANAR_MOST_VECTORS, flips, each, NULL,
                          i * row->tap_row + quad * INT8_QUAD, w);
    COMPUTE_FOR(v, vectors) {
        const int64_t at = v * row->y_plane + pixel * NNS_BLOCK;
        int8_store(count, valid, &row->finish, sums + v, PLANAR_MOST_VECTORS,
                   nns_load(row->multipliers + v * NNS_BLOCK), row->residual ? row->residual + at : NULL, row->y + at);
    }
}

/* Computes up to `pixels` pixels of a row from `pixel` on; reads the inputs of a whole tile. */
NNS_INLINE void planar_any(const int pixels, const int vectors, int64_t count, const planar_row *row, int64_t pixel) {
    const int half = (pixels + 1) / 2, quarter = (pixels + 3) / 4;
    if (count == pixels)
        planar_tile(vectors, pixels, pixels, row, pixel);
    else if (count <= quarter)
        planar_tile(vectors, quarter, count, row, pixel);
    else if (count <= half)
        planar_tile(vectors, half, count, row, pixel);
    else
        planar_tile(vectors, pixels, count, row, pixel);
}

typedef void (*planar_pixels)(int64_t count, const planar_row *row, int64_t pixel);

/* ---- packed rows: int8[row][column][channel] ------------------------------------------------------------------------ */

typedef struct {
    int64_t panels, chunks;
    int64_t rows;  /* input rows that a unit reads */
    int64_t quads; /* of a kernel row */
    int64_t bytes; /* of a packed row */
} planar_grid;

static planar_grid grid_of(const kernel_geometry *s, const conv_int8_planar_parameters *p, int64_t vectors) {
    planar_grid grid = {.panels = blocks_of(s->o) / vectors, .chunks = nns_ceil_div(s->oh, p->rows)};
    grid.rows = (nns_min_int(p->rows, s->oh) - 1) * s->sh + (s->kh - 1) * s->dh + 1;
    grid.quads = nns_ceil_div(s->kw * s->c, INT8_QUAD);
    grid.bytes = (s->ow + PLANAR_MOST_PIXELS) * s->sw * s->c + grid.quads * INT8_QUAD;
    return grid;
}

/* Copies input row `h`, which may be outside the input, of the image at `x`. */
static void pack_row(const kernel_geometry *s, const int8_t *x, int64_t h, int zero, int64_t bytes, int8_t *to) {
    memset(to, zero, (size_t)bytes);
    if (h < 0 || h >= s->h) return;
    const int64_t columns = nns_min_int(s->w, nns_max_int(0, bytes / s->c - s->pl)), plane = s->h * s->w;
    const int8_t *from = x + h * s->w;
    to += s->pl * s->c;
    if (s->c == 3) {
        for (int64_t column = 0; column < columns; column++)
            for (int channel = 0; channel < 3; channel++) to[3 * column + channel] = from[channel * plane + column];
        return;
    }
    for (int64_t channel = 0; channel < s->c; channel++)
        for (int64_t column = 0; column < columns; column++)
            to[column * s->c + channel] = from[channel * plane + column];
}

/* ---- units: (image, chunk of rows) ---------------------------------------------------------------------------------- */

static const char *planar_check(const nns_args *args, nns_work *work, int64_t vectors) {
    const conv_int8_planar_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (blocks_of(s.o) % vectors) return "the output's blocks are not a multiple of the tile's vectors";
    if (s.dw != 1) return "the kernel's columns are dilated";
    if (s.c > NNS_BLOCK) return "the input has too many channels";
    const planar_grid grid = grid_of(&s, p, vectors);
    const int64_t packed = NNS_PRODUCT(grid.rows, grid.bytes), lanes = blocks_of(s.o) * NNS_BLOCK;
    if (packed < 0 || packed > PLANAR_PACKED_BYTES) return "the input rows of a unit are too large";
    *work = (nns_work){.units = s.n * grid.chunks, .scratch = packed};
    const int64_t y = NNS_PRODUCT(s.n, lanes, s.oh, s.ow);
    return NNS_CHECK_SIZES(conv_int8_planar, args, int8_result_bytes(y, &p->result), NNS_PRODUCT(s.n, s.c, s.h, s.w),
                           NNS_PRODUCT(lanes, s.kh, grid.quads, INT8_QUAD),
                           NNS_PRODUCT(2, lanes, (int64_t)sizeof(int32_t)), NNS_FLOAT_BYTES(lanes), y);
}

static void planar_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, int64_t pixels,
                       int64_t vectors, planar_pixels compute) {
    const conv_int8_planar_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const planar_grid grid = grid_of(&s, p, vectors);
    const int64_t width = vectors * NNS_BLOCK, y_row = s.ow * NNS_BLOCK;
    const int8_t *residual = args->in[READ_RESIDUAL];
    int8_t *packed = scratch;
    planar_row row = {.kh = s.kh,
                      .quads = grid.quads,
                      .tap_row = s.dh * grid.bytes,
                      .step = s.sw * s.c,
                      .y_plane = s.oh * y_row,
                      .finish = int8_rounding_of(&p->rounding, &p->result, args->out[0])};
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / grid.chunks, begin = unit % grid.chunks * p->rows;
        const int64_t end = nns_min_int(s.oh, begin + p->rows);
        const int8_t *x = (const int8_t *)args->in[READ_X] + image * s.c * s.h * s.w;
        const int64_t rows = (end - begin - 1) * s.sh + (s.kh - 1) * s.dh + 1;
        for (int64_t i = 0; i < rows; i++)
            pack_row(&s, x, begin * s.sh - s.pt + i, (int)p->zero, grid.bytes, packed + i * grid.bytes);
        for (int64_t panel = 0; panel < grid.panels; panel++) {
            row.w = (const int8_t *)args->in[READ_WEIGHTS] + panel * width * s.kh * grid.quads * INT8_QUAD;
            row.bias = int8_bias(args->in[READ_BIAS], blocks_of(s.o) * NNS_BLOCK) + panel * width;
            row.multipliers = (const float *)args->in[READ_MULTIPLIERS] + panel * width;
            for (int64_t oh = begin; oh < end; oh++) {
                const int64_t out = (image * blocks_of(s.o) + panel * vectors) * row.y_plane + oh * y_row;
                row.x = packed + (oh - begin) * s.sh * grid.bytes;
                row.residual = residual ? residual + out : NULL;
                row.y = (int8_t *)args->out[0] + out;
                for (int64_t pixel = 0; pixel < s.ow; pixel += pixels)
                    compute(nns_min_int(pixels, s.ow - pixel), &row, pixel);
            }
        }
    }
}

#define KERNEL(stem, name, where, pixels, vectors)                                                   \
    WHERE_##where(static void stem##_pixels(int64_t count, const planar_row *row, int64_t pixel) {   \
        planar_any(pixels, vectors, count, row, pixel);                                              \
    } NNS_DEFINE_KERNEL(stem, planar_check(args, work, vectors),                                     \
                        planar_run(args, begin, end, scratch, pixels, vectors, stem##_pixels)))
KERNELS_conv_int8_planar(KERNEL)

NNS_DEFINE_FAMILY(conv_int8_planar);
