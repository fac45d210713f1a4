/* Between float32 and int8, from int8 to int8 with other parameters, and by a table. */
#include "bytes.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

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

/* ---- int8/quantize_image: reads plain float32 x of up to 4 channels; writes x / scale as blocked int8. ------------- */

enum { IMAGE_PIXELS = 1024 }; /* pixels of a unit */

static const char *quantize_image_check(const nns_args *args, nns_work *work) {
    const int8_quantize_image_parameters *p = (const void *)args->p;
    const char *wrong = NNS_CHECK_SIZES(int8_quantize_image, args, NNS_PRODUCT(p->images, p->pixels, p->block),
                                        NNS_FLOAT_BYTES(p->images, p->channels, p->pixels));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->images * nns_ceil_div(p->pixels, IMAGE_PIXELS)};
    return NULL;
}

/* Four channels of 16 pixels as 16 words; channels from `channels` on are 0. `x` is the first channel's; `n` of its
 * pixels are there. */
NNS_INLINE i32x16 quantized_words(const float *x, int64_t pixels, int64_t n, int64_t channels, f32x16 scale,
                                  const rounding *r) {
    i32x16 words = {0};
    for (int64_t channel = 0; channel < channels; channel++) {
        f32x16 values = {0};
        memcpy(&values, x + channel * pixels, (size_t)n * sizeof(float));
        const i32x16 rounded = __builtin_convertvector(round16(values / scale, r), i32x16);
        words |= (rounded & 0xff) << (int32_t)(8 * channel);
    }
    return words;
}

/* Words k to k + 3 of `words`, each with three words of 0 behind it, and pairs likewise. */
#define FOUR_SPREAD(k) \
    __builtin_shufflevector(words, none, k, 16, 16, 16, k + 1, 16, 16, 16, k + 2, 16, 16, 16, k + 3, 16, 16, 16)
#define EIGHT_SPREAD(k)                                                                                             \
    __builtin_shufflevector(words, none, k, 16, k + 1, 16, k + 2, 16, k + 3, 16, k + 4, 16, k + 5, 16, k + 6, 16, \
                            k + 7, 16)

/* 16 pixels of `block` bytes. */
NNS_INLINE void store_words(int8_t *out, i32x16 words, int64_t block) {
    const i32x16 none = {0};
    if (block == 16) {
        const i32x16 spread[4] = {FOUR_SPREAD(0), FOUR_SPREAD(4), FOUR_SPREAD(8), FOUR_SPREAD(12)};
        memcpy(out, spread, sizeof spread);
    } else if (block == 8) {
        const i32x16 spread[2] = {EIGHT_SPREAD(0), EIGHT_SPREAD(8)};
        memcpy(out, spread, sizeof spread);
    } else {
        memcpy(out, &words, sizeof words);
    }
}

/* Called with constant channels and block. */
NNS_INLINE void quantize_pixels(const int8_quantize_image_parameters *p, int8_t *out, const float *x, int64_t begin,
                                int64_t end, int64_t channels, int64_t block) {
    const rounding r = rounding_of(p->zero, INT8_MIN, INT8_MAX);
    const f32x16 scale = splat16(nns_float_of_bits(p->scale));
    int64_t at = begin;
    for (; at + 16 <= end; at += 16)
        store_words(out + at * block, quantized_words(x + at, p->pixels, 16, channels, scale, &r), block);
    if (at < end) {
        int8_t rest[16 * 16];
        store_words(rest, quantized_words(x + at, p->pixels, end - at, channels, scale, &r), block);
        memcpy(out + at * block, rest, (size_t)((end - at) * block));
    }
}

static void quantize_image_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_quantize_image_parameters *p = (const void *)args->p;
    const int64_t parts = nns_ceil_div(p->pixels, IMAGE_PIXELS);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t image = unit / parts, first = unit % parts * IMAGE_PIXELS;
        const int64_t last = nns_min_int(first + IMAGE_PIXELS, p->pixels);
        const float *x = (const float *)args->in[0] + image * p->channels * p->pixels;
        int8_t *out = (int8_t *)args->out[0] + image * p->pixels * p->block;
        if (p->block == 16 && p->channels == 3)
            quantize_pixels(p, out, x, first, last, 3, 16);
        else if (p->block == 8 && p->channels == 3)
            quantize_pixels(p, out, x, first, last, 3, 8);
        else
            quantize_pixels(p, out, x, first, last, p->channels, p->block);
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

/* The results of TABLE_WIDTH integers by shuffles of registers: a shuffle finds a byte among 16, on ARM among 64, with VBMI
 * among 128. */
#if defined(__AVX512VBMI__)
enum { TABLE_WIDTH = 64 };
typedef struct {
    __m512i quarters[4];
} lookup;

/* The quarters of 0 to 127 first: places are the integers as they are. */
NNS_INLINE lookup lookup_of(const int8_t *table) {
    lookup t;
    for (int i = 0; i < 4; i++) t.quarters[i] = _mm512_loadu_si512(table + (128 + 64 * i) % TABLE_BYTES);
    return t;
}

NNS_INLINE void look_up(int8_t *out, const int8_t *x, const lookup *t) {
    const __m512i place = _mm512_loadu_si512(x);
    const __m512i positive = _mm512_permutex2var_epi8(t->quarters[0], place, t->quarters[1]);
    const __m512i negative = _mm512_permutex2var_epi8(t->quarters[2], place, t->quarters[3]);
    _mm512_storeu_si512(out, _mm512_mask_blend_epi8(_mm512_movepi8_mask(place), positive, negative));
}
#elif defined(__AVX512BW__)
enum { TABLE_WIDTH = 64 };
typedef struct {
    __m512i rows[16];
} lookup;

NNS_INLINE lookup lookup_of(const int8_t *table) {
    lookup t;
    for (int i = 0; i < 16; i++) t.rows[i] = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(table + 16 * i)));
    return t;
}

NNS_INLINE void look_up(int8_t *out, const int8_t *x, const lookup *t) {
    const __m512i place = _mm512_xor_si512(_mm512_loadu_si512(x), _mm512_set1_epi8(INT8_MIN));
    const __m512i nibble = _mm512_set1_epi8(15), column = _mm512_and_si512(place, nibble);
    const __m512i row = _mm512_and_si512(_mm512_srli_epi16(place, 4), nibble);
    __m512i result = _mm512_setzero_si512();
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) {
        const __mmask64 here = _mm512_cmpeq_epi8_mask(row, _mm512_set1_epi8((char)i));
        result = _mm512_mask_shuffle_epi8(result, here, t->rows[i], column);
    }
    _mm512_storeu_si512(out, result);
}
#elif defined(__aarch64__)
enum { TABLE_WIDTH = 16 };
typedef struct {
    uint8x16x4_t quarters[4];
} lookup;

NNS_INLINE lookup lookup_of(const int8_t *table) {
    lookup t;
    for (int i = 0; i < 16; i++) t.quarters[i / 4].val[i % 4] = vld1q_u8((const uint8_t *)table + 16 * i);
    return t;
}

NNS_INLINE void look_up(int8_t *out, const int8_t *x, const lookup *t) {
    const uint8x16_t place = veorq_u8(vld1q_u8((const uint8_t *)x), vdupq_n_u8(128));
    uint8x16_t result = vqtbl4q_u8(t->quarters[0], place);
    for (int i = 1; i < 4; i++)
        result = vqtbx4q_u8(result, t->quarters[i], vsubq_u8(place, vdupq_n_u8((uint8_t)(64 * i))));
    vst1q_u8((uint8_t *)out, result);
}
#else
enum { TABLE_WIDTH = 1 };
typedef struct {
    const int8_t *table;
} lookup;

NNS_INLINE lookup lookup_of(const int8_t *table) { return (lookup){table - INT8_MIN}; }

NNS_INLINE void look_up(int8_t *out, const int8_t *x, const lookup *t) { *out = t->table[*x]; }
#endif

static void table_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int8_table_parameters *p = (const void *)args->p;
    const int8_t *x = args->in[0], *table = args->in[1];
    int8_t *out = args->out[0];
    const lookup t = lookup_of(table);
    const int64_t last = nns_min_int(end * BYTES_CHUNK, p->count);
    int64_t at = begin * BYTES_CHUNK;
    for (; at + TABLE_WIDTH <= last; at += TABLE_WIDTH) look_up(out + at, x + at, &t);
    for (; at < last; at++) out[at] = table[x[at] - INT8_MIN];
}

NNS_DEFINE_FAMILY(int8_quantize);
NNS_DEFINE_FAMILY(int8_quantize_image);
NNS_DEFINE_FAMILY(int8_dequantize);
NNS_DEFINE_FAMILY(int8_requantize);
NNS_DEFINE_FAMILY(int8_table);
