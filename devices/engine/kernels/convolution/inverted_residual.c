/* Blocks of three convolutions of mobile networks, in bands of rows; both intermediate tensors stay in scratch memory:
 *
 *   inverted_residual   a pointwise convolution that expands the channels, a depthwise one and a pointwise one that projects
 *                       (MobileNetV2, section 3.3)
 *   stem_residual       the same with the network's first convolution in the place of the pointwise one that expands
 *
 * reads   x (blocked, NCHW for a stem), weights and bias (or NULL) of each convolution, residual of the last one (like the
 *         output) or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest; the geometry is the depthwise convolution's
 *
 * Weights are as in pair.c and conv_planar.c, those of each convolution in panels of its own number of vectors. */
#include "planar.h"
#include "pointwise.h"

/* Both families read these operands. */
NNS_DEFINE_READS(inverted_residual);

/* Maximum scratch of a thread for each intermediate tensor; useful bands need far less. */
#define BLOCK_MAX_SCRATCH (INT64_C(1) << 26)

/* What both families share, of their parameters and derived from them. */
typedef struct {
    const kernel_geometry *s;
    const activation_parameters *second_activation, *activation;
    int64_t outputs, band, project_vectors;
    int64_t middle, out;  /* blocks of the tensors between the convolutions, and of the output */
    int64_t ring;         /* rows of a ring */
    int64_t ring_plane;   /* floats of a ring */
    int64_t band_plane;   /* floats between blocks of the depthwise convolution's rows */
} block_shape;

static block_shape shape_of(const kernel_geometry *s, int64_t outputs, int64_t band, int64_t project_vectors,
                            const activation_parameters *second_activation, const activation_parameters *activation) {
    const int64_t ring = ring_rows(s, band);
    return (block_shape){
        .s = s,
        .second_activation = second_activation,
        .activation = activation,
        .outputs = outputs,
        .band = band,
        .project_vectors = project_vectors,
        .middle = blocks_of(s->c),
        .out = blocks_of(outputs),
        .ring = ring,
        .ring_plane = ring * s->w * NNS_BLOCK,
        .band_plane = nns_min_int(band, s->oh) * s->ow * NNS_BLOCK,
    };
}

/* The shape by a family's parameters. */
#define SHAPE_OF(p) \
    shape_of(&(p)->geometry, (p)->outputs, (p)->band, (p)->project_vectors, &(p)->second_activation, &(p)->activation)

static bool has_tiles(int64_t vectors, int64_t blocks) {
    return vectors <= POINTWISE_VECTORS && nns_pointwise_tiles[vectors] && blocks % vectors == 0;
}

/* Checks all but the first convolution, whose input and weights have these bytes, and which needs `more` scratch. */
static const char *block_check(const nns_args *args, nns_work *work, const block_shape *b, int64_t x, int64_t weights,
                               int64_t more) {
    const kernel_geometry *s = b->s;
    if (s->c != s->o) return "a depthwise convolution must have as many output channels as input channels";
    if (!has_tiles(b->project_vectors, b->out)) return "no tile of the output has as many vectors";
    const int64_t y = NNS_FLOAT_BYTES(s->n, b->out, NNS_BLOCK, s->oh, s->ow);
    const char *wrong = NNS_CHECK_SIZES(
        inverted_residual, args, y, x, weights, NNS_FLOAT_BYTES(b->middle, NNS_BLOCK),
        NNS_FLOAT_BYTES(b->middle, NNS_BLOCK, s->kh, s->kw), NNS_FLOAT_BYTES(b->middle, NNS_BLOCK),
        NNS_FLOAT_BYTES(b->out, NNS_BLOCK, s->c), NNS_FLOAT_BYTES(b->out, NNS_BLOCK), y);
    if (wrong) return wrong;
    const int64_t ring = NNS_FLOAT_BYTES(b->middle, b->ring, s->w, NNS_BLOCK);
    const int64_t band = NNS_FLOAT_BYTES(b->middle, nns_min_int(b->band, s->oh), s->ow, NNS_BLOCK);
    if (ring < 0 || band < 0 || ring > BLOCK_MAX_SCRATCH || band > BLOCK_MAX_SCRATCH)
        return "the block's bands are too large";
    work->units = s->n * nns_ceil_div(s->oh, b->band);
    work->scratch = RING_NOTE_BYTES + ring + band + more;
    return NULL;
}

/* Computes rows of the first convolution into the rings that begin at `ring`. */
typedef void first_rows(const nns_args *args, const block_shape *b, int64_t image, row_range rows, float *ring,
                        void *scratch);

/* The depthwise convolution of output rows [begin, end), from the input rows `held`. */
static void filter_rows(const nns_args *args, const block_shape *b, row_range held, int64_t begin, int64_t end,
                        const float *ring, float *filtered) {
    const float *w = args->in[READ_WEIGHTS2], *bias = args->in[READ_BIAS2];
    for (int64_t block = 0; block < b->middle; block++) {
        const depthwise_rows rows = {
            .x = ring + block * b->ring_plane,
            .w = w + block * b->s->kh * b->s->kw * NNS_BLOCK,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .y = filtered + block * b->band_plane,
            .finish = epilogue_of(b->second_activation),
        };
        ring_filter(b->s, rows, held, begin, end, b->ring);
    }
}

/* Projects the filtered rows to the output rows [begin, end). */
static void project_rows(const nns_args *args, const block_shape *b, int64_t image, int64_t begin, int64_t end,
                         const float *filtered) {
    const kernel_geometry *s = b->s;
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK, width = b->project_vectors * NNS_BLOCK;
    const float *w = args->in[READ_WEIGHTS3], *bias = args->in[READ_BIAS3], *residual = args->in[READ_RESIDUAL];
    for (int64_t block = 0; block < b->out; block += b->project_vectors) {
        const int64_t out = (image * b->out + block) * y_plane + begin * s->ow * NNS_BLOCK;
        const pointwise project = {
            .x = filtered,
            .w = w + block / b->project_vectors * s->c * width,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .residual = residual ? residual + out : NULL,
            .y = (float *)args->out[0] + out,
            .x_plane = b->band_plane,
            .y_plane = y_plane,
            .channels = s->c,
            .finish = epilogue_of(b->activation),
        };
        nns_pointwise_tiles[b->project_vectors](&project, (end - begin) * s->ow);
    }
}

/* Units are (image, band). */
static void block_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch, const block_shape *b,
                      first_rows *first) {
    const int64_t bands = nns_ceil_div(b->s->oh, b->band);
    float *ring = (float *)((char *)scratch + RING_NOTE_BYTES), *filtered = ring + b->middle * b->ring_plane;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t image = unit / bands, begin = unit % bands * b->band;
        const int64_t end = nns_min_int(b->s->oh, begin + b->band);
        const row_range wanted = rows_read(b->s, begin, end);
        first(args, b, image, ring_missing(scratch, image + 1, wanted), ring, filtered + b->middle * b->band_plane);
        filter_rows(args, b, wanted, begin, end, ring, filtered);
        project_rows(args, b, image, begin, end, filtered);
    }
}

/* ---- inverted_residual ------------------------------------------------------------------------------------------- */

static const char *expand_check(const nns_args *args, nns_work *work) {
    const inverted_residual_parameters *p = (const void *)args->p;
    const block_shape b = SHAPE_OF(p);
    if (!has_tiles(p->expand_vectors, b.middle)) return "no tile of the expanded tensor has as many vectors";
    return block_check(args, work, &b, NNS_FLOAT_BYTES(b.s->n, blocks_of(p->inputs), NNS_BLOCK, b.s->h, b.s->w),
                       NNS_FLOAT_BYTES(b.middle, NNS_BLOCK, p->inputs), 0);
}

static void expand_rows(const nns_args *args, const block_shape *b, int64_t image, row_range rows, float *ring,
                        void *scratch) {
    (void)scratch;
    const inverted_residual_parameters *p = (const void *)args->p;
    const int64_t x_plane = b->s->h * b->s->w * NNS_BLOCK, width = p->expand_vectors * NNS_BLOCK;
    const float *w = args->in[READ_WEIGHTS1], *bias = args->in[READ_BIAS1];
    for (int64_t block = 0; block < b->middle; block += p->expand_vectors) {
        const pointwise expand = {
            .x = (const float *)args->in[READ_X] + image * blocks_of(p->inputs) * x_plane,
            .w = w + block / p->expand_vectors * p->inputs * width,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .y = ring + block * b->ring_plane,
            .x_plane = x_plane,
            .y_plane = b->ring_plane,
            .channels = p->inputs,
            .finish = epilogue_of(&p->first_activation),
        };
        ring_fill(&expand, nns_pointwise_tiles[p->expand_vectors], rows, b->s->w, b->ring);
    }
}

static void expand_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const inverted_residual_parameters *p = (const void *)args->p;
    const block_shape b = SHAPE_OF(p);
    block_run(args, begin, end, scratch, &b, expand_rows);
}

/* ---- stem_residual ----------------------------------------------------------------------------------------------- */

static const char *stem_check(const nns_args *args, nns_work *work) {
    const stem_residual_parameters *p = (const void *)args->p;
    const block_shape b = SHAPE_OF(p);
    const kernel_geometry *stem = &p->stem;
    if (stem->n != b.s->n || stem->o != b.s->c || stem->oh != b.s->h || stem->ow != b.s->w)
        return "the depthwise convolution does not read what the stem makes";
    const int64_t packing = nns_planar_scratch(stem, p->stem_vectors, b.ring);
    if (packing < 0) return "the stem's rows are too large, or it has no tile of as many vectors";
    return block_check(args, work, &b, NNS_FLOAT_BYTES(stem->n, stem->c, stem->h, stem->w),
                       NNS_FLOAT_BYTES(b.middle, NNS_BLOCK, stem->c, stem->kh, stem->kw), packing);
}

static void stem_rows(const nns_args *args, const block_shape *b, int64_t image, row_range rows, float *ring,
                      void *scratch) {
    const stem_residual_parameters *p = (const void *)args->p;
    const kernel_geometry *stem = &p->stem;
    for (int64_t begin = rows.begin, end; begin < rows.end; begin = end) {
        const int64_t slot = begin % b->ring;
        end = nns_min_int(rows.end, begin + b->ring - slot);
        const planar_job job = {
            .s = stem,
            .x = (const float *)args->in[READ_X] + image * stem->c * stem->h * stem->w,
            .w = args->in[READ_WEIGHTS1],
            .bias = args->in[READ_BIAS1],
            .y = ring + slot * b->s->w * NNS_BLOCK,
            .y_plane = b->ring_plane,
            .scratch = scratch,
            .finish = epilogue_of(&p->first_activation),
        };
        nns_planar_rows(&job, p->stem_vectors, b->ring, begin, end);
    }
}

static void stem_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    const stem_residual_parameters *p = (const void *)args->p;
    const block_shape b = SHAPE_OF(p);
    block_run(args, begin, end, scratch, &b, stem_rows);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define KERNEL(kernel, where, first) \
    WHERE_##where(NNS_DEFINE_KERNEL(kernel, first##_check(args, work), first##_run(args, begin, end, scratch)))
#define EXPAND(kernel, name, where) KERNEL(kernel, where, expand)
#define STEM(kernel, name, where) KERNEL(kernel, where, stem)
KERNELS_inverted_residual(EXPAND)
KERNELS_stem_residual(STEM)

NNS_DEFINE_FAMILY(inverted_residual);
NNS_DEFINE_FAMILY(stem_residual);
