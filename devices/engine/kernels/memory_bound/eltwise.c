/* Element-wise kernels: activation, arithmetic with an operand of the same shape or one per channel, affine, PRelu.
 *
 * Their tensors are `rows` rows of `row` floats, one per channel (or block of channels) of one image; a row repeats
 * `lanes` channels. An operand per channel has `lanes` floats per row and `period` rows, which repeat: one per
 * channel (or block) if it is the same for all images, else `rows`. */
#include "memory_bound.h"

enum { OP_ADD, OP_SUBTRACT, OP_MULTIPLY, OP_DIVIDE, OP_MAXIMUM, OP_MINIMUM };

/* ---- eltwise/unary: reads x; writes activation(x). --------------------------------------------------------------- */

static const char *unary_check(const nns_args *args, nns_work *work) {
    const eltwise_unary_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = nns_ceil_div(p->count, CHUNK)};
    return NNS_CHECK_SIZES(eltwise_unary, args, NNS_FLOAT_BYTES(p->count), NNS_FLOAT_BYTES(p->count));
}

static void unary_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const eltwise_unary_parameters *p = (const void *)args->p;
    const epilogue activation = epilogue_of(&p->activation);
    const float *x = args->in[0];
    float *out = args->out[0];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t at = unit * CHUNK;
        const int64_t n = nns_min_int(CHUNK, p->count - at);
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            store16(out + at + i, clamp16(load16(x + at + i), &activation));
        for (; i < n; i++)
            out[at + i] = clamp1(x[at + i], &activation);
        finish(out + at, n, &activation);
    }
}

/* ---- eltwise/binary: reads x, y; writes activation(x op y). ------------------------------------------------------ */

/* The larger and the smaller of two numbers is NaN if one of them is, as in NumPy and ONNX Runtime: x is taken where it
 * is NaN, and y where a comparison with it fails. */

NNS_INLINE f32x16 apply16(int64_t op, f32x16 x, f32x16 y) {
    switch (op) {
    case OP_ADD: return x + y;
    case OP_SUBTRACT: return x - y;
    case OP_MULTIPLY: return x * y;
    case OP_DIVIDE: return x / y;
    case OP_MAXIMUM: return CHOOSE((x > y) | (x != x), x, y);
    default: return CHOOSE((x < y) | (x != x), x, y);
    }
}

NNS_INLINE float apply1(int64_t op, float x, float y) {
    switch (op) {
    case OP_ADD: return x + y;
    case OP_SUBTRACT: return x - y;
    case OP_MULTIPLY: return x * y;
    case OP_DIVIDE: return x / y;
    case OP_MAXIMUM: return x > y || x != x ? x : y;
    default: return x < y || x != x ? x : y;
    }
}

/* out[0..n) = clamp(x op y); y is a vector that repeats if `repeated`, else n floats. */
NNS_INLINE void binary_span(int64_t op, float *out, const float *x, const float *y, int64_t n, int repeated,
                            f32x16 same, const epilogue *activation) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 right = repeated ? same : load16(y + i);
        store16(out + i, clamp16(apply16(op, load16(x + i), right), activation));
    }
    for (int64_t lane = 0; i < n; i++, lane++)
        out[i] = clamp1(apply1(op, x[i], repeated ? same[lane] : y[i]), activation);
}

static const char *binary_check(const nns_args *args, nns_work *work) {
    const eltwise_binary_parameters *p = (const void *)args->p;
    const int64_t count = NNS_PRODUCT(p->rows, p->row), bytes = NNS_FLOAT_BYTES(count);
    if (p->lanes && (p->row % p->lanes || p->period < 1))
        return "lanes must divide a row, and the period must be positive";
    *work = (nns_work){.units = count < 0 ? 0 : nns_ceil_div(count, CHUNK)};
    return NNS_CHECK_SIZES(eltwise_binary, args, bytes, bytes, p->lanes ? NNS_FLOAT_BYTES(p->period, p->lanes) : bytes);
}

NNS_INLINE void binary_unit(int64_t op, const nns_args *args, int64_t at, int64_t n, const epilogue *activation) {
    const float *x = args->in[0], *y = args->in[1];
    float *out = args->out[0];
    const eltwise_binary_parameters *p = (const void *)args->p;
    const int64_t row = p->row, lanes = p->lanes, period = p->period;
    if (lanes == 0) {
        binary_span(op, out + at, x + at, y + at, n, 0, splat16(0), activation);
        return;
    }
    for (int64_t end = at + n; at < end;) {
        const int64_t span = nns_min_int(row - at % row, end - at);
        const f32x16 same = repeat16(y + at / row % period * lanes, lanes);
        binary_span(op, out + at, x + at, y, span, 1, same, activation);
        at += span;
    }
}

static void binary_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const eltwise_binary_parameters *p = (const void *)args->p;
    const int64_t count = p->rows * p->row;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t at = unit * CHUNK;
        const int64_t n = nns_min_int(CHUNK, count - at);
        switch (p->op) {
        case OP_ADD: binary_unit(OP_ADD, args, at, n, &activation); break;
        case OP_SUBTRACT: binary_unit(OP_SUBTRACT, args, at, n, &activation); break;
        case OP_MULTIPLY: binary_unit(OP_MULTIPLY, args, at, n, &activation); break;
        case OP_DIVIDE: binary_unit(OP_DIVIDE, args, at, n, &activation); break;
        case OP_MAXIMUM: binary_unit(OP_MAXIMUM, args, at, n, &activation); break;
        default: binary_unit(OP_MINIMUM, args, at, n, &activation);
        }
        finish((float *)args->out[0] + at, n, &activation);
    }
}

/* ---- eltwise/affine: reads x, scale, shift; writes activation(x * scale + shift). -------------------------------- */

static const char *affine_check(const nns_args *args, nns_work *work) {
    const eltwise_affine_parameters *p = (const void *)args->p;
    const int64_t count = NNS_PRODUCT(p->rows, p->row), bytes = NNS_FLOAT_BYTES(count);
    const int64_t channels = NNS_FLOAT_BYTES(p->period, p->lanes);
    if (p->row % p->lanes) return "lanes do not divide a row";
    *work = (nns_work){.units = count < 0 ? 0 : nns_ceil_div(count, CHUNK)};
    return NNS_CHECK_SIZES(eltwise_affine, args, bytes, bytes, channels, channels);
}

static void affine_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *x = args->in[0], *scales = args->in[1], *shifts = args->in[2];
    float *out = args->out[0];
    const eltwise_affine_parameters *p = (const void *)args->p;
    const int64_t row = p->row, lanes = p->lanes, period = p->period, count = p->rows * row;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit * CHUNK, last = nns_min_int(first + CHUNK, count);
        for (int64_t at = first; at < last;) {
            const int64_t stop = at + nns_min_int(row - at % row, last - at);
            const int64_t channel = at / row % period * lanes;
            const f32x16 scale = repeat16(scales + channel, lanes), shift = repeat16(shifts + channel, lanes);
            for (; at + 16 <= stop; at += 16)
                store16(out + at, clamp16(load16(x + at) * scale + shift, &activation));
            for (int64_t lane = 0; at < stop; at++, lane++)
                out[at] = clamp1(x[at] * scale[lane] + shift[lane], &activation);
        }
        finish(out + first, last - first, &activation);
    }
}

/* ---- eltwise/prelu: reads x, slope; writes activation(x < 0 ? x * slope : x). ------------------------------------ */

static const char *prelu_check(const nns_args *args, nns_work *work) {
    const eltwise_prelu_parameters *p = (const void *)args->p;
    const int64_t count = NNS_PRODUCT(p->rows, p->row), bytes = NNS_FLOAT_BYTES(count);
    if (p->row % p->lanes) return "lanes do not divide a row";
    *work = (nns_work){.units = count < 0 ? 0 : nns_ceil_div(count, CHUNK)};
    return NNS_CHECK_SIZES(eltwise_prelu, args, bytes, bytes, NNS_FLOAT_BYTES(p->period, p->lanes));
}

static void prelu_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *x = args->in[0], *slopes = args->in[1];
    float *out = args->out[0];
    const eltwise_prelu_parameters *p = (const void *)args->p;
    const int64_t row = p->row, lanes = p->lanes, count = p->rows * row;
    const epilogue activation = epilogue_of(&p->activation);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit * CHUNK, last = nns_min_int(first + CHUNK, count);
        for (int64_t at = first; at < last;) {
            const int64_t stop = at + nns_min_int(row - at % row, last - at);
            const f32x16 slope = repeat16(slopes + at / row % p->period * lanes, lanes);
            for (; at + 16 <= stop; at += 16) {
                const f32x16 value = load16(x + at);
                store16(out + at, clamp16(CHOOSE(value < 0.0f, value * slope, value), &activation));
            }
            for (int64_t lane = 0; at < stop; at++, lane++)
                out[at] = clamp1(x[at] < 0.0f ? x[at] * slope[lane] : x[at], &activation);
        }
        finish(out + first, last - first, &activation);
    }
}

NNS_DEFINE_FAMILY(eltwise_unary);
NNS_DEFINE_FAMILY(eltwise_binary);
NNS_DEFINE_FAMILY(eltwise_affine);
NNS_DEFINE_FAMILY(eltwise_prelu);
