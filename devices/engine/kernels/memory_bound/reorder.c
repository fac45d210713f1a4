/* Changes of layout, and copies. */
#include "memory_bound.h"

/* ---- reorder/copy: writes what it reads. ------------------------------------------------------------------------- */

enum { COPY_CHUNK = 4 * CHUNK_BYTES };

static const char *copy_check(const nns_args *args, nns_work *work) {
    const reorder_copy_parameters *p = (const void *)args->p;
    *work = (nns_work){.units = nns_ceil_div(p->count, COPY_CHUNK)};
    return NNS_CHECK_SIZES(reorder_copy, args, p->count, p->count);
}

static void copy_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const reorder_copy_parameters *p = (const void *)args->p;
    const int64_t first = begin * COPY_CHUNK, last = nns_min_int(end * COPY_CHUNK, p->count);
    memcpy((char *)args->out[0] + first, (const char *)args->in[0] + first, (size_t)(last - first));
}

/* ---- reorder/layout: reads a tensor in one layout, writes it in another. --------------------------------------------
 * `source` and `target` are the blocks of the layouts, 0 for plain. Lanes that pad the channels of a blocked target are
 * written as zero. */

enum { PART_PIXELS = 256 }; /* minimum pixels of a unit, if the image has them */

static int64_t layout_bytes(const reorder_layout_parameters *p, int64_t block) {
    return block ? NNS_FLOAT_BYTES(p->images, nns_ceil_div(p->channels, block), p->pixels, block)
                 : NNS_FLOAT_BYTES(p->images, p->channels, p->pixels);
}

/* Blocks of channels that units are made of: the target's, or the source's where the target is plain. */
static int64_t unit_blocks(const reorder_layout_parameters *p) {
    return nns_ceil_div(p->channels, p->target ? p->target : p->source);
}

static int64_t unit_parts(const reorder_layout_parameters *p) { return nns_max_int(p->pixels / PART_PIXELS, 1); }

static const char *layout_check(const nns_args *args, nns_work *work) {
    const reorder_layout_parameters *p = (const void *)args->p;
    if (p->source == 0 && p->target == 0) return "both layouts are plain";
    const char *wrong = NNS_CHECK_SIZES(reorder_layout, args, layout_bytes(p, p->target), layout_bytes(p, p->source));
    if (wrong) return wrong;
    *work = (nns_work){.units = p->pixels == 0 ? 0 : p->images * unit_blocks(p) * unit_parts(p)};
    return NULL;
}

#define LANES 4
#define INDICES(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#include "reorder_lanes.inc"

#define LANES 8
#define INDICES(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#include "reorder_lanes.inc"

#define LANES 16
#define INDICES(f, s)                                                                                             \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
        f(12, s), f(13, s), f(14, s), f(15, s)
#include "reorder_lanes.inc"

/* Copies `lanes` neighbouring lanes of `n` pixels; lanes from `channels` on become zero. */
NNS_INLINE void copy_lanes(float *out, int64_t out_block, const float *x, int64_t block, int64_t n, int64_t lanes,
                           int64_t channels) {
    if (channels == 0) {
        for (int64_t pixel = 0; pixel < n; pixel++) memset(out + pixel * out_block, 0, (size_t)lanes * sizeof(float));
        return;
    }
    for (int64_t pixel = 0; pixel < n; pixel++) {
        memcpy(out + pixel * out_block, x + pixel * block, (size_t)lanes * sizeof(float));
        for (int64_t lane = channels; lane < lanes; lane++) out[pixel * out_block + lane] = 0.0f;
    }
}

/* Pixels [begin, end) of block `index` of one image, from one block to another, in groups of lanes that lie within
 * one block of both. */
static void between_blocks(const reorder_layout_parameters *p, float *out, const float *x, int64_t index, int64_t begin,
                           int64_t end) {
    const int64_t pixels = p->pixels, source = p->source, target = p->target, lanes = nns_min_int(source, target);
    out += (index * pixels + begin) * target;
    for (int64_t lane = 0; lane < target; lane += lanes) {
        const int64_t channel = index * target + lane;
        const int64_t channels = nns_max_int(nns_min_int(p->channels - channel, lanes), 0);
        /* a group without channels reads nothing: the source may have no block for it */
        const float *from = channels ? x + (channel / source * pixels + begin) * source + channel % source : out;
        switch (lanes) {
        case 4: copy_lanes(out + lane, target, from, source, end - begin, 4, channels); break;
        case 8: copy_lanes(out + lane, target, from, source, end - begin, 8, channels); break;
        default: copy_lanes(out + lane, target, from, source, end - begin, 16, channels);
        }
    }
}

typedef void transposing(float *out, const float *x, int64_t pixels, int64_t channels, int64_t begin, int64_t end);

static void layout_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const reorder_layout_parameters *p = (const void *)args->p;
    const int64_t channels = p->channels, pixels = p->pixels, source = p->source, target = p->target;
    const int64_t block = target ? target : source, blocks = unit_blocks(p), parts = unit_parts(p);
    transposing *to_blocked = reorder_to_blocked_16, *to_plain = reorder_to_plain_16;
    if (block == 8) to_blocked = reorder_to_blocked_8, to_plain = reorder_to_plain_8;
    if (block == 4) to_blocked = reorder_to_blocked_4, to_plain = reorder_to_plain_4;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t part = unit % parts, index = unit / parts % blocks, image = unit / parts / blocks;
        const int64_t first = part_begin(pixels, parts, part), last = part_begin(pixels, parts, part + 1);
        const float *x = (const float *)args->in[0] + image * (layout_bytes(p, source) / 4 / p->images);
        float *out = (float *)args->out[0] + image * (layout_bytes(p, target) / 4 / p->images);
        const int64_t some = nns_min_int(channels - index * block, block), at = index * block * pixels;
        if (source == 0) {
            to_blocked(out + at, x + at, pixels, some, first, last);
        } else if (target == 0) {
            to_plain(out + at, x + at, pixels, some, first, last);
        } else {
            between_blocks(p, out, x, index, first, last);
        }
    }
}

NNS_DEFINE_FAMILY(reorder_copy);
NNS_DEFINE_FAMILY(reorder_layout);
