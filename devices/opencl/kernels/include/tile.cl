/* Tiles of convolutions: PIXELS neighbouring outputs of one row times VECTORS vectors of output channels.
 *
 * Macros: PIXELS; VECTORS; LENGTH, the outputs of a vector, a block or half of one; STRIDE_W, the horizontal stride; REACH, an
 * upper bound of the input pixels that the taps of a kernel row span, (KW - 1) * dilation + 1, so that layers of several kernel
 * widths share one build.
 */
#ifndef LENGTH
#define LENGTH B
#endif
#define HALVED (LENGTH != B) /* only for float32 */

typedef NNS_JOIN(float, LENGTH) floatl;
#if HALVED
#define READ_VECTOR(pointer) NNS_JOIN(vload, LENGTH)(0, pointer)
#define WRITE_VECTOR(value, pointer) (*(global floatl *)(pointer) = (value))
#define ACTIVATE_OTHER(x, kind, a, b) activate_other((floatb)(x, (floatl)(0.0f)), kind, a, b).lo
#else
#define READ_VECTOR READ
#define WRITE_VECTOR WRITE_BLOCK
#define ACTIVATE_OTHER activate_other
#endif

/* Offset from a vector of a blocked tensor, whose blocks are `plane` numbers apart, to the `v`th after it; `lane` is its first. */
#define VECTORS_ON(v, lane, plane)                                                                  \
    (HALVED ? ((lane) + (v) * LENGTH) / B * (plane) + ((lane) + (v) * LENGTH) % B - (lane) : (v) * (plane))

/* Always inlined: sums whose address is passed to a function do not stay in registers. */
#define TILE_FUNCTION INLINE void

/* Upper bound of the input pixels of one row that a tile reads. */
#define SEGMENT ((PIXELS - 1) * STRIDE_W + REACH)

TILE_FUNCTION start_tile(floatl sum[PIXELS][VECTORS], const global number *bias)
{
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const floatl start = READ_VECTOR(bias + v * LENGTH);
        UNROLL for (int p = 0; p < PIXELS; p++)
            sum[p][v] = start;
    }
}

/* Reads the sums that `finish_tile` wrote without an activation; y, plane, lane, pixels and vectors are as there. */
TILE_FUNCTION resume_tile(floatl sum[PIXELS][VECTORS], const global number *y, long plane, int lane, int pixels, int vectors)
{
    UNROLL for (int v = 0; v < VECTORS; v++) {
        UNROLL for (int p = 0; p < PIXELS; p++)
            sum[p][v] = v < vectors && p < pixels ? READ_VECTOR(y + VECTORS_ON(v, lane, plane) + p * B) : (floatl)(0.0f);
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

/* Writes `pixels` × `vectors` of a tile's sums to y, which points to lane `lane` of a block; blocks are `plane` numbers apart.
 * `residual` has the layout of y, if `has_residual`. Rare activations are a second pass over the written values, so that
 * their code exists once and not per register. */
TILE_FUNCTION finish_tile(floatl sum[PIXELS][VECTORS], const global number *residual, global number *y, long plane, int lane,
                          int pixels, int vectors, int has_residual, int kind, int a, int b)
{
    const float lowest = kind == ACT_RELU ? 0.0f : kind == ACT_CLIP ? as_float(a) : -INFINITY;
    const float highest = kind == ACT_CLIP ? as_float(b) : INFINITY;
    UNROLL for (int v = 0; v < VECTORS; v++) {
        if (v < vectors) {
            const long on = VECTORS_ON(v, lane, plane);
            UNROLL for (int p = 0; p < PIXELS; p++) {
                if (p < pixels) {
                    floatl value = sum[p][v];
                    if (has_residual)
                        value += READ_VECTOR(residual + on + p * B);
                    WRITE_VECTOR(min(max(value, lowest), highest), y + on + p * B);
                }
            }
        }
    }
    if (kind > ACT_CLIP) {
        for (int v = 0; v < vectors; v++) {
            for (int p = 0; p < pixels; p++) {
                global number *at = y + VECTORS_ON(v, lane, plane) + p * B;
                WRITE_VECTOR(ACTIVATE_OTHER(READ_VECTOR(at), kind, as_float(a), as_float(b)), at);
            }
        }
    }
}
