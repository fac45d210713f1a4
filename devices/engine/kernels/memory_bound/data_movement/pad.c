/* Planes with a border of one value. */
#include "memory_bound/memory_bound.h"

/* ---- pad: reads x, writes planes that hold those of x at `top` and `left`, and `value` elsewhere. ----------------- */

static const char *pad_check(const nns_args *args, nns_work *work) {
    const pad_parameters *p = (const void *)args->p;
    if (p->top + p->height > p->out_height || p->left + p->width > p->out_width) return "the plane is too large";
    const char *wrong =
        NNS_CHECK_SIZES(pad, args, NNS_FLOAT_BYTES(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_FLOAT_BYTES(p->planes, p->lanes, p->height, p->width));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

static void fill(float *out, int64_t n, float value) {
    for (int64_t i = 0; i < n; i++) out[i] = value;
}

static void pad_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const pad_parameters *p = (const void *)args->p;
    const float value = nns_float_of_bits(p->value);
    const int64_t row_floats = p->width * p->lanes, out_floats = p->out_width * p->lanes, left = p->left * p->lanes;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t plane = unit / p->out_height, row = unit % p->out_height - p->top;
        float *out = (float *)args->out[0] + unit * out_floats;
        if (row < 0 || row >= p->height) {
            fill(out, out_floats, value);
        } else {
            const float *x = (const float *)args->in[0] + (plane * p->height + row) * row_floats;
            fill(out, left, value);
            memcpy(out + left, x, (size_t)row_floats * sizeof(float));
            fill(out + left + row_floats, out_floats - left - row_floats, value);
        }
        clamp_and_finish(out, out_floats, &activation);
    }
}

NNS_DEFINE_FAMILY(pad);
