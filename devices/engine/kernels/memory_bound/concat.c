/* Concatenation. `rows` copies whole rows of bytes, whatever their elements are: any axis of plain tensors, and blocked ones
 * whose channels fill their blocks. `lanes` joins blocked float32 tensors of any channel counts. A step has at most NNS_MAX_READS inputs, so a longer
 * concatenation takes several steps, each of which writes a part of the output from `offset` on. */
#include "memory_bound.h"

/* ---- concat/rows: reads the inputs; writes outer × total bytes; each outer row gets the inputs' rows one after -----
 * another from `offset` on. Parameters: outer, offset, total, bytes per row of each input. */

enum { ROWS_FIXED = 3 };

static const char *rows_check(const nns_args *args, nns_work *work) {
    if (args->n_in < 1 || args->n_out != 1 || args->n_p != ROWS_FIXED + args->n_in)
        return "concat/rows wants inputs, 1 output, and 3 parameters and 1 per input";
    const int64_t *p = args->p;
    int64_t end = p[1];
    if (end < 0) return "concat/rows: negative offset";
    for (int32_t i = 0; i < args->n_in; i++) {
        if (!nns_holds(args->in_bytes[i], NNS_PRODUCT(p[0], p[ROWS_FIXED + i])))
            return "concat/rows: an input is smaller than its rows";
        if (__builtin_add_overflow(end, p[ROWS_FIXED + i], &end)) return "concat/rows: rows too long";
    }
    if (end > p[2] || !nns_holds(args->out_bytes[0], NNS_PRODUCT(p[0], p[2])))
        return "concat/rows: the inputs' rows do not fit the output";
    *work = (nns_work){.units = nns_ceil_div(p[0] * (end - p[1]), LIGHT_CHUNK_BYTES)};
    return NULL;
}

static void rows_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const int64_t *lengths = args->p + ROWS_FIXED, offset = args->p[1], total = args->p[2];
    int64_t joined = 0;
    for (int32_t i = 0; i < args->n_in; i++) joined += lengths[i];
    const int64_t last = nns_min_int(end * LIGHT_CHUNK_BYTES, args->p[0] * joined);
    /* `at` counts the bytes that this step writes, in their order */
    for (int64_t at = begin * LIGHT_CHUNK_BYTES; at < last;) {
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

/* ---- concat/lanes: reads blocked inputs; writes channels [offset, offset + their sum) of the blocked output. ---------
 * Lanes of the first written block below `offset` are kept, lanes of the last one above become zero.
 * Parameters: images, pixels, block, offset, channels of the output, channels of each input. */

enum { LANES_FIXED = 5 };

static const char *lanes_check(const nns_args *args, nns_work *work) {
    if (args->n_in < 1 || args->n_out != 1 || args->n_p != LANES_FIXED + args->n_in)
        return "concat/lanes wants inputs, 1 output, and 5 parameters and 1 per input";
    const int64_t *p = args->p, block = p[2];
    if (block == 1 || !good_lanes(block) || p[1] < 1 || p[3] < 0 || p[4] < 0)
        return "concat/lanes: block, pixels, offset or channels out of range";
    int64_t end = p[3];
    for (int32_t i = 0; i < args->n_in; i++) {
        const int64_t channels = p[LANES_FIXED + i];
        if (channels < 0 || !nns_holds(args->in_bytes[i], NNS_FLOAT_BYTES(p[0], nns_ceil_div(channels, block), p[1], block)))
            return "concat/lanes: an input is smaller than its shape";
        if (__builtin_add_overflow(end, channels, &end)) return "concat/lanes: too many channels";
    }
    if (end > p[4] || !nns_holds(args->out_bytes[0], NNS_FLOAT_BYTES(p[0], nns_ceil_div(p[4], block), p[1], block)))
        return "concat/lanes: the inputs' channels do not fit the output";
    *work = (nns_work){.units = end == p[3] ? 0 : p[0] * (nns_ceil_div(end, block) - p[3] / block)};
    return NULL;
}

/* Lanes [lane, lane + lanes) of an output block come from the pixels at `from`, `shift` floats away. */
typedef struct {
    const float *from;
    int64_t shift, lane, lanes;
} piece;

#define LANES 4
#define VECTOR f32x4
#define IVECTOR i32x4
#include "concat_lanes.inc"

#define LANES 8
#define VECTOR f32x8
#define IVECTOR i32x8
#include "concat_lanes.inc"

#define LANES 16
#define VECTOR f32x16
#define IVECTOR i32x16
#include "concat_lanes.inc"

/* Finds where the channels of output block `index` of image `image` come from; returns how many pieces there are. */
static int find_pieces(const nns_args *args, int64_t image, int64_t index, piece *pieces) {
    const int64_t *p = args->p, pixels = p[1], block = p[2], low = index * block, high = low + block;
    int n = 0;
    int64_t first = p[3];
    for (int32_t i = 0; i < args->n_in && first < high; i++) {
        const int64_t channels = p[LANES_FIXED + i], blocks = nns_ceil_div(channels, block);
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
    const int64_t *p = args->p, pixels = p[1], block = p[2], first_block = p[3] / block;
    int64_t last = p[3];
    for (int32_t i = 0; i < args->n_in; i++) last += p[LANES_FIXED + i];
    const int64_t written = nns_ceil_div(last, block) - first_block, blocks = nns_ceil_div(p[4], block);
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

static const nns_kernel rows[] = {
    {"concat/rows", rows_check, rows_run},
    {"concat/lanes", lanes_check, lanes_run},
};
const nns_kernel_family nns_family_concat = NNS_FAMILY(rows);
