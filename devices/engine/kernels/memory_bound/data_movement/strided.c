/* Copies that change the order of elements, or leave some out: transpositions and slices. `strided/copy` takes
 * elements of any type and blocks of these, `strided/channels_last` float32. */
#include "memory_bound/memory_bound.h"

/* ---- strided/copy: reads x, writes a dense tensor of six dimensions. ------------------------------------------------
 * `sizes` are its dimensions, `strides` the elements of x from one index to the next along each of them. */

/* A unit is a tile of the last two dimensions. Either its rows or its columns are neighbours in x, and a tile uses
 * every cache line that it reads fully while the line is in the cache. */
enum { TILE_ROWS = 16, TILE_COLUMNS = 1024 };

static int64_t tiles_down(const strided_copy_parameters *p) { return nns_ceil_div(p->sizes[4], TILE_ROWS); }

static int64_t tiles_across(const strided_copy_parameters *p) { return nns_ceil_div(p->sizes[5], TILE_COLUMNS); }

static const char *copy_check(const nns_args *args, nns_work *work) {
    const strided_copy_parameters *p = (const void *)args->p;
    int64_t needed;
    if (__builtin_add_overflow(p->first, 1, &needed)) return "the first element is out of range";
    for (int i = 0; i < 6; i++) {
        const int64_t size = p->sizes[i], stride = p->strides[i];
        int64_t span;
        if (stride > args->in_bytes[0] || __builtin_mul_overflow(size - 1, stride, &span) ||
            __builtin_add_overflow(needed, span, &needed))
            return "a size or stride is out of range";
    }
    const char *wrong = NNS_CHECK_SIZES(strided_copy, args, NNS_PRODUCT(nns_product(p->sizes, 6), p->bytes),
                                        NNS_PRODUCT(needed, p->bytes));
    if (wrong) return wrong;
    *work = (nns_work){.units = nns_product(p->sizes, 4) * tiles_down(p) * tiles_across(p)};
    return NULL;
}

/* `rows` × `columns` elements of `bytes`, a constant, to rows of `width`; all counts but `bytes` are elements. */
NNS_INLINE void copy_tile(char *out, int64_t width, const char *x, int64_t rows, int64_t columns, int64_t row_stride,
                          int64_t column_stride, int64_t bytes) {
    if (column_stride == 1) {
        for (int64_t row = 0; row < rows; row++)
            memcpy(out + row * width * bytes, x + row * row_stride * bytes, (size_t)(columns * bytes));
        return;
    }
    for (int64_t first = 0; first < columns; first += 16) {
        const int64_t last = nns_min_int(first + 16, columns);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = first; column < last; column++)
                memcpy(out + (row * width + column) * bytes, x + (row * row_stride + column * column_stride) * bytes,
                       (size_t)bytes);
    }
}

static void copy_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const strided_copy_parameters *p = (const void *)args->p;
    const int64_t *sizes = p->sizes, *strides = p->strides;
    const int64_t down = tiles_down(p), across = tiles_across(p), bytes = p->bytes;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t column = unit % across * TILE_COLUMNS, row = unit / across % down * TILE_ROWS;
        const int64_t outer = unit / across / down;
        const int64_t rows = nns_min_int(TILE_ROWS, sizes[4] - row),
                      columns = nns_min_int(TILE_COLUMNS, sizes[5] - column);
        int64_t at = p->first + row * strides[4] + column * strides[5];
        for (int64_t i = 3, rest = outer; i >= 0; rest /= sizes[i], i--) at += rest % sizes[i] * strides[i];
        const char *x = (const char *)args->in[0] + at * bytes;
        char *out = (char *)args->out[0] + ((outer * sizes[4] + row) * sizes[5] + column) * bytes;
        switch (bytes) {
        case 1: copy_tile(out, sizes[5], x, rows, columns, strides[4], strides[5], 1); break;
        case 2: copy_tile(out, sizes[5], x, rows, columns, strides[4], strides[5], 2); break;
        case 4: copy_tile(out, sizes[5], x, rows, columns, strides[4], strides[5], 4); break;
        case 8: copy_tile(out, sizes[5], x, rows, columns, strides[4], strides[5], 8); break;
        default: copy_tile(out, sizes[5], x, rows, columns, strides[4], strides[5], 16);
        }
    }
}

/* ---- strided/channels_last: reads a blocked tensor, writes images × pixels × channels. --------------------------- */

enum { PART_PIXELS = 64 };

static const char *channels_last_check(const nns_args *args, nns_work *work) {
    const strided_channels_last_parameters *p = (const void *)args->p;
    const int64_t blocks = nns_ceil_div(p->channels, p->block);
    const char *wrong = NNS_CHECK_SIZES(strided_channels_last, args, NNS_FLOAT_BYTES(p->images, p->channels, p->pixels),
                                        NNS_FLOAT_BYTES(p->images, blocks, p->pixels, p->block));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->images * nns_ceil_div(p->pixels, PART_PIXELS)};
    return NULL;
}

/* One pixel: `channels` floats, `block` at a time from places that are `plane` apart. */
NNS_INLINE void gather_pixel(float *out, const float *x, int64_t channels, int64_t plane, int64_t block) {
    for (; channels >= block; channels -= block, out += block, x += plane)
        memcpy(out, x, (size_t)block * sizeof(float));
    for (int64_t lane = 0; lane < channels; lane++) out[lane] = x[lane];
}

static void channels_last_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const strided_channels_last_parameters *p = (const void *)args->p;
    const int64_t channels = p->channels, pixels = p->pixels, block = p->block, plane = pixels * block;
    const int64_t parts = nns_ceil_div(pixels, PART_PIXELS), image_floats = nns_ceil_div(channels, block) * plane;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t image = unit / parts, first = unit % parts * PART_PIXELS;
        const float *x = (const float *)args->in[0] + image * image_floats;
        float *out = (float *)args->out[0] + image * pixels * channels;
        for (int64_t pixel = first; pixel < nns_min_int(first + PART_PIXELS, pixels); pixel++) {
            switch (block) {
            case 4: gather_pixel(out + pixel * channels, x + pixel * 4, channels, plane, 4); break;
            case 8: gather_pixel(out + pixel * channels, x + pixel * 8, channels, plane, 8); break;
            default: gather_pixel(out + pixel * channels, x + pixel * 16, channels, plane, 16);
            }
        }
    }
}

/* ---- strided/repeat: reads a blocked tensor, writes one with each channel `times` times. ------------------------- */

static int64_t repeat_blocks(const strided_repeat_parameters *p, int64_t times) {
    return nns_ceil_div(p->channels * times, p->block);
}

static const char *repeat_check(const nns_args *args, nns_work *work) {
    const strided_repeat_parameters *p = (const void *)args->p;
    const int64_t blocks = NNS_PRODUCT(p->images, repeat_blocks(p, p->times));
    const char *wrong = NNS_CHECK_SIZES(strided_repeat, args, NNS_FLOAT_BYTES(blocks, p->pixels, p->block),
                                        NNS_FLOAT_BYTES(p->images, repeat_blocks(p, 1), p->pixels, p->block));
    if (wrong) return wrong;
    *work = (nns_work){.units = blocks};
    return NULL;
}

/* The lanes from `x` on of `pixels` pixels. Called with constant block and times, so that a pixel is a shuffle. */
NNS_INLINE void repeat_lanes(float *out, const float *x, int64_t pixels, int64_t block, int64_t times) {
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        for (int64_t lane = 0; lane < block; lane++) out[pixel * block + lane] = x[pixel * block + lane / times];
}

static void repeat_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const strided_repeat_parameters *p = (const void *)args->p;
    const int64_t blocks = repeat_blocks(p, p->times), plane = p->pixels * p->block;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % blocks * p->block / p->times; /* channel of the input */
        const float *image = (const float *)args->in[0] + unit / blocks * repeat_blocks(p, 1) * plane;
        const float *x = image + first / p->block * plane + first % p->block;
        float *out = (float *)args->out[0] + unit * plane;
        switch (p->block * 8 + p->times) {
        case 4 * 8 + 2: repeat_lanes(out, x, p->pixels, 4, 2); break;
        case 8 * 8 + 2: repeat_lanes(out, x, p->pixels, 8, 2); break;
        case 16 * 8 + 2: repeat_lanes(out, x, p->pixels, 16, 2); break;
        case 4 * 8 + 4: repeat_lanes(out, x, p->pixels, 4, 4); break;
        case 8 * 8 + 4: repeat_lanes(out, x, p->pixels, 8, 4); break;
        default: repeat_lanes(out, x, p->pixels, 16, 4);
        }
    }
}

NNS_DEFINE_FAMILY(strided_copy);
NNS_DEFINE_FAMILY(strided_channels_last);
NNS_DEFINE_FAMILY(strided_repeat);
