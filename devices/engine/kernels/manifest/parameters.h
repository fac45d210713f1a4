/* Bounds of parameters, and parameters that several families have: a part of manifest.h. */

/* Upper bounds of parameters, such that no product of those that form an address overflows an int64. */
#define MOST_EXTENT (1 << 20) /* batch, channels, height, width */
#define MOST_STEP (1 << 12)   /* kernel size, stride, padding, dilation of convolutions */
#define MOST_SPAN (1 << 24)   /* height, width, kernel size, stride, padding, dilation of memory-bound kernels */
#define MOST_SUMMED (1 << 23) /* integers of one byte that an int32 can sum up */
#define MOST_INT32 0x7fffffff
#define MOST_INT64 0x7fffffffffffffff
#define LEAST_INT64 (-0x7fffffffffffffff - 1)

/* Geometry of a convolution. Padding at the bottom and at the right follows from the output's size: whatever lies
 * outside the input is zero. */
#define PARAMETERS_kernel_geometry(P, A, G)                            \
    P(n, RANGE(1, MOST_EXTENT), BETWEEN(1, 2))                         \
    P(c, RANGE(1, MOST_EXTENT), BETWEEN(1, 40)) /* input channels */   \
    P(h, RANGE(1, MOST_EXTENT), BETWEEN(1, 14))                        \
    P(w, RANGE(1, MOST_EXTENT), BETWEEN(1, 33))                        \
    P(o, RANGE(1, MOST_EXTENT), BETWEEN(1, 100)) /* output channels */ \
    P(oh, RANGE(1, MOST_EXTENT), BETWEEN(1, 9))                        \
    P(ow, RANGE(1, MOST_EXTENT), BETWEEN(1, 30))                       \
    P(kh, RANGE(1, MOST_STEP), BETWEEN(1, 5))                          \
    P(kw, RANGE(1, MOST_STEP), BETWEEN(1, 5))                          \
    P(sh, RANGE(1, MOST_STEP), BETWEEN(1, 3))                          \
    P(sw, RANGE(1, MOST_STEP), BETWEEN(1, 3))                          \
    P(pt, RANGE(0, MOST_STEP), BETWEEN(0, 4))                          \
    P(pl, RANGE(0, MOST_STEP), BETWEEN(0, 4))                          \
    P(dh, RANGE(1, MOST_STEP), BETWEEN(1, 3))                          \
    P(dw, RANGE(1, MOST_STEP), BETWEEN(1, 3))

/* An activation: its number in nnstretch/graph/activation.py, and `a` and `b` as the bits of a float32. */
#define PARAMETERS_activation_parameters(P, A, G)                                    \
    P(kind, RANGE(0, 17), BETWEEN(0, 17))                                            \
    P(a, RANGE(LEAST_INT64, MOST_INT64), BETWEEN(0xbf000000, 0xbf000000)) /* -0.5 */ \
    P(b, RANGE(LEAST_INT64, MOST_INT64), BETWEEN(0x3f000000, 0x3f000000)) /* 0.5 */
