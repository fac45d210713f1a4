/* What fused convolutions share: the pointwise convolution of rows, and the rows that a depthwise one reads. */
#ifndef NNS_POINTWISE_H
#define NNS_POINTWISE_H

#include "depthwise.h"

/* The pointwise convolution of contiguous pixels: one panel of output vectors; `x`, `y` and `residual` point to the
 * first pixel. */
typedef struct {
    const float *x;
    const float *w;        /* float[input channel][vector][block] */
    const float *next;     /* weights to prefetch for the next panel, or NULL */
    const float *bias;     /* of the panel, or NULL */
    const float *residual; /* of the panel, or NULL */
    float *y;              /* of the panel */
    int64_t x_plane;       /* floats between blocks of the input */
    int64_t y_plane;       /* floats between blocks of the output, and of the residual */
    int64_t channels;      /* of the input */
    epilogue finish;
} pointwise;

/* All of `pixels` pixels. */
typedef void (*pointwise_tiles)(const pointwise *job, int64_t pixels);

/* By vectors per panel; NULL for numbers that no tile has. */
enum { POINTWISE_VECTORS = NNS_MOST(expand_depthwise, 2) };
#define nns_pointwise_tiles NNS_JOIN(nns_pointwise_tiles, NNS_VARIANT)
extern const pointwise_tiles nns_pointwise_tiles[POINTWISE_VECTORS + 1];

/* Maximum scratch of a thread for an intermediate tensor; useful bands need far less. */
#define POINTWISE_MAX_SCRATCH (INT64_C(1) << 26)

/* Computes `pixels` pixels of all output blocks, in panels; `job` is the first panel's. */
static inline void pointwise_panels(pointwise job, int64_t blocks, int64_t vectors, pointwise_tiles tiles, int64_t pixels) {
    const int64_t weights = job.channels * vectors * NNS_BLOCK;
    for (int64_t block = 0; block < blocks; block += vectors) {
        job.next = block + vectors < blocks ? job.w + weights : NULL;
        tiles(&job, pixels);
        job.w += weights;
        if (job.bias) job.bias += vectors * NNS_BLOCK;
        if (job.residual) job.residual += vectors * job.y_plane;
        job.y += vectors * job.y_plane;
    }
}

/* ---- rows between a pointwise convolution and the depthwise one behind it ----------------------------------------
 *
 * They lie in a ring of rows for each block, row r in slot r modulo the ring's rows, so that a band of output rows finds
 * those that the previous band of the same thread has read too. */

/* Rows [begin, end) of a plane. */
typedef struct {
    int64_t begin, end;
} row_range;

/* At the front of the scratch memory: the number of what the ring holds rows of, from 1 on (0: nothing), and the rows. */
typedef struct {
    int64_t number;
    row_range rows;
} ring_note;
enum { RING_NOTE_BYTES = 64 };

/* Input rows that output rows [first, last) read, without padding. */
static inline row_range rows_read(const kernel_geometry *s, int64_t first, int64_t last) {
    const int64_t begin = nns_max_int(0, nns_min_int(s->h, first * s->sh - s->pt));
    const int64_t end = nns_min_int(s->h, (last - 1) * s->sh - s->pt + (s->kh - 1) * s->dh + 1);
    return (row_range){begin, nns_max_int(begin, end)};
}

/* Rows of a ring: the most input rows that a band of output rows reads. */
static inline int64_t ring_rows(const kernel_geometry *s, int64_t band) {
    return nns_min_int(s->h, (nns_min_int(band, s->oh) - 1) * s->sh + (s->kh - 1) * s->dh + 1);
}

/* Notes that the ring will hold `wanted` of `number`, and returns those of them that are missing. */
static inline row_range ring_missing(ring_note *note, int64_t number, row_range wanted) {
    const row_range held = note->rows;
    const bool follows = note->number == number && held.begin <= wanted.begin && wanted.begin <= held.end;
    *note = (ring_note){number, wanted};
    return (row_range){follows ? nns_min_int(held.end, wanted.end) : wanted.begin, wanted.end};
}

/* Computes `rows` of a panel into its ring; `job` is for row 0 of the input, and for slot 0. */
static inline void ring_fill(const pointwise *job, pointwise_tiles tiles, row_range rows, int64_t width, int64_t ring) {
    for (int64_t begin = rows.begin, end; begin < rows.end; begin = end) {
        const int64_t slot = begin % ring;
        end = nns_min_int(rows.end, begin + ring - slot);
        pointwise part = *job;
        part.x += begin * width * NNS_BLOCK;
        part.y += slot * width * NNS_BLOCK;
        tiles(&part, (end - begin) * width);
    }
}

/* Computes the depthwise output rows [begin, end) of a block from the rows `held` of its ring. Of `rows`, `x` is slot 0, and
 * `y` and `residual` are of row `begin`. */
static inline void ring_filter(const kernel_geometry *s, depthwise_rows rows, row_range held, int64_t begin, int64_t end,
                               int64_t ring) {
    const int64_t slot = held.begin % ring;
    kernel_geometry part = *s;
    part.h = held.end - held.begin;
    part.pt = held.begin - (begin * s->sh - s->pt);
    rows.x += slot * s->w * NNS_BLOCK;
    rows.begin = 0;
    rows.end = end - begin;
    rows.ring = ring;
    rows.until = ring - slot;
    nns_depthwise_rows(&part, &rows);
}

#endif
