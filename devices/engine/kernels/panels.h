/* Panels: the few output vectors that a convolution computes together, and the input channels that they read. */
#ifndef NNS_PANELS_H
#define NNS_PANELS_H

#include "compute.h"

/* Input channels that panel `index` of `vectors` output vectors reads. */
NNS_INLINE void panel_lanes(const window *s, int64_t groups, int64_t vectors, int64_t index, int64_t *begin,
                            int64_t *end) {
    const int64_t width = vectors * NNS_BLOCK, per_group = s->o / groups;
    const int64_t first = index * width, last = nns_min_int(first + width, s->o) - 1;
    *begin = first / per_group * (s->c / groups);
    *end = (last / per_group + 1) * (s->c / groups);
}

NNS_INLINE int64_t widest_panel(const window *s, int64_t groups, int64_t vectors) {
    if (groups == 1) return s->c;
    int64_t widest = 0;
    for (int64_t i = 0; i < blocks_of(s->o) / vectors; i++) {
        int64_t begin, end;
        panel_lanes(s, groups, vectors, i, &begin, &end);
        widest = nns_max_int(widest, end - begin);
    }
    return widest;
}

#endif
