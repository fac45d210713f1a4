/* Concatenation. `rows` copies rows of bytes, of any element type: any axis of plain tensors, and blocked ones whose
 * channels fill their blocks. `lanes` joins blocked float32 tensors with any channel counts. A step has at most
 * NNS_MAX_READS inputs, so a longer concatenation takes several steps, each of which writes a part of the output from
 * `offset` on. */
#include "memory_bound.h"

/* ---- concat/rows: reads the inputs and writes their rows one after another to each outer row, from `offset` on. -- */

static const char *rows_check(const nns_args *args, nns_work *work) {
    const concat_rows_parameters *p = (const void *)args->p;
    int64_t end = p->offset;
    for (int32_t i = 0; i < args->n_in; i++) {
        if (!nns_holds(args->in_bytes[i], NNS_PRODUCT(p->outer, p->sizes[i])))
            return "concat/rows: an input is smaller than its rows";
        if (__builtin_add_overflow(end, p->sizes[i], &end)) return "concat/rows: rows too long";
    }
    if (end > p->total || !nns_holds(args->out_bytes[0], NNS_PRODUCT(p->outer, p->total)))
        return "concat/rows: the inputs' rows do not fit the output";
    *work = (nns_work){.units = nns_ceil_div(p->outer * (end - p->offset), CHUNK_BYTES)};
    return NULL;
}

static void rows_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const concat_rows_parameters *p = (const void *)args->p;
    const int64_t *lengths = p->sizes, offset = p->offset, total = p->total;
    int64_t joined = 0;
    for (int32_t i = 0; i < args->n_in; i++) joined += lengths[i];
    const int64_t last = nns_min_int(end * CHUNK_BYTES, p->outer * joined);
    /* `at` counts the bytes that this step writes */
    for (int64_t at = begin * CHUNK_BYTES; at < last;) {
        const int64_t row = at / joined;
        int64_t column = at % joined;
        int32_t i = 0;
        while (column >= lengths[i]) column -= lengths[i++];
        const int64_t n = nns_min_int(lengths[i] - column, last - at);
        char *to = (char *)args->out[0] + row * total + offset + at % joined;
        memcpy(to, (const char *)args->in[i] + row * lengths[i] + column, (size_t)n);
        at += n;
    }
}

/* ---- concat/lanes: reads blocked inputs; writes channels [offset, offset + their sum) of the blocked output. --------
 * Lanes of the first written block below `offset` are kept, lanes of the last one above become zero. */

static const char *lanes_check(const nns_args *args, nns_work *work) {
    const concat_lanes_parameters *p = (const void *)args->p;
    const int64_t block = p->block;
    int64_t end = p->offset;
    for (int32_t i = 0; i < args->n_in; i++) {
        const int64_t channels = p->channels[i];
        if (!nns_holds(args->in_bytes[i],
                       NNS_FLOAT_BYTES(p->images, nns_ceil_div(channels, block), p->pixels, block)))
            return "concat/lanes: an input is smaller than its shape";
        if (__builtin_add_overflow(end, channels, &end)) return "concat/lanes: too many channels";
    }
    if (end > p->total || !nns_holds(args->out_bytes[0],
                                     NNS_FLOAT_BYTES(p->images, nns_ceil_div(p->total, block), p->pixels, block)))
        return "concat/lanes: the inputs' channels do not fit the output";
    *work = (nns_work){.units = end == p->offset ? 0 : p->images * (nns_ceil_div(end, block) - p->offset / block)};
    return NULL;
}

/* Lanes [lane, lane + lanes) of an output block come from the pixels at `from`, `shift` floats away. */
typedef struct {
    const float *from;
    int64_t shift, lane, lanes;
} piece;

#define LANES 4
#include "concat_lanes.inc"

#define LANES 8
#include "concat_lanes.inc"

#define LANES 16
#include "concat_lanes.inc"

/* Finds the sources of the channels of output block `index` of image `image`; returns the number of pieces. */
static int find_pieces(const nns_args *args, int64_t image, int64_t index, piece *pieces) {
    const concat_lanes_parameters *p = (const void *)args->p;
    const int64_t pixels = p->pixels, block = p->block, low = index * block, high = low + block;
    int n = 0;
    int64_t first = p->offset;
    for (int32_t i = 0; i < args->n_in && first < high; i++) {
        const int64_t channels = p->channels[i], blocks = nns_ceil_div(channels, block);
        int64_t channel = nns_max_int(first, low);
        const int64_t end = nns_min_int(first + channels, high);
        while (channel < end) {
            const int64_t source = channel - first, source_lane = source % block, lane = channel - low;
            const int64_t lanes = nns_min_int(block - source_lane, end - channel);
            const float *from = (const float *)args->in[i] + (image * blocks + source / block) * pixels * block;
            pieces[n++] = (piece){from, source_lane - lane, lane, lanes};
            channel += lanes;
        }
        first += channels;
    }
    return n;
}

static void lanes_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const concat_lanes_parameters *p = (const void *)args->p;
    const int64_t pixels = p->pixels, block = p->block, first_block = p->offset / block;
    int64_t last = p->offset;
    for (int32_t i = 0; i < args->n_in; i++) last += p->channels[i];
    const int64_t written = nns_ceil_div(last, block) - first_block, blocks = nns_ceil_div(p->total, block);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t image = unit / written, index = first_block + unit % written;
        float *out = (float *)args->out[0] + (image * blocks + index) * pixels * block;
        piece pieces[16];
        const int n = find_pieces(args, image, index, pieces);
        switch (block) {
        case 4: concat_block_4(out, pieces, n, pixels); break;
        case 8: concat_block_8(out, pieces, n, pixels); break;
        default: concat_block_16(out, pieces, n, pixels);
        }
    }
}

NNS_DEFINE_FAMILY(concat_rows);
NNS_DEFINE_FAMILY(concat_lanes);
