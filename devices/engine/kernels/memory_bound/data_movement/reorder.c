/* Changes of layout, and copies. */
#include "memory_bound/memory_bound.h"

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

/* ---- reorder/layout: reads a tensor in one layout, writes it in another. ------------------------------------------- */

#define ELEMENT float
#define PARAMETERS reorder_layout_parameters
#define CHECK_SIZES(...) NNS_CHECK_SIZES(reorder_layout, __VA_ARGS__)
#include "reorder_layout.inc"

NNS_DEFINE_FAMILY(reorder_copy);
NNS_DEFINE_FAMILY(reorder_layout);
