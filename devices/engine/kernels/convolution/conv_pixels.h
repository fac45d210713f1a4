/* Pixels of a register tile of a direct convolution in the blocked layout, for elements of any type. */
#ifndef NNS_CONV_PIXELS_H
#define NNS_CONV_PIXELS_H

#include "compute.h"

/* Pixels of one tile. `rows[i]` and `columns[j]` hold a bit per pixel: whether tap (i, j) lies inside the input. */
typedef struct {
    int64_t *offsets; /* of each pixel's first tap from the start of the plane, in elements; may be negative */
    uint32_t *rows, *columns;
    bool edge; /* whether any tap of any pixel is outside the input */
} conv_pixels;

/* The smaller tiles that a shape of `pixels` pixels has code for. */
#define CONV_HALF(pixels) (((pixels) + 1) / 2)
#define CONV_QUARTER(pixels) (((pixels) + 3) / 4)

/* Pixels that a tile of `most` pixels computes for `count` of them. */
static int64_t rounded_count(int64_t most, int64_t count) {
    const int64_t half = CONV_HALF(most), quarter = CONV_QUARTER(most);
    return count <= quarter ? quarter : count <= half ? half : most;
}

/* Describes `rounded` pixels: `count` pixels from `first` on, then copies of the last one. */
static void locate(const kernel_geometry *s, int64_t first, int64_t count, int64_t rounded, conv_pixels *pixels) {
    int64_t oh = first / s->ow, ow = first % s->ow;
    pixels->edge = false;
    for (int64_t p = 0; p < rounded; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        pixels->offsets[p] = (h * s->w + w) * NNS_BLOCK;
        pixels->edge |= h < 0 || w < 0 || h + (s->kh - 1) * s->dh >= s->h || w + (s->kw - 1) * s->dw >= s->w;
        if (p < count - 1 && ++ow == s->ow) ow = 0, oh++;
    }
    if (!pixels->edge) return;
    memset(pixels->rows, 0, (size_t)s->kh * sizeof(uint32_t));
    memset(pixels->columns, 0, (size_t)s->kw * sizeof(uint32_t));
    oh = first / s->ow, ow = first % s->ow;
    for (int64_t p = 0; p < rounded; p++) {
        const int64_t h = oh * s->sh - s->pt, w = ow * s->sw - s->pl;
        for (int64_t i = 0; i < s->kh; i++)
            pixels->rows[i] |= (uint32_t)((uint64_t)(h + i * s->dh) < (uint64_t)s->h) << p;
        for (int64_t j = 0; j < s->kw; j++)
            pixels->columns[j] |= (uint32_t)((uint64_t)(w + j * s->dw) < (uint64_t)s->w) << p;
        if (p < count - 1 && ++ow == s->ow) ow = 0, oh++;
    }
}

/* Whether output pixel i reads input pixel i only. */
static bool is_flat(const kernel_geometry *s) {
    return s->kh == 1 && s->kw == 1 && s->sh == 1 && s->sw == 1 && s->pt == 0 && s->pl == 0 && s->oh == s->h &&
           s->ow == s->w;
}

#endif
