/* Convolutions of blocked tensors whose groups lie within a block: depthwise (groups of 1 channel), and groups of 2, 4 or 8
 * channels with as many outputs, as in ResNeXt.
 *
 * reads   x, weights, bias or NULL (one float per lane), residual like the output or NULL
 * writes  y, which may be the residual's memory
 * p       as in the manifest
 *
 * Weights are float[block][kh][kw][GROUP][lane]: the factor of member i of the group of output lane l. The inputs of all lanes'
 * members i are one shuffle of the input vector. */
#include "depthwise.h"

NNS_DEFINE_READS(depthwise);

/* Lane l of the result is member `member` of the group of `group` lanes of `x` that contains l. Both are constants. */
NNS_INLINE nns_vec pick(nns_vec x, int group, int member) {
#define LANE(l, g, m) ((l) / (g) * (g) + (m))
#if NNS_BLOCK == 16
#define PICK(g, m)                                                                                                    \
    case (g) * 16 + (m):                                                                                              \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m),              \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m), LANE(8, g, m),     \
                                       LANE(9, g, m), LANE(10, g, m), LANE(11, g, m), LANE(12, g, m), LANE(13, g, m), \
                                       LANE(14, g, m), LANE(15, g, m));
#elif NNS_BLOCK == 8
#define PICK(g, m)                                                                                                \
    case (g) * 16 + (m):                                                                                          \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m),          \
                                       LANE(4, g, m), LANE(5, g, m), LANE(6, g, m), LANE(7, g, m));
#else
#define PICK(g, m)       \
    case (g) * 16 + (m): \
        return __builtin_shufflevector(x, x, LANE(0, g, m), LANE(1, g, m), LANE(2, g, m), LANE(3, g, m));
#endif
    switch (group * 16 + member) {
        PICK(2, 0) PICK(2, 1)
#if NNS_BLOCK > 4
        PICK(4, 0) PICK(4, 1) PICK(4, 2) PICK(4, 3)
#endif
#if NNS_BLOCK > 8
        PICK(8, 0) PICK(8, 1) PICK(8, 2) PICK(8, 3) PICK(8, 4) PICK(8, 5) PICK(8, 6) PICK(8, 7)
#endif
    default: return x;
    }
#undef PICK
#undef LANE
}

static const char *depthwise_check(const nns_args *args, nns_work *work, int64_t group) {
    const depthwise_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    if (s.c != s.o) return "a depthwise convolution must have as many output channels as input channels";
    const int64_t blocks = blocks_of(s.c), y = NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.oh, s.ow);
    if (!nns_holds(args->in_bytes[READ_X], NNS_FLOAT_BYTES(s.n, blocks, NNS_BLOCK, s.h, s.w)))
        return "the depthwise convolution's input is too small";
    if (!nns_holds(args->in_bytes[READ_WEIGHTS], NNS_FLOAT_BYTES(blocks, s.kh, s.kw, group, NNS_BLOCK)))
        return "the depthwise convolution's weights are too small";
    if (args->in_bytes[READ_BIAS] && !nns_holds(args->in_bytes[READ_BIAS], NNS_FLOAT_BYTES(blocks, NNS_BLOCK)))
        return "the depthwise convolution's bias is too small";
    if (args->in_bytes[READ_RESIDUAL] && !nns_holds(args->in_bytes[READ_RESIDUAL], y))
        return "the depthwise convolution's residual is too small";
    if (!nns_holds(args->out_bytes[0], y)) return "the depthwise convolution's output is too small";
    work->units = s.n * blocks * nns_ceil_div(s.oh, p->rows);
    work->scratch = 0;
    return NULL;
}

static void depthwise_run(const nns_args *args, int64_t unit_begin, int64_t unit_end, int64_t group,
                          void (*compute)(const kernel_geometry *, const depthwise_rows *)) {
    const depthwise_parameters *p = (const void *)args->p;
    const kernel_geometry s = p->geometry;
    const int64_t blocks = blocks_of(s.c), chunks = nns_ceil_div(s.oh, p->rows);
    const float *x = args->in[READ_X], *w = args->in[READ_WEIGHTS], *bias = args->in[READ_BIAS];
    const float *residual = args->in[READ_RESIDUAL];
    for (int64_t unit = unit_begin; unit < unit_end; unit++) {
        const int64_t plane = unit / chunks, block = plane % blocks, begin = unit % chunks * p->rows;
        const int64_t out = (plane * s.oh + begin) * s.ow * NNS_BLOCK;
        const depthwise_rows rows = {
            .x = x + plane * s.h * s.w * NNS_BLOCK,
            .w = w + block * s.kh * s.kw * group * NNS_BLOCK,
            .bias = bias ? bias + block * NNS_BLOCK : NULL,
            .residual = residual ? residual + out : NULL,
            .y = (float *)args->out[0] + out,
            .begin = begin,
            .end = nns_min_int(s.oh, begin + p->rows),
            .finish = epilogue_of(&p->activation),
        };
        compute(&s, &rows);
    }
}

#define GROUP NNS_COLUMN_1
#define NNS_TEMPLATE "convolution/depthwise.inc"
#define NNS_ROWS KERNELS_depthwise
#include "each_kernel.h"

void nns_depthwise_rows(const kernel_geometry *s, const depthwise_rows *rows) { rows_g1(s, rows); }

NNS_DEFINE_FAMILY(depthwise);
