/* Concatenation. `rows` copies rows of bytes, of any element type: any axis of plain tensors, and blocked ones whose
 * channels fill their blocks. `lanes` joins blocked float32 tensors with any channel counts. A step has at most
 * NNS_MAX_READS inputs, so a longer concatenation takes several steps, each of which writes a part of the output from
 * `offset` on. */
#include "memory_bound/memory_bound.h"

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

/* ---- concat/lanes: reads blocked inputs; writes channels [offset, offset + their sum) of the blocked output. ------- */

#define ELEMENT float
#define PARAMETERS concat_lanes_parameters
#include "concat_blocks.inc"

NNS_DEFINE_FAMILY(concat_rows);
NNS_DEFINE_FAMILY(concat_lanes);
