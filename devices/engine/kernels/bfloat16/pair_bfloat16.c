/* Fused pairs of a depthwise convolution and a pointwise one, whose products are of bfloat16, in bands of rows:
 *
 *   expand_depthwise_bfloat16   the pointwise convolution, then the depthwise one
 *   depthwise_project_bfloat16  the depthwise convolution, then the pointwise one
 *
 * reads   x, weights and bias (or NULL) of the first, weights and bias (or NULL) of the second, residual of the second
 *         (like the output) or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest; the geometry is the depthwise convolution's, which computes in float32
 *
 * Weights of the pointwise convolution are bfloat16[output block][part][pair][lane][2] (strips.h); those of the depthwise one are
 * float[block][kh][kw][lane]. A band's pixels of the pointwise convolution are rounded once, for all of its output vectors. Two
 * of these at a time become the rows that the depthwise convolution reads, or two blocks of its rows become a part. */
#include "bfloat16/strips.h"
/* The depthwise convolution has no variant for these CPU features. */
#define NNS_DEPTHWISE_VARIANT
#include "convolution/depthwise.h"

/* Both families have these parameters and operands. */
typedef expand_depthwise_bfloat16_parameters pair_parameters;
NNS_DEFINE_READS(expand_depthwise_bfloat16);

enum { VECTORS = 2, PIXEL_BYTES = BF16_COLUMN * (int)sizeof(bfloat16), BLOCK_BYTES = NNS_BLOCK * (int)sizeof(float) };

/* ---- shared by both ---------------------------------------------------------------------------------------------- */

/* Scratch: the rounded pixels, part after part, then the float32 rows that come before or after them. */
typedef struct {
    bfloat16 *rounded;
    int64_t part; /* numbers from a part to the next */
    float *rows;
    int64_t plane; /* floats from a block to the next */
} pair_scratch;

static pair_scratch scratch_of(void *scratch, int64_t channels, int64_t pixels) {
    const int64_t part = pixels * BF16_COLUMN, behind = BF16_BEHIND * BF16_COLUMN;
    return (pair_scratch){
        .rounded = scratch,
        .part = part,
        .rows = (float *)((bfloat16 *)scratch + bf16_parts(channels) * part + behind),
        .plane = pixels * NNS_BLOCK,
    };
}

/* Checks the parameters, the operands' sizes and those of scratch: `rounded` channels of `pixels`, and `blocks` blocks of these in
 * float32. `in` and `out` are the pair's channels; `pointwise` are the bytes of that convolution's weights. */
static const char *pair_check(const nns_args *args, nns_work *work, int64_t in, int64_t out, int64_t rounded, int64_t pixels,
                              int64_t blocks, bool expands) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    if (s->c != s->o) return "a depthwise convolution must have as many output channels as input channels";
    const int64_t behind = BF16_BEHIND * PIXEL_BYTES;
    const int64_t parts = NNS_PRODUCT(bf16_parts(rounded), pixels, PIXEL_BYTES), rows = NNS_PRODUCT(blocks, pixels, BLOCK_BYTES);
    if (parts < 0 || rows < 0 || parts + rows > BF16_BYTES) return "the pair's bands are too large";
    *work = (nns_work){.units = s->n * nns_ceil_div(s->oh, p->band), .scratch = parts + behind + rows};
    const int64_t other = expands ? s->c : out;
    const int64_t pointwise = NNS_PRODUCT(blocks_of(other), bf16_parts(rounded), BF16_TAP, (int64_t)sizeof(bfloat16));
    const int64_t depthwise = NNS_FLOAT_BYTES(blocks_of(s->c), NNS_BLOCK, s->kh, s->kw);
    const int64_t y = NNS_FLOAT_BYTES(s->n, blocks_of(out), NNS_BLOCK, s->oh, s->ow);
    return NNS_CHECK_SIZES(expand_depthwise_bfloat16, args, y, NNS_FLOAT_BYTES(s->n, blocks_of(in), NNS_BLOCK, s->h, s->w),
                           expands ? pointwise : depthwise, NNS_FLOAT_BYTES(blocks_of(s->c), NNS_BLOCK),
                           expands ? depthwise : pointwise, NNS_FLOAT_BYTES(blocks_of(out), NNS_BLOCK), y);
}

/* The pointwise convolution of `pixels` rounded pixels of `channels` channels. */
static strips pointwise_of(const activation_parameters *activation, int64_t channels, const pair_scratch *scratch,
                           int64_t pixels) {
    return (strips){
        .geometry = {.kh = 1, .kw = 1, .sh = 1, .sw = 1, .dh = 1, .dw = 1, .ow = pixels},
        .columns = pixels,
        .row = pixels * BF16_COLUMN,
        .part = scratch->part,
        .w_block = bf16_parts(channels) * BF16_TAP,
        .step = NNS_BLOCK,
        .finish = epilogue_of(activation),
    };
}

/* Computes `count` output vectors, `plane` floats apart, from `vector` on. `bias` is that of all vectors or NULL; `y`, and
 * `residual` or NULL, begin with the first of these. */
static void compute_vectors(const strips *of, const pair_scratch *scratch, int64_t channels, const bfloat16 *w,
                            const float *bias, int64_t vector, int64_t count, const float *residual, float *y, int64_t plane) {
    output_vector v[VECTORS];
    for (int64_t k = 0; k < count; k++)
        v[k] = (output_vector){
            .x = scratch->rounded,
            .w = w + (vector + k) * of->w_block,
            .end = nns_ceil_div(channels, 2),
            .bias = bias ? bias + (vector + k) * NNS_BLOCK : NULL,
            .residual = residual ? residual + k * plane : NULL,
            .y = y + k * plane,
        };
    bf16_compute(of, v, count, 1);
    if (!of->finish.second_pass) return;
    for (int64_t k = 0; k < count; k++) epilogue_second_pass(&of->finish, v[k].y, of->geometry.ow * NNS_BLOCK);
}

/* ---- expand, then depthwise: units are (image, band) ------------------------------------------------------------- */

/* Maximum input rows that a band reads. */
static int64_t band_rows(const kernel_geometry *s, int64_t band) {
    return nns_min_int(s->h, (nns_min_int(band, s->oh) - 1) * s->sh + (s->kh - 1) * s->dh + 1);
}

static const char *expand_depthwise_bfloat16_check(const nns_args *args, nns_work *work) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t pixels = NNS_PRODUCT(band_rows(s, p->band), s->w);
    return pair_check(args, work, p->other, s->c, p->other, pixels, VECTORS, true);
}

/* Output rows [begin, end) of an image. */
static void expand_band(const nns_args *args, int64_t image, int64_t begin, int64_t end, void *memory) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t blocks = blocks_of(s->c), inputs = blocks_of(p->other), plane = s->h * s->w * NNS_BLOCK;
    const int64_t top = begin * s->sh - s->pt, first = nns_max_int(0, nns_min_int(s->h, top));
    const int64_t last = nns_max_int(first, nns_min_int(s->h, (end - 1) * s->sh - s->pt + (s->kh - 1) * s->dh + 1));
    const int64_t pixels = (last - first) * s->w;
    const pair_scratch scratch = scratch_of(memory, p->other, band_rows(s, p->band) * s->w);
    const float *x = (const float *)args->in[READ_X] + image * inputs * plane + first * s->w * NNS_BLOCK;
    for (int64_t block = 0; block < inputs; block += BF16_BLOCKS)
        bf16_round(nns_min_int(BF16_BLOCKS, inputs - block), x + block * plane, plane, 1, pixels,
                   scratch.rounded + block / BF16_BLOCKS * scratch.part);
    const strips of = pointwise_of(&p->first_activation, p->other, &scratch, pixels);
    kernel_geometry depthwise = *s;
    depthwise.h = last - first;
    depthwise.pt = first - top;
    const float *w = args->in[READ_WEIGHTS2], *bias = args->in[READ_BIAS2], *residual = args->in[READ_RESIDUAL];
    const epilogue finish = epilogue_of(&p->activation);
    for (int64_t vector = 0; vector < blocks; vector += VECTORS) {
        const int64_t count = nns_min_int(VECTORS, blocks - vector);
        if (pixels)
            compute_vectors(&of, &scratch, p->other, args->in[READ_WEIGHTS1], args->in[READ_BIAS1], vector, count, NULL,
                            scratch.rows, scratch.plane);
        for (int64_t k = 0; k < count; k++) {
            const int64_t block = vector + k, out = ((image * blocks + block) * s->oh + begin) * s->ow * NNS_BLOCK;
            const depthwise_rows rows = {
                .x = scratch.rows + k * scratch.plane,
                .w = w + block * s->kh * s->kw * NNS_BLOCK,
                .bias = bias ? bias + block * NNS_BLOCK : NULL,
                .residual = residual ? residual + out : NULL,
                .y = (float *)args->out[0] + out,
                .end = end - begin,
                .finish = finish,
            };
            nns_depthwise_rows(&depthwise, &rows);
        }
    }
}

/* ---- depthwise, then project: units are (image, band) ------------------------------------------------------------ */

static const char *depthwise_project_bfloat16_check(const nns_args *args, nns_work *work) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t pixels = NNS_PRODUCT(nns_min_int(s->oh, p->band), s->ow);
    return pair_check(args, work, s->c, p->other, s->c, pixels, BF16_BLOCKS, false);
}

/* Output rows [begin, end) of an image. */
static void project_band(const nns_args *args, int64_t image, int64_t begin, int64_t end, void *memory) {
    const pair_parameters *p = (const void *)args->p;
    const kernel_geometry *s = &p->geometry;
    const int64_t blocks = blocks_of(s->c), outputs = blocks_of(p->other), pixels = (end - begin) * s->ow;
    const pair_scratch scratch = scratch_of(memory, s->c, nns_min_int(s->oh, p->band) * s->ow);
    const float *bias = args->in[READ_BIAS1], *residual = args->in[READ_RESIDUAL];
    depthwise_rows rows = {.begin = begin, .end = end, .finish = epilogue_of(&p->first_activation)};
    for (int64_t block = 0; block < blocks; block++) {
        rows.x = (const float *)args->in[READ_X] + (image * blocks + block) * s->h * s->w * NNS_BLOCK;
        rows.w = (const float *)args->in[READ_WEIGHTS1] + block * s->kh * s->kw * NNS_BLOCK;
        rows.bias = bias ? bias + block * NNS_BLOCK : NULL;
        rows.y = scratch.rows + block % BF16_BLOCKS * scratch.plane;
        nns_depthwise_rows(s, &rows);
        if ((block + 1) % BF16_BLOCKS == 0 || block + 1 == blocks)
            bf16_round(block % BF16_BLOCKS + 1, scratch.rows, scratch.plane, 1, pixels,
                       scratch.rounded + block / BF16_BLOCKS * scratch.part);
    }
    const strips of = pointwise_of(&p->activation, s->c, &scratch, pixels);
    const int64_t plane = s->oh * s->ow * NNS_BLOCK;
    for (int64_t vector = 0; vector < outputs; vector += VECTORS) {
        const int64_t out = (image * outputs + vector) * plane + begin * s->ow * NNS_BLOCK;
        compute_vectors(&of, &scratch, s->c, args->in[READ_WEIGHTS2], args->in[READ_BIAS2], vector,
                        nns_min_int(VECTORS, outputs - vector), residual ? residual + out : NULL, (float *)args->out[0] + out,
                        plane);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Computes output rows [begin, end) of an image. */
typedef void compute_band(const nns_args *args, int64_t image, int64_t begin, int64_t end, void *memory);

static void run_bands(const nns_args *args, int64_t begin, int64_t end, void *scratch, compute_band *compute) {
    const pair_parameters *p = (const void *)args->p;
    const int64_t height = p->geometry.oh, bands = nns_ceil_div(height, p->band);
    bf16_begin();
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % bands * p->band;
        compute(args, unit / bands, first, nns_min_int(height, first + p->band), scratch);
    }
    bf16_end();
}

static void expand_depthwise_bfloat16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    run_bands(args, begin, end, scratch, expand_band);
}

static void depthwise_project_bfloat16_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    run_bands(args, begin, end, scratch, project_band);
}

NNS_DEFINE_FAMILY(expand_depthwise_bfloat16);
NNS_DEFINE_FAMILY(depthwise_project_bfloat16);
