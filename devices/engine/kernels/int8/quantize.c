/* Between float32 and int8, from int8 to int8 with other parameters, and by a table. */
#include "bytes.h"

enum { BYTES_CHUNK = CHUNK_BYTES / 4 }; /* elements of a unit */

/* ---- int8/quantize: reads float32 x; writes x / scale as int8. ---------------------------------------------------- */

static const char *quantize_check(const nns_args *args, nns_work *work) {
    const int8_quantize_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = nns_ceil_div(p->count, BYTES_CHUNK)};
    return NNS_CHECK_SIZES(int8_quantize, args, p->count, NNS_FLOAT_BYTES(p->count));
}

static void quantize_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_quantize_parameters *p = (const void *)args->p;
    const rounding r = rounding_of(p->zero, INT8_MIN, INT8_MAX);
    const f32x16 scale = splat16(nns_float_of_bits(p->scale));
    const float *x = args->in[0];
    int8_t *out = args->out[0];
    const int64_t last = nns_min_int(end * BYTES_CHUNK, p->count);
    int64_t at = begin * BYTES_CHUNK;
    for (; at + 16 <= last; at += 16) bytes_store(out + at, round16(load16(x + at) / scale, &r));
    if (at < last) {
        f32x16 rest = {0};
        memcpy(&rest, x + at, (size_t)(last - at) * sizeof(float));
        bytes_store_some(out + at, round16(rest / scale, &r), last - at);
    }
}

/* ---- int8/dequantize: reads int8 x; writes (x - zero) * scale as float32. ----------------------------------------- */

static const char *dequantize_check(const nns_args *args, nns_work *work) {
    const int8_dequantize_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = nns_ceil_div(p->count, BYTES_CHUNK)};
    return NNS_CHECK_SIZES(int8_dequantize, args, NNS_FLOAT_BYTES(p->count), p->count);
}

static void dequantize_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_dequantize_parameters *p = (const void *)args->p;
    const f32x16 zero = splat16((float)p->zero), scale = splat16(nns_float_of_bits(p->scale));
    const int8_t *x = args->in[0];
    float *out = args->out[0];
    const int64_t last = nns_min_int(end * BYTES_CHUNK, p->count);
    int64_t at = begin * BYTES_CHUNK;
    for (; at + 16 <= last; at += 16) store16(out + at, (floats_of(bytes_load(x + at)) - zero) * scale);
    if (at < last) {
        const f32x16 rest = (floats_of(bytes_load_some(x + at, last - at)) - zero) * scale;
        memcpy(out + at, &rest, (size_t)(last - at) * sizeof(float));
    }
}

/* ---- int8/requantize: reads rows of int8; writes them with other parameters to rows of `total`, from `offset` on. -- */

static const char *requantize_check(const nns_args *args, nns_work *work) {
    const int8_requantize_parameters *p = (const void *)args->p;
    int64_t end;
    if (__builtin_add_overflow(p->offset, p->row, &end) || end > p->total) return "the rows do not fit the output";
    const int64_t count = NNS_PRODUCT(p->outer, p->row);
    const char *wrong = NNS_CHECK_SIZES(int8_requantize, args, NNS_PRODUCT(p->outer, p->total), count);
    if (wrong) return wrong;
    *work = (nns_work){.units = nns_ceil_div(count, BYTES_CHUNK)};
    return NULL;
}

NNS_INLINE void requantize(int8_t *out, const int8_t *x, int64_t n, float zero, float scale, const rounding *r) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) bytes_store(out + i, round16((floats_of(bytes_load(x + i)) - zero) * scale, r));
    if (i < n)
        bytes_store_some(out + i, round16((floats_of(bytes_load_some(x + i, n - i)) - zero) * scale, r), n - i);
}

static void requantize_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_requantize_parameters *p = (const void *)args->p;
    const rounding r = rounding_of(p->zero, p->low, p->high);
    const float scale = nns_float_of_bits(p->scale), zero = (float)p->x_zero;
    const int64_t row = p->row, last = nns_min_int(end * BYTES_CHUNK, p->outer * row);
    for (int64_t at = begin * BYTES_CHUNK; at < last;) {
        const int64_t column = at % row, n = nns_min_int(row - column, last - at);
        int8_t *to = (int8_t *)args->out[0] + at / row * p->total + p->offset + column;
        requantize(to, (const int8_t *)args->in[0] + at, n, zero, scale, &r);
        at += n;
    }
}

/* ---- int8/table: reads int8 x and the results of -128 to 127; writes the result of each x. ------------------------ */

enum { TABLE_BYTES = 256 };

static const char *table_check(const nns_args *args, nns_work *work) {
    const int8_table_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = nns_ceil_div(p->count, BYTES_CHUNK)};
    return NNS_CHECK_SIZES(int8_table, args, p->count, p->count, TABLE_BYTES);
}

static void table_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_table_parameters *p = (const void *)args->p;
    const int8_t *x = args->in[0], *table = (const int8_t *)args->in[1] - INT8_MIN;
    int8_t *out = args->out[0];
    const int64_t last = nns_min_int(end * BYTES_CHUNK, p->count);
    for (int64_t at = begin * BYTES_CHUNK; at < last; at++) out[at] = table[x[at]];
}

NNS_DEFINE_FAMILY(int8_quantize);
NNS_DEFINE_FAMILY(int8_dequantize);
NNS_DEFINE_FAMILY(int8_requantize);
NNS_DEFINE_FAMILY(int8_table);
