/* Inverted residual blocks (MobileNetV2, section 3.3): a pointwise convolution that expands the channels, a depthwise one
 * and a pointwise one that projects, in bands of rows. Both intermediate tensors stay in scratch memory.
 *
 * reads   x, weights and bias (or NULL) of each convolution, residual of the last one (like the output) or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest; the geometry is the depthwise convolution's
 *
 * Weights are as in pair.c, those of both pointwise convolutions in panels of their own numbers of vectors. */
#include "pointwise.h"

NNS_DEFINE_READS(inverted_residual);

/* Blocks of the input, the expanded tensor and the output, and panels of the expanding convolution. */
typedef struct {
    int64_t in, middle, out, expand_panels;
    int64_t ring;          /* rows */
    int64_t ring_plane;    /* floats of a ring */
    int64_t band_plane;    /* floats between blocks of the depthwise convolution's rows */
} residual_sizes;

static residual_sizes sizes_of(const inverted_residual_parameters *p) {
    const kernel_geometry *s = &p->geometry;
    const int64_t middle = blocks_of(s->c), out = blocks_of(p->outputs), ring = ring_rows(s, p->band);
    return (residual_sizes){
        .in = blocks_of(p->inputs),
        .middle = middle,
        .out = out,
        .expand_panels = middle / p->expand_vectors,
        .ring = ring,
        .ring_plane = ring * s->w * NNS_BLOCK,
        .band_plane = nns_min_int(p->band, s->oh) * s->ow * NNS_BLOCK,
    };
}

static const char *residual_check(const nns_args *args, nns_work *work) {
    const inverted_residual_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c != s.o) return "a depthwise convolution must have as many output channels as input channels";
    if (p->expand_vectors > POINTWISE_VECTORS || !nns_pointwise_tiles[p->expand_vectors] ||
        p->project_vectors > POINTWISE_VECTORS || !nns_pointwise_tiles[p->project_vectors])
        return "no tile has as many vectors";
    const residual_sizes sizes = sizes_of(p);
    if (sizes.middle % p->expand_vectors || sizes.out % p->project_vectors)
        return "the tiles' vectors do not divide the outputs'";
    const int64_t y = NNS_FLOAT_BYTES(s.n, sizes.out, NNS_BLOCK, s.oh, s.ow);
    const char *wrong = NNS_CHECK_SIZES(
        inverted_residual, args, y, NNS_FLOAT_BYTES(s.n, sizes.in, NNS_BLOCK, s.h, s.w),
        NNS_FLOAT_BYTES(sizes.middle, NNS_BLOCK, p->inputs), NNS_FLOAT_BYTES(sizes.middle, NNS_BLOCK),
        NNS_FLOAT_BYTES(sizes.middle, NNS_BLOCK, s.kh, s.kw), NNS_FLOAT_BYTES(sizes.middle, NNS_BLOCK),
        NNS_FLOAT_BYTES(sizes.out, NNS_BLOCK, s.c), NNS_FLOAT_BYTES(sizes.out, NNS_BLOCK), y);
    if (wrong) return wrong;
    const int64_t expanded = NNS_FLOAT_BYTES(sizes.middle, sizes.ring, s.w, NNS_BLOCK);
    const int64_t filtered = NNS_FLOAT_BYTES(sizes.middle, nns_min_int(p->band, s.oh), s.ow, NNS_BLOCK);
    if (expanded < 0 || filtered < 0 || expanded > POINTWISE_MAX_SCRATCH || filtered > POINTWISE_MAX_SCRATCH)
        return "the block's bands are too large";
    work->units = s.n * nns_ceil_div(s.oh, p->band);
    work->scratch = RING_NOTE_BYTES + expanded + filtered;
    return NULL;
}

/* An image of a run. */
typedef struct {
    const nns_args *args;
    const inverted_residual_parameters *p;
    residual_sizes sizes;
    int64_t image;
    float *ring, *filtered; /* scratch */
} residual_job;

/* Expands the input rows `rows`. */
static void expand_rows(const residual_job *job, row_range rows) {
    const inverted_residual_parameters *p = job->p;
    const residual_sizes *sizes = &job->sizes;
    const int64_t x_plane = p->geometry.h * p->geometry.w * NNS_BLOCK, width = p->expand_vectors * NNS_BLOCK;
    const float *w = job->args->in[READ_WEIGHTS1], *bias = job->args->in[READ_BIAS1];
    for (int64_t panel = 0; panel < sizes->expand_panels; panel++) {
        const pointwise expand = {
            .x = (const float *)job->args->in[READ_X] + job->image * sizes->in * x_plane,
            .w = w + panel * p->inputs * width,
            .bias = bias ? bias + panel * width : NULL,
            .y = job->ring + panel * p->expand_vectors * sizes->ring_plane,
            .x_plane = x_plane,
            .y_plane = sizes->ring_plane,
            .channels = p->inputs,
            .finish = epilogue_of(&p->first_activation),
        };
        ring_fill(&expand, nns_pointwise_tiles[p->expand_vectors], rows, p->geometry.w, sizes->ring);
    }
}

/* The depthwise convolution of output rows [begin, end), from the input rows `held`. */
static void filter_rows(const residual_job *job, row_range held, int64_t begin, int64_t end) {
    const inverted_residual_parameters *p = job->p;
    const float *w = job->args->in[READ_WEIGHTS2], *bias = job->args->in[READ_BIAS2];
    for (int64_t block = 0; block < job->sizes.middle; block++) {
        const depthwise_rows rows = {
            .x = job->ring + block * job->sizes.ring_plane,
            .w = w + block * p->geometry.kh * p->geometry.kw * NNS_BLOCK,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .y = job->filtered + block * job->sizes.band_plane,
            .finish = epilogue_of(&p->second_activation),
        };
        ring_filter(&p->geometry, rows, held, begin, end, job->sizes.ring);
    }
}

/* Projects the filtered rows to the output rows [begin, end). */
static void project_rows(const residual_job *job, int64_t begin, int64_t end) {
    const inverted_residual_parameters *p = job->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t y_plane = s->oh * s->ow * NNS_BLOCK;
    const int64_t out = job->image * job->sizes.out * y_plane + begin * s->ow * NNS_BLOCK;
    const float *residual = job->args->in[READ_RESIDUAL];
    const pointwise project = {
        .x = job->filtered,
        .w = job->args->in[READ_WEIGHTS3],
        .bias = job->args->in[READ_BIAS3],
        .residual = residual ? residual + out : NULL,
        .y = (float *)job->args->out[0] + out,
        .x_plane = job->sizes.band_plane,
        .y_plane = y_plane,
        .channels = s->c,
        .finish = epilogue_of(&p->activation),
    };
    pointwise_panels(project, job->sizes.out, p->project_vectors, nns_pointwise_tiles[p->project_vectors],
                     (end - begin) * s->ow);
}

/* Units are (image, band). */
static void residual_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, void *scratch) {
    const inverted_residual_parameters *p = (const void *)args->p;
    const int64_t bands = nns_ceil_div(p->geometry.oh, p->band);
    residual_job job = {args, p, sizes_of(p), 0, (float *)((char *)scratch + RING_NOTE_BYTES), NULL};
    job.filtered = job.ring + job.sizes.middle * job.sizes.ring_plane;
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        job.image = unit / bands;
        const int64_t begin = unit % bands * p->band, end = nns_min_int(p->geometry.oh, begin + p->band);
        const row_range wanted = rows_read(&p->geometry, begin, end);
        expand_rows(&job, ring_missing(scratch, job.image + 1, wanted));
        filter_rows(&job, wanted, begin, end);
        project_rows(&job, begin, end);
    }
}

#define KERNEL(stem, name, where) \
    WHERE_##where(NNS_DEFINE_KERNEL(stem, residual_check(args, work), residual_run(args, begin, end, scratch)))
KERNELS_inverted_residual(KERNEL)

NNS_DEFINE_FAMILY(inverted_residual);
