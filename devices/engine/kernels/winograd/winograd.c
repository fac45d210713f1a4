/* Winograd convolution: kernels of several taps along one axis or both, strides up to 2, no dilation, any padding and
 * groups.
 *
 * reads   x, blocked or with `planar` (one group of few channels) plain; weights, bias or NULL (one
 *         float per lane of the output), residual like the output or NULL
 * writes  y, blocked, which may be the residual's memory
 * p       as in the manifest
 *
 * F(m×m, r×r) computes tiles of m² pixels from patches of alpha² = (m + r - 1)². A patch is encoded to alpha²
 * positions. At each position, the sum over input channels is a matrix product (tiles × channels) (channels × output
 * channels). The sums are decoded to pixels. A thread encodes the input of a block of tiles once, then multiplies and
 * decodes one panel of output vectors after another. The encoded input and the sums are in its scratch, which should
 * stay in the cache. Kernels of one row or one column have transforms of one dimension. Strided and longer kernels
 * are divided into parts (winograd_parts.h), which are summed like input channels.
 *
 * Weights lie in panels of VECTORS output vectors: float[position][piece][input block][part][lane][output channel]
 * with the input channels that the piece reads and the parts that are not 0 at the position. A panel is one piece, or
 * two if it is one vector whose halves belong to different groups. All panels have the size of the largest.
 *
 * Weights of winograd_int16 have one part and one group: [position][group of 16 input channels], each float[output
 * channel], the scales, then int16[lane][output channel]. They are widened in registers; all sums are in float32. */
#include "winograd.h"
#include "winograd_grid.h"
#include "winograd_transform.h"

NNS_DEFINE_READS(winograd);

/* ---- transforms and products ------------------------------------------------------------------------------------- */

#define ENCODE(alpha)                                                                                    \
    static void encode_##alpha(const winograd_patch *patch) { winograd_encode_any(alpha, patch); }       \
    static void encode_line_##alpha(const winograd_patch *patch) { winograd_encode_line(alpha, patch); } \
    static void pack_##alpha(const winograd_patch *patch, float *pixels) { winograd_pack_lane(alpha, patch, pixels); }
ENCODE(4)
ENCODE(6)
ENCODE(7)
ENCODE(8)

#define DECODE(alpha, m)                                                                                       \
    static void decode_##alpha##_##m(const winograd_result *result) { winograd_decode_any(alpha, m, result); } \
    static void decode_##alpha##_##m##_line(const winograd_result *result) { winograd_decode_line(alpha, m, result); }
DECODE(4, 2)
DECODE(4, 3)
DECODE(6, 3)
DECODE(6, 4)
DECODE(6, 5)
DECODE(7, 5)
DECODE(8, 3)
DECODE(8, 4)
DECODE(8, 5)
DECODE(8, 6)

#define product_vec_v nns_vec
typedef float product_weight_v;
#define product_read_v nns_load
#define product_read_scale_v nns_load
#define product_broadcast_v nns_broadcast
#define KIND v
#include "winograd_product.inc"

#define product_vec_s nns_vec
typedef int16_t product_weight_s;
#define product_read_s winograd_read_steps
#define product_read_scale_s nns_load
#define product_broadcast_s nns_broadcast
#define KIND s
#include "winograd_product.inc"

#define MULTIPLY(tiles, vectors, kind)                                                           \
    static void product_##tiles##kind##vectors(int64_t count, const winograd_product *product) { \
        COMPUTE_BY_COUNT(count, tiles, product_of_##kind, vectors, product)                      \
    }

/* Vectors of 16 floats multiply by a broadcast from memory in one instruction, so one output vector keeps the
 * multipliers busy. Elsewhere a broadcast should feed two. */
#if COMPUTE_HALVES
#define product_vec_h compute_half
typedef float product_weight_h;
#define product_read_h half_load
#define product_read_scale_h half_load
#define product_broadcast_h half_broadcast
#define KIND h
#include "winograd_product.inc"
MULTIPLY(28, 1, v)
MULTIPLY(28, 1, s)
MULTIPLY(28, 1, h)
#elif COMPUTE_BY_ELEMENT
MULTIPLY(20, 1, v)
MULTIPLY(12, 2, v)
MULTIPLY(6, 4, v)
MULTIPLY(20, 1, s)
#else
MULTIPLY(12, 1, v)
MULTIPLY(6, 2, v)
MULTIPLY(4, 3, v)
MULTIPLY(12, 1, s)
MULTIPLY(6, 2, s)
#endif

/* ---- check ------------------------------------------------------------------------------------------------------- */

static const char *winograd_check(const nns_args *args, nns_work *work, const winograd_variant *variant) {
    const winograd_parameters *p = (const void *)args->p;
    const char *wrong = parameters_check(p, variant);
    if (wrong) return wrong;
    const kernel_geometry s = p->geometry;
    const winograd_grid grid = grid_of(&s, p, variant);
    if (variant->steps && (grid.parts > 1 || p->groups > 1)) return "weights in steps have one part and one group";
    const int64_t width = variant->vectors * NNS_BLOCK, lanes = p->planar ? s.c : blocks_of(s.c) * NNS_BLOCK;
    const int64_t y = NNS_FLOAT_BYTES(s.n, grid.panels, width, s.oh, s.ow);
    const int64_t panel = largest_panel(&s, p->groups, variant);
    wrong =
        NNS_CHECK_SIZES(winograd, args, y, NNS_FLOAT_BYTES(s.n, lanes, s.h, s.w),
                        NNS_PRODUCT(grid.panels, all_parts(&grid), panel), NNS_FLOAT_BYTES(grid.panels, width), y);
    if (wrong) return wrong;
    work->units = grid.blocks * grid.chunks;
    work->scratch = WINOGRAD_NOTE_BYTES + tile_table_bytes(&grid) +
                    grid.positions * (grid.v_position + grid.m_position) * (int64_t)sizeof(float);
    return NULL;
}

/* ---- a block of tiles -------------------------------------------------------------------------------------------- */

/* State shared by the three stages of a block of tiles. */
typedef struct {
    const winograd_variant *variant;
    const nns_args *args;
    kernel_geometry s;
    winograd_grid grid;
    winograd_part parts[WINOGRAD_PARTS_MOST];
    epilogue finish;
    int64_t panel_size;             /* bytes of the largest panel */
    winograd_tile *tiles;           /* of this block */
    int64_t count;
    int64_t rows_begin, rows_end;   /* tiles with all their rows */
    int64_t columns_end;            /* tiles before this one have all their columns */
    float *v, *m;                   /* [position][input block][part][tile][lane], [position][tile][vector][lane] */
    int64_t block_begin, block_end; /* input blocks that the panels read */
    int64_t panel_begin, panel_end; /* panels of this block that this thread computes */
} winograd_job;

NNS_INLINE const winograd_parameters *parameters_of(const winograd_job *job) { return (const void *)job->args->p; }

/* Tile `index` among those of all images. */
static winograd_tile tile_at(const winograd_job *job, int64_t index) {
    const kernel_geometry *s = &job->s;
    const bool planar = parameters_of(job)->planar;
    const winograd_axis *down = &job->grid.down, *across = &job->grid.across;
    const int64_t per_image = job->grid.rows * job->grid.columns, pixel = planar ? 1 : NNS_BLOCK;
    const int64_t x_image = (planar ? s->c : blocks_of(s->c)) * s->h * s->w, y_image = blocks_of(s->o) * s->oh * s->ow;
    const int64_t image = index / per_image, within = index % per_image;
    const int64_t oh = within / job->grid.columns * down->m, ow = within % job->grid.columns * across->m;
    const int64_t h = oh * down->stride - s->pt, w = ow * across->stride - s->pl;
    return (winograd_tile){
        .x = (image * x_image + h * s->w + w) * pixel,
        .y = (image * y_image + oh * s->ow + ow) * NNS_BLOCK,
        .h = h,
        .w = w,
        .rows = (int32_t)nns_min_int(down->m, s->oh - oh),
        .columns = (int32_t)nns_min_int(across->m, s->ow - ow),
    };
}

/* Describes the tiles of a block. Tiles with all their rows are adjacent, and tiles with all their columns come
 * first: other tiles do not need the sums at infinity, which contribute to the last row or column only. */
static void locate(winograd_job *job, int64_t block) {
    const int64_t whole = job->grid.tiles / job->grid.blocks, larger = job->grid.tiles % job->grid.blocks;
    const int64_t first = block * whole + nns_min_int(block, larger), count = whole + (block < larger);
    static const bool all_rows[] = {false, true, true, false}, all_columns[] = {true, true, false, false};
    int64_t ends[4];
    job->count = 0;
    for (int kind = 0; kind < 4; kind++) {
        for (int64_t i = first; i < first + count; i++) {
            const winograd_tile tile = tile_at(job, i);
            if ((tile.rows == job->grid.down.m) == all_rows[kind] &&
                (tile.columns == job->grid.across.m) == all_columns[kind])
                job->tiles[job->count++] = tile;
        }
        ends[kind] = job->count;
    }
    job->rows_begin = ends[0];
    job->columns_end = ends[1];
    job->rows_end = ends[2];
}

/* The pixels from `first` on, `stride` apart, that lie in [0, extent): a half-open range of `alpha`. */
static tap_range inside(int64_t first, int64_t alpha, int64_t stride, int64_t extent) {
    const int64_t up = stride - 1; /* strides are 1 or 2, and division by them is a shift */
    const int64_t begin = nns_min_int(alpha, nns_max_int(0, (up - first) >> up));
    return (tap_range){begin, nns_max_int(begin, nns_min_int(alpha, (extent - first + up) >> up))};
}

/* The patch of one part of a tile in the plane at `x`, with `pixel` floats per pixel. A single column becomes a row. */
static winograd_patch patch_of(const winograd_job *job, const winograd_tile *tile, const winograd_part *part,
                               const float *x, int64_t pixel) {
    const kernel_geometry *s = &job->s;
    const winograd_axis *down = &job->grid.down, *across = &job->grid.across;
    winograd_patch patch = {
        .x = x + (tile->x + (part->row * s->w + part->column) * pixel),
        .x_row = down->stride * s->w * pixel,
        .x_column = across->stride * pixel,
        .rows = inside(tile->h + part->row, down->alpha, down->stride, s->h),
        .columns = inside(tile->w + part->column, across->alpha, across->stride, s->w),
        .v_position = job->grid.v_position,
    };
    if (across->alpha > 1) return patch;
    const tap_range swapped = patch.rows;
    patch.rows = patch.columns;
    patch.columns = swapped;
    patch.x_column = patch.x_row;
    return patch;
}

static winograd_encode encoder_of(const winograd_job *job) {
    const bool line = job->grid.down.alpha == 1 || job->grid.across.alpha == 1;
    return line ? job->variant->encode_line : job->variant->encode;
}

/* Finds the input blocks that the job's panels read. Planar inputs are always read whole. */
static void find_blocks(winograd_job *job) {
    const int64_t groups = parameters_of(job)->groups, vectors = job->variant->vectors;
    const winograd_panel first = panel_of(&job->s, groups, vectors, job->panel_begin);
    const winograd_panel last = panel_of(&job->s, groups, vectors, job->panel_end - 1);
    const bool planar = parameters_of(job)->planar;
    job->block_begin = planar ? 0 : first.pieces[0].lane_begin / NNS_BLOCK;
    job->block_end = planar ? 0 : blocks_of(last.pieces[last.count - 1].lane_end);
}

static void encode_block(winograd_job *job) {
    const kernel_geometry *s = &job->s;
    const float *x = job->args->in[READ_X];
    const winograd_encode encode = encoder_of(job);
    float *v = job->v;
    for (int64_t block = job->block_begin; block < job->block_end; block++) {
        const float *plane = x + block * s->h * s->w * NNS_BLOCK;
        for (int64_t part = 0; part < job->grid.parts; part++)
            for (int64_t i = 0; i < job->count; i++, v += NNS_BLOCK) {
                winograd_patch patch = patch_of(job, &job->tiles[i], &job->parts[part], plane, NNS_BLOCK);
                patch.v = v;
                encode(&patch);
            }
    }
}

/* Copies channels of a tile's parts, from channel `begin` of all parts' channels on, to the lanes of `pixels`. */
static void pack_lanes(const winograd_job *job, const winograd_tile *tile, int64_t begin, float *pixels) {
    const kernel_geometry *s = &job->s;
    const float *x = job->args->in[READ_X];
    const int64_t end = nns_min_int(begin + NNS_BLOCK, s->c * job->grid.parts);
    for (int64_t lane = begin; lane < end; lane++) {
        const float *plane = x + lane % s->c * s->h * s->w;
        const winograd_patch patch = patch_of(job, tile, &job->parts[lane / s->c], plane, 1);
        job->variant->pack(&patch, pixels + lane - begin);
    }
}

/* Encodes a plain input: lanes are the channels of the first part, then those of the next. */
static void encode_planes(winograd_job *job) {
    const int64_t alpha = job->variant->alpha, positions = job->grid.positions, rows = positions / alpha;
    const winograd_encode encode = encoder_of(job);
    float pixels[WINOGRAD_MAX_ALPHA * WINOGRAD_MAX_ALPHA * NNS_BLOCK] __attribute__((aligned(64)));
    winograd_patch patch = {
        .x = pixels,
        .x_row = alpha * NNS_BLOCK,
        .x_column = NNS_BLOCK,
        .rows = {0, rows},
        .columns = {0, alpha},
        .v = job->v,
        .v_position = job->grid.v_position,
    };
    for (int64_t begin = 0; begin < job->s.c * job->grid.parts; begin += NNS_BLOCK)
        for (int64_t i = 0; i < job->count; i++, patch.v += NNS_BLOCK) {
            memset(pixels, 0, (size_t)positions * NNS_BLOCK * sizeof(float));
            pack_lanes(job, &job->tiles[i], begin, pixels);
            encode(&patch);
        }
}

/* Prefetches the output of tiles [begin, end) of the panel during the products, so that decoding does not wait for
 * its stores. */
static void fetch_output(const winograd_job *job, int64_t panel, int64_t begin, int64_t end) {
    const kernel_geometry *s = &job->s;
    for (int64_t k = 0; k < job->variant->vectors; k++) {
        const float *y = job->args->out[0];
        y += (panel * job->variant->vectors + k) * s->oh * s->ow * NNS_BLOCK;
        for (int64_t i = begin; i < end; i++)
            for (int64_t row = 0; row < job->tiles[i].rows; row++)
                for (int64_t column = 0; column < job->tiles[i].columns; column++)
                    __builtin_prefetch(y + job->tiles[i].y + (row * s->ow + column) * NNS_BLOCK, 1);
    }
}

/* The product of one piece of a panel at one position with its weights `u` there, for the tiles from `begin` on. */
static winograd_product product_of(const winograd_job *job, const winograd_piece *piece, int64_t position,
                                   tap_range parts, const void *u, int64_t begin) {
    const int64_t width = job->variant->vectors * NNS_BLOCK, part_size = job->count * NNS_BLOCK;
    winograd_product product = {
        .v = job->v + position * job->grid.v_position + begin * NNS_BLOCK,
        .v_part = part_size,
        .u = u,
        .m = job->m + position * job->grid.m_position + begin * width + piece->begin,
    };
    if (parameters_of(job)->planar) {
        const int64_t first = parts.begin * job->s.c;
        product.v += first / NNS_BLOCK * part_size;
        product.lane_begin = first % NNS_BLOCK;
        product.lane_end = product.lane_begin + (parts.end - parts.begin) * job->s.c;
        product.parts = 1;
        return product;
    }
    const int64_t skipped = piece->lane_begin / NNS_BLOCK - job->block_begin;
    product.v += (skipped * job->grid.parts + parts.begin) * part_size;
    product.lane_begin = piece->lane_begin % NNS_BLOCK;
    product.lane_end = product.lane_begin + piece->lane_end - piece->lane_begin;
    product.parts = parts.end - parts.begin;
    product.v_skipped = (job->grid.parts - product.parts) * part_size;
    return product;
}

/* The sums of one piece of a panel at one position. Skips sums at infinity that a tile does not need: decoding uses
 * their stale values only for rows and columns that it does not store. */
static void multiply_piece(const winograd_job *job, const winograd_piece *piece, int64_t position, tap_range parts,
                           const void *u) {
    const winograd_variant *variant = job->variant;
    const winograd_axis *down = &job->grid.down, *across = &job->grid.across;
    const int64_t panel_width = variant->vectors * NNS_BLOCK;
    const winograd_multiply multiply = piece->width == panel_width ? variant->multiply : variant->multiply_half;
    const bool needs_rows = down->alpha > 1 && position / across->alpha == down->alpha - 1;
    const bool needs_columns = across->alpha > 1 && position % across->alpha == across->alpha - 1;
    const int64_t begin = needs_rows ? job->rows_begin : 0;
    const int64_t end = needs_columns ? job->columns_end : needs_rows ? job->rows_end : job->count;
    winograd_product product = product_of(job, piece, position, parts, u, begin);
    for (int64_t left = end - begin, calls = nns_ceil_div(left, variant->tiles); calls > 0; calls--) {
        const int64_t count = nns_ceil_div(left, calls);
        multiply(count, &product);
        product.v += count * NNS_BLOCK;
        product.m += count * panel_width;
        left -= count;
    }
}

/* The sums of one panel at all positions. */
static void multiply_panel(const winograd_job *job, int64_t index) {
    const int64_t positions = job->grid.positions;
    const winograd_panel panel = panel_of(&job->s, parameters_of(job)->groups, job->variant->vectors, index);
    const char *u = (const char *)job->args->in[READ_WEIGHTS] + index * job->panel_size;
    for (int64_t position = 0; position < positions; position++) {
        const tap_range parts = winograd_parts_at(&job->grid.down, &job->grid.across, position);
        fetch_output(job, index, job->count * position / positions, job->count * (position + 1) / positions);
        for (int64_t i = 0; i < panel.count; i++) {
            multiply_piece(job, &panel.pieces[i], position, parts, u);
            u += (parts.end - parts.begin) * piece_bytes(&panel.pieces[i], job->variant);
        }
    }
}

static void decode_panel(const winograd_job *job, int64_t panel) {
    const kernel_geometry *s = &job->s;
    const int64_t vectors = job->variant->vectors, y_plane = s->oh * s->ow * NNS_BLOCK;
    const float *bias = job->args->in[READ_BIAS], *residual = job->args->in[READ_RESIDUAL];
    float *y = job->args->out[0];
    const bool one_row = job->grid.down.alpha == 1, one_column = job->grid.across.alpha == 1;
    const winograd_decode decode = one_row || one_column ? job->variant->decode_line : job->variant->decode;
    winograd_result result = {
        .m_position = job->grid.m_position, .y_row = one_row ? NNS_BLOCK : s->ow * NNS_BLOCK, .finish = &job->finish};
    for (int64_t k = 0; k < vectors; k++) {
        const int64_t block = panel * vectors + k;
        result.bias = bias ? nns_load(bias + block * NNS_BLOCK) : nns_zero();
        for (int64_t i = 0; i < job->count; i++) {
            const int64_t at = block * y_plane + job->tiles[i].y;
            result.tile = &job->tiles[i];
            result.m = job->m + (i * vectors + k) * NNS_BLOCK;
            result.residual = residual ? residual + at : NULL;
            result.y = y + at;
            decode(&result);
        }
    }
}

static void winograd_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch,
                         const winograd_variant *variant) {
    const winograd_parameters *p = (const void *)args->p;
    winograd_job job = {.variant = variant, .args = args, .s = p->geometry};
    job.grid = grid_of(&job.s, p, variant);
    winograd_list_parts(&job.grid.down, &job.grid.across, &job.s, variant->taps, job.parts);
    job.finish = epilogue_of(&p->activation);
    winograd_note *note = scratch;
    job.tiles = (winograd_tile *)((char *)scratch + WINOGRAD_NOTE_BYTES);
    job.v = (float *)((char *)job.tiles + tile_table_bytes(&job.grid));
    job.m = job.v + job.grid.positions * job.grid.v_position;
    job.panel_size = all_parts(&job.grid) * largest_panel(&job.s, p->groups, variant);
    const int64_t chunks = job.grid.chunks, per_chunk = p->panels;
    for (int64_t unit = unit_begin, next; unit < unit_end; unit = next) {
        next = nns_min_int(unit_end, (unit / chunks + 1) * chunks); /* the remaining units of this block */
        job.panel_begin = unit % chunks * per_chunk;
        job.panel_end = nns_min_int(job.grid.panels, job.panel_begin + (next - unit) * per_chunk);
        locate(&job, unit / chunks);
        find_blocks(&job);
        const winograd_note wanted = {unit / chunks + 1, job.block_begin, job.block_end};
        if (memcmp(note, &wanted, sizeof wanted)) (p->planar ? encode_planes : encode_block)(&job);
        *note = wanted;
        for (int64_t panel = job.panel_begin; panel < job.panel_end; panel++) {
            multiply_panel(&job, panel);
            decode_panel(&job, panel);
        }
    }
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

#if COMPUTE_HALVES
#define MULTIPLY_HALF product_28h1
#else
#define MULTIPLY_HALF NULL
#endif

#define STEPS_v false
#define STEPS_s true
#define KERNEL(stem, where, alpha, taps, outputs, tiles, kind, vectors)                                 \
    WHERE_##where(static const winograd_variant variant_##stem = {                                      \
        alpha, taps, encode_##alpha, encode_line_##alpha, pack_##alpha, decode_##alpha##_##outputs,     \
        decode_##alpha##_##outputs##_line, tiles, vectors, STEPS_##kind, product_##tiles##kind##vectors, \
        MULTIPLY_HALF};                                                                                 \
    NNS_DEFINE_KERNEL(stem, winograd_check(args, work, &variant_##stem),                                \
                      winograd_run(args, begin, end, scratch, &variant_##stem)))
#define KERNEL_OF_FLOATS(stem, name, where, alpha, taps, outputs, tiles, vectors) \
    KERNEL(stem, where, alpha, taps, outputs, tiles, v, vectors)
#define KERNEL_OF_STEPS(stem, name, where, alpha, taps, outputs, tiles, vectors) \
    KERNEL(stem, where, alpha, taps, outputs, tiles, s, vectors)
KERNELS_winograd(KERNEL_OF_FLOATS)
KERNELS_winograd_int16(KERNEL_OF_STEPS)

NNS_DEFINE_FAMILY(winograd);
NNS_DEFINE_FAMILY(winograd_int16);
