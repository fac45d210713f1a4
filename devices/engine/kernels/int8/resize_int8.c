/* resize/nearest_bytes: as resize/nearest, of elements of one byte. Tables hold the source of each output row and column;
 * every index is clamped to the plane when it is used. */
#include "memory_bound/memory_bound.h"

enum { INDEX_BYTES = sizeof(int32_t) };

NNS_INLINE int64_t within(int32_t index, int64_t size) { return nns_min_int(nns_max_int(index, 0), size - 1); }

static const char *nearest_check(const nns_args *args, nns_work *work) {
    const resize_bytes_parameters *p = (const void *)args->p;
    const char *wrong =
        NNS_CHECK_SIZES(resize_bytes, args, NNS_PRODUCT(p->planes, p->lanes, p->out_height, p->out_width),
                        NNS_PRODUCT(p->planes, p->lanes, p->height, p->width), INDEX_BYTES * p->out_height,
                        INDEX_BYTES * p->out_width);
    if (wrong) return wrong;
    *work = (nns_work){.units = p->planes * p->out_height};
    return NULL;
}

/* Called with constant lanes, so that a pixel is one move. */
NNS_INLINE void nearest_row(char *out, const char *x, const int32_t *columns, int64_t n, int64_t width, int64_t lanes) {
    for (int64_t ow = 0; ow < n; ow++) memcpy(out + ow * lanes, x + within(columns[ow], width) * lanes, (size_t)lanes);
}

static void nearest_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const resize_bytes_parameters *p = (const void *)args->p;
    const int64_t lanes = p->lanes, width = p->width, out_width = p->out_width;
    const int32_t *rows = args->in[1], *columns = args->in[2];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / p->out_height * p->height + within(rows[unit % p->out_height], p->height);
        const char *x = (const char *)args->in[0] + row * width * lanes;
        char *out = (char *)args->out[0] + unit * out_width * lanes;
        switch (lanes) {
        case 1: nearest_row(out, x, columns, out_width, width, 1); break;
        case 4: nearest_row(out, x, columns, out_width, width, 4); break;
        case 8: nearest_row(out, x, columns, out_width, width, 8); break;
        default: nearest_row(out, x, columns, out_width, width, 16);
        }
    }
}

NNS_DEFINE_FAMILY(resize_bytes);
