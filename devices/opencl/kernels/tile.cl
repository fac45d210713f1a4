/* Tiles of PIXELS neighbouring outputs of one row times VECTORS output blocks, as convolutions compute them.
 *
 * Macros: PIXELS; VECTORS; STRIDE_W, the horizontal stride; REACH, at least the input pixels that the taps of a kernel row
 * span, (KW - 1) * dilation + 1. So layers of several kernel widths share one build.
 */

/* At least the input pixels of one row that a tile reads. */
#define SEGMENT ((PIXELS - 1) * STRIDE_W + REACH)

static inline void start_tile(floatb sum[PIXELS][VECTORS], const global number *bias)
{
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const floatb start = READ(bias + v * B);
        UNROLL for (int p = 0; p < PIXELS; p++)
            sum[p][v] = start;
    }
}

/* Copies `size` blocked pixels of a row from x0 on, with zeros outside the row. */
static inline void pad_segment(private float *segment, const global number *row, int x0, int width, int size)
{
    for (int i = 0; i < size; i++) {
        const int ix = x0 + i;
        floatb value = (floatb)(0.0f);
        if (ix >= 0 && ix < width)
            value = READ(row + (long)ix * B);
        STORE(value, segment + i * B);
    }
}

/* Writes `pixels` × `vectors` of a tile's sums to y, whose blocks are `plane` numbers apart. `residual` like y, if `has_residual`.
 * Rare activations are a second pass over what was just written, so that their code exists once and not per register. */
static inline void finish_tile(floatb sum[PIXELS][VECTORS], const global number *residual, global number *y, long plane,
                               int pixels, int vectors, int has_residual, int kind, int a, int b)
{
    const float lowest = kind == ACT_RELU ? 0.0f : kind == ACT_CLIP ? as_float(a) : -INFINITY;
    const float highest = kind == ACT_CLIP ? as_float(b) : INFINITY;
    UNROLL for (int v = 0; v < VECTORS; v++) {
        if (v < vectors) {
            UNROLL for (int p = 0; p < PIXELS; p++) {
                if (p < pixels) {
                    floatb value = sum[p][v];
                    if (has_residual)
                        value += READ(residual + v * plane + p * B);
                    WRITE_BLOCK(min(max(value, lowest), highest), y + v * plane + p * B);
                }
            }
        }
    }
    if (kind > ACT_CLIP) {
        for (int v = 0; v < vectors; v++) {
            for (int p = 0; p < pixels; p++) {
                global number *at = y + v * plane + p * B;
                WRITE_BLOCK(activate_other(READ(at), kind, as_float(a), as_float(b)), at);
            }
        }
    }
}
