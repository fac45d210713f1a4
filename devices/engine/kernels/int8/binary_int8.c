/* int8/binary: sums and products of two int8 tensors.
 *
 * The tensors are `rows` rows of `row` integers. With `lanes`, y has that many integers per row and `period` rows, which
 * repeat, as in memory_bound/eltwise.c; with 0 it has the shape of x. A sum is (x - x_zero) * x_scale + (y - y_zero) *
 * y_scale, a product (x - x_zero) * (y - y_zero) * x_scale, in steps of the result. */
#include "bytes.h"

enum { SUM, PRODUCT };

static const char *binary_check(const nns_args *args, nns_work *work) {
    const int8_binary_parameters *p = (const void *)args->p;
    const int64_t count = NNS_PRODUCT(p->rows, p->row);
    if (p->lanes && (p->row % p->lanes || p->period < 1))
        return "lanes must divide a row, and the period must be positive";
    *work = (nns_work){.units = count < 0 ? 0 : nns_ceil_div(count, CHUNK)};
    return NNS_CHECK_SIZES(int8_binary, args, count, count, p->lanes ? NNS_PRODUCT(p->period, p->lanes) : count);
}

/* What the steps of a span have in common. */
typedef struct {
    float x_zero, y_zero, x_scale, y_scale;
    rounding r;
} operands;

NNS_INLINE i8x16 binary16(int64_t op, i8x16 x, f32x16 y, const operands *o) {
    const f32x16 left = floats_of(x) - o->x_zero, right = y - o->y_zero;
    return round16(op == SUM ? left * o->x_scale + right * o->y_scale : left * right * o->x_scale, &o->r);
}

/* out[0..n) of x and y; y is a vector that repeats if `repeated`, else n integers. */
NNS_INLINE void binary_span(int64_t op, int8_t *out, const int8_t *x, const int8_t *y, int64_t n, int repeated,
                            i8x16 same, const operands *o) {
    const f32x16 right = floats_of(same);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        bytes_store(out + i, binary16(op, bytes_load(x + i), repeated ? right : floats_of(bytes_load(y + i)), o));
    if (i < n) {
        const f32x16 rest = repeated ? right : floats_of(bytes_load_some(y + i, n - i));
        bytes_store_some(out + i, binary16(op, bytes_load_some(x + i, n - i), rest, o), n - i);
    }
}

NNS_INLINE void binary_unit(int64_t op, const nns_args *args, int64_t at, int64_t n, const operands *o) {
    const int8_binary_parameters *p = (const void *)args->p;
    const int8_t *x = args->in[0], *y = args->in[1];
    int8_t *out = args->out[0];
    if (p->lanes == 0) {
        binary_span(op, out + at, x + at, y + at, n, 0, (i8x16){0}, o);
        return;
    }
    for (int64_t end = at + n; at < end;) {
        const int64_t span = nns_min_int(p->row - at % p->row, end - at);
        const i8x16 same = bytes_repeat(y + at / p->row % p->period * p->lanes, p->lanes);
        binary_span(op, out + at, x + at, y, span, 1, same, o);
        at += span;
    }
}

static void binary_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_binary_parameters *p = (const void *)args->p;
    const operands o = {(float)p->x_zero, (float)p->y_zero, nns_float_of_bits(p->x_scale),
                        nns_float_of_bits(p->y_scale), rounding_of(p->zero, p->low, p->high)};
    const int64_t count = p->rows * p->row;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t at = unit * CHUNK, n = nns_min_int(CHUNK, count - at);
        if (p->op == SUM)
            binary_unit(SUM, args, at, n, &o);
        else
            binary_unit(PRODUCT, args, at, n, &o);
    }
}

NNS_DEFINE_FAMILY(int8_binary);
