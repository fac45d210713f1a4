/* The kernels of the engine: one row per kernel, and one list of parameters and operands per family.
 *
 * A family is the kernels that share a parameter list and operands. Four lists describe it:
 *
 *   PARAMETERS_family(P, A, G)         its int64 parameters in order:
 *                                      P(name, legal values, values to draw in tests), one parameter;
 *                                      A(name, count, legal, draw), an array; EACH_READ: one element per read;
 *                                      G(group, name), the parameters of another list
 *   READS_family(REQUIRED, OPTIONAL)   names of the operands that it reads; every family writes one
 *   KERNELS_family(K)                  K(stem, name, where, tile…), the best kernel first
 *   CONSTRAIN_family(p)                statements that fit drawn parameters to each other, for kernel_fuzz.c
 *
 * Legal values are RANGE(low, high) or ONE_OF(…) of numbers below 64; the engine refuses a program with others before
 * it asks the kernel. Draws are BETWEEN(low, high) or ONE_OF(…).
 *
 * A kernel's functions are `stem_check` and `stem_run` in the family's C file. Its name is what packages and profiles
 * hold: it never changes. `where` is the vector hardware that it is written for:
 *
 *   ANY   REGISTERS_32   REGISTERS_16   NEON   BLOCK_16 (vectors of 16 floats)   BLOCK_OVER_4 (of 8 or 16 floats)
 *
 * COLUMNS_family names the tile's columns.
 *
 * VARIANTS lists the families that are compiled again with CPU features beyond the engine's instruction set.
 *
 * Readers: the C preprocessor (family.h, registry.c, the families' files, tests/devices/cpu/kernel_fuzz.c),
 * devices/cpu/manifest.py, which reads only the C syntax that these lists use, and the build (VARIANTS).
 *
 * To add a kernel to a family, add its row. To add a family, write its C file, its lists, and its line in FAMILIES. */
#ifndef NNS_MANIFEST_H
#define NNS_MANIFEST_H

/* Upper bounds of parameters, such that no product of those that form an address overflows an int64. */
#define MOST_EXTENT (1 << 20) /* batch, channels, height, width */
#define MOST_STEP (1 << 12)   /* kernel size, stride, padding, dilation of convolutions */
#define MOST_SPAN (1 << 24)   /* height, width, kernel size, stride, padding, dilation of memory-bound kernels */
#define MOST_SUMMED (1 << 23) /* integers of one byte that an int32 can sum up */
#define MOST_INT32 0x7fffffff
#define MOST_INT64 0x7fffffffffffffff
#define LEAST_INT64 (-0x7fffffffffffffff - 1)

/* ---- groups of parameters --------------------------------------------------------------------------------------- */

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

/* ---- conv_direct: convolution/conv_direct.c --------------------------------------------------------------------- */

#define PARAMETERS_conv_direct(P, A, G)                                                                    \
    G(kernel_geometry, geometry)                                                                           \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                                        \
    P(tiles, RANGE(1, MOST_INT32), BETWEEN(1, 6)) /* per unit */                                           \
    P(order, RANGE(0, 1), BETWEEN(0, 1)) /* 0: weights stay in cache, pixels pass; 1: reverse */           \
    P(blocks, RANGE(1, MOST_INT32), BETWEEN(1, 4)) /* input blocks per pass; several passes sum up in y */ \
    G(activation_parameters, activation)
#define READS_conv_direct(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_conv_direct(pixels, vectors, kind)
#define KERNELS_conv_direct(K)                            \
    K(p6v4, "conv_direct_p6v4", REGISTERS_32, 6, 4, v)    \
    K(p9v3, "conv_direct_p9v3", BLOCK_16, 9, 3, v)        \
    K(p14v2, "conv_direct_p14v2", BLOCK_16, 14, 2, v)     \
    K(p28v1, "conv_direct_p28v1", BLOCK_16, 28, 1, v)     \
    K(p7v3, "conv_direct_p7v3", NEON, 7, 3, v)            \
    K(p12v2, "conv_direct_p12v2", NEON, 12, 2, v)         \
    K(p20v1, "conv_direct_p20v1", NEON, 20, 1, v)         \
    K(p6v2, "conv_direct_p6v2", REGISTERS_16, 6, 2, v)    \
    K(p12v1, "conv_direct_p12v1", REGISTERS_16, 12, 1, v) \
    K(p6h4, "conv_direct_p6h4", BLOCK_16, 6, 4, h)        \
    K(p9h3, "conv_direct_p9h3", BLOCK_16, 9, 3, h)        \
    K(p14h2, "conv_direct_p14h2", BLOCK_16, 14, 2, h)     \
    K(p28h1, "conv_direct_p28h1", BLOCK_16, 28, 1, h)
#define CONSTRAIN_conv_direct(p)                \
    if (draw(5) < 2) p->groups = 1;             \
    p->geometry.c = p->groups * between(1, 40); \
    p->geometry.o = p->groups * between(1, 40);

/* ---- conv_planar: convolution/conv_planar.c --------------------------------------------------------------------- */

#define PARAMETERS_conv_planar(P, A, G)                                         \
    G(kernel_geometry, geometry)                                                \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* of the output, per unit */ \
    G(activation_parameters, activation)
#define READS_conv_planar(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_conv_planar(pixels, vectors)
#define KERNELS_conv_planar(K)                      \
    K(p14v1, "conv_planar_p14v1", BLOCK_16, 14, 1)  \
    K(p14v2, "conv_planar_p14v2", BLOCK_16, 14, 2)  \
    K(p12v2, "conv_planar_p12v2", NEON, 12, 2)      \
    K(p6v4, "conv_planar_p6v4", NEON, 6, 4)         \
    K(p24v1, "conv_planar_p24v1", NEON, 24, 1)      \
    K(p6v2, "conv_planar_p6v2", REGISTERS_16, 6, 2) \
    K(p12v1, "conv_planar_p12v1", REGISTERS_16, 12, 1)
#define CONSTRAIN_conv_planar(p)

/* ---- conv_strassen: convolution/conv_strassen.c ----------------------------------------------------------------- */

#define PARAMETERS_conv_strassen(P, A, G)                          \
    P(n, RANGE(1, MOST_EXTENT), BETWEEN(1, 2))                     \
    P(c, RANGE(1, MOST_EXTENT), BETWEEN(1, 100))                   \
    P(pixels, RANGE(2, MOST_EXTENT), BETWEEN(2, 60))               \
    P(o, RANGE(1, MOST_EXTENT), BETWEEN(1, 200))                   \
    P(tiles, RANGE(1, MOST_EXTENT), BETWEEN(1, 4)) /* per unit */  \
    P(panels, RANGE(1, MOST_EXTENT), BETWEEN(1, 4)) /* per unit */ \
    G(activation_parameters, activation)
#define READS_conv_strassen(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_conv_strassen(pixels, vectors)
#define KERNELS_conv_strassen(K)                      \
    K(p14v2, "conv_strassen_p14v2", BLOCK_16, 14, 2)  \
    K(p9v3, "conv_strassen_p9v3", BLOCK_16, 9, 3)     \
    K(p6v4, "conv_strassen_p6v4", NEON, 6, 4)         \
    K(p12v2, "conv_strassen_p12v2", NEON, 12, 2)      \
    K(p6v2, "conv_strassen_p6v2", REGISTERS_16, 6, 2) \
    K(p4v3, "conv_strassen_p4v3", REGISTERS_16, 4, 3)
#define CONSTRAIN_conv_strassen(p)

/* ---- winograd: winograd/winograd.c ------------------------------------------------------------------------------ */

#define PARAMETERS_winograd(P, A, G)                                \
    G(kernel_geometry, geometry)                                    \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                 \
    P(planar, RANGE(0, 1), BETWEEN(0, 1)) /* the input is plain */  \
    P(tiles, RANGE(1, MOST_EXTENT), BETWEEN(1, 60)) /* per block */ \
    P(panels, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* per unit */  \
    G(activation_parameters, activation)
#define READS_winograd(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
/* F(outputs, taps), alpha = outputs + taps - 1; `tiles` and `vectors` of the register tile. */
#define COLUMNS_winograd(alpha, taps, outputs, tiles, vectors)
#define KERNELS_winograd(K)                                          \
    K(a4r2t6v4, "winograd_a4r2t6v4", NEON, 4, 2, 3, 6, 4)            \
    K(a4r3t6v4, "winograd_a4r3t6v4", NEON, 4, 3, 2, 6, 4)            \
    K(a6r2t6v4, "winograd_a6r2t6v4", NEON, 6, 2, 5, 6, 4)            \
    K(a6r3t6v4, "winograd_a6r3t6v4", NEON, 6, 3, 4, 6, 4)            \
    K(a6r4t6v4, "winograd_a6r4t6v4", NEON, 6, 4, 3, 6, 4)            \
    K(a8r3t6v4, "winograd_a8r3t6v4", NEON, 8, 3, 6, 6, 4)            \
    K(a8r4t6v4, "winograd_a8r4t6v4", NEON, 8, 4, 5, 6, 4)            \
    K(a8r5t6v4, "winograd_a8r5t6v4", NEON, 8, 5, 4, 6, 4)            \
    K(a8r6t6v4, "winograd_a8r6t6v4", NEON, 8, 6, 3, 6, 4)            \
    K(a4r2t12v2, "winograd_a4r2t12v2", NEON, 4, 2, 3, 12, 2)         \
    K(a4r3t12v2, "winograd_a4r3t12v2", NEON, 4, 3, 2, 12, 2)         \
    K(a6r2t12v2, "winograd_a6r2t12v2", NEON, 6, 2, 5, 12, 2)         \
    K(a6r3t12v2, "winograd_a6r3t12v2", NEON, 6, 3, 4, 12, 2)         \
    K(a6r4t12v2, "winograd_a6r4t12v2", NEON, 6, 4, 3, 12, 2)         \
    K(a8r3t12v2, "winograd_a8r3t12v2", NEON, 8, 3, 6, 12, 2)         \
    K(a8r4t12v2, "winograd_a8r4t12v2", NEON, 8, 4, 5, 12, 2)         \
    K(a8r5t12v2, "winograd_a8r5t12v2", NEON, 8, 5, 4, 12, 2)         \
    K(a8r6t12v2, "winograd_a8r6t12v2", NEON, 8, 6, 3, 12, 2)         \
    K(a4r2t20v1, "winograd_a4r2t20v1", NEON, 4, 2, 3, 20, 1)         \
    K(a4r3t20v1, "winograd_a4r3t20v1", NEON, 4, 3, 2, 20, 1)         \
    K(a6r2t20v1, "winograd_a6r2t20v1", NEON, 6, 2, 5, 20, 1)         \
    K(a6r3t20v1, "winograd_a6r3t20v1", NEON, 6, 3, 4, 20, 1)         \
    K(a6r4t20v1, "winograd_a6r4t20v1", NEON, 6, 4, 3, 20, 1)         \
    K(a8r3t20v1, "winograd_a8r3t20v1", NEON, 8, 3, 6, 20, 1)         \
    K(a8r4t20v1, "winograd_a8r4t20v1", NEON, 8, 4, 5, 20, 1)         \
    K(a8r5t20v1, "winograd_a8r5t20v1", NEON, 8, 5, 4, 20, 1)         \
    K(a8r6t20v1, "winograd_a8r6t20v1", NEON, 8, 6, 3, 20, 1)         \
    K(a4r2t28v1, "winograd_a4r2t28v1", BLOCK_16, 4, 2, 3, 28, 1)     \
    K(a4r3t28v1, "winograd_a4r3t28v1", BLOCK_16, 4, 3, 2, 28, 1)     \
    K(a6r2t28v1, "winograd_a6r2t28v1", BLOCK_16, 6, 2, 5, 28, 1)     \
    K(a6r3t28v1, "winograd_a6r3t28v1", BLOCK_16, 6, 3, 4, 28, 1)     \
    K(a6r4t28v1, "winograd_a6r4t28v1", BLOCK_16, 6, 4, 3, 28, 1)     \
    K(a8r3t28v1, "winograd_a8r3t28v1", BLOCK_16, 8, 3, 6, 28, 1)     \
    K(a8r4t28v1, "winograd_a8r4t28v1", BLOCK_16, 8, 4, 5, 28, 1)     \
    K(a8r5t28v1, "winograd_a8r5t28v1", BLOCK_16, 8, 5, 4, 28, 1)     \
    K(a8r6t28v1, "winograd_a8r6t28v1", BLOCK_16, 8, 6, 3, 28, 1)     \
    K(a4r2t6v2, "winograd_a4r2t6v2", REGISTERS_16, 4, 2, 3, 6, 2)    \
    K(a4r3t6v2, "winograd_a4r3t6v2", REGISTERS_16, 4, 3, 2, 6, 2)    \
    K(a6r2t6v2, "winograd_a6r2t6v2", REGISTERS_16, 6, 2, 5, 6, 2)    \
    K(a6r3t6v2, "winograd_a6r3t6v2", REGISTERS_16, 6, 3, 4, 6, 2)    \
    K(a6r4t6v2, "winograd_a6r4t6v2", REGISTERS_16, 6, 4, 3, 6, 2)    \
    K(a8r3t6v2, "winograd_a8r3t6v2", REGISTERS_16, 8, 3, 6, 6, 2)    \
    K(a8r4t6v2, "winograd_a8r4t6v2", REGISTERS_16, 8, 4, 5, 6, 2)    \
    K(a8r5t6v2, "winograd_a8r5t6v2", REGISTERS_16, 8, 5, 4, 6, 2)    \
    K(a8r6t6v2, "winograd_a8r6t6v2", REGISTERS_16, 8, 6, 3, 6, 2)    \
    K(a4r2t12v1, "winograd_a4r2t12v1", REGISTERS_16, 4, 2, 3, 12, 1) \
    K(a4r3t12v1, "winograd_a4r3t12v1", REGISTERS_16, 4, 3, 2, 12, 1) \
    K(a6r2t12v1, "winograd_a6r2t12v1", REGISTERS_16, 6, 2, 5, 12, 1) \
    K(a6r3t12v1, "winograd_a6r3t12v1", REGISTERS_16, 6, 3, 4, 12, 1) \
    K(a6r4t12v1, "winograd_a6r4t12v1", REGISTERS_16, 6, 4, 3, 12, 1) \
    K(a8r3t12v1, "winograd_a8r3t12v1", REGISTERS_16, 8, 3, 6, 12, 1) \
    K(a8r4t12v1, "winograd_a8r4t12v1", REGISTERS_16, 8, 4, 5, 12, 1) \
    K(a8r5t12v1, "winograd_a8r5t12v1", REGISTERS_16, 8, 5, 4, 12, 1) \
    K(a8r6t12v1, "winograd_a8r6t12v1", REGISTERS_16, 8, 6, 3, 12, 1)
#define CONSTRAIN_winograd(p)                                 \
    if (draw(5) < 2) p->groups = 1;                           \
    p->geometry.c = p->groups * between(1, draw(2) ? 4 : 40); \
    p->geometry.o = p->groups * between(1, 40);               \
    p->planar = p->groups == 1 && p->geometry.c <= 4;         \
    p->geometry.kh = draw(2) ? 3 : between(1, 8);             \
    p->geometry.kw = draw(2) ? 3 : between(1, 8);             \
    p->geometry.sh = between(1, 2);                           \
    p->geometry.sw = between(1, 2);                           \
    p->geometry.dh = p->geometry.dw = 1;

/* ---- depthwise: convolution/depthwise.c ------------------------------------------------------------------------- */

#define PARAMETERS_depthwise(P, A, G) PARAMETERS_conv_planar(P, A, G)
#define READS_depthwise(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_depthwise(group) /* channels per group */
#define KERNELS_depthwise(K)               \
    K(g1, "depthwise_g1", ANY, 1)          \
    K(g2, "depthwise_g2", ANY, 2)          \
    K(g4, "depthwise_g4", BLOCK_OVER_4, 4) \
    K(g8, "depthwise_g8", BLOCK_16, 8)
#define CONSTRAIN_depthwise(p) p->geometry.o = p->geometry.c;

/* ---- expand_depthwise, depthwise_project: convolution/pair.c ---------------------------------------------------- */

/* The geometry is the depthwise convolution's. */
#define PARAMETERS_expand_depthwise(P, A, G)                                                                 \
    G(kernel_geometry, geometry)                                                                             \
    P(other, RANGE(1, MOST_EXTENT), BETWEEN(1, 70)) /* channels on the pointwise convolution's other side */ \
    P(band, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* output rows per band */                                 \
    G(activation_parameters, first_activation)                                                               \
    G(activation_parameters, activation)
#define PARAMETERS_depthwise_project(P, A, G) PARAMETERS_expand_depthwise(P, A, G)
#define READS_expand_depthwise(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(WEIGHTS1) OPTIONAL(BIAS1) REQUIRED(WEIGHTS2) OPTIONAL(BIAS2) OPTIONAL(RESIDUAL)
#define READS_depthwise_project(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(WEIGHTS1) OPTIONAL(BIAS1) REQUIRED(WEIGHTS2) OPTIONAL(BIAS2) OPTIONAL(RESIDUAL)
#define COLUMNS_expand_depthwise(pixels, vectors)
#define COLUMNS_depthwise_project(pixels, vectors)
#define KERNELS_expand_depthwise(K)                      \
    K(p6v4, "expand_depthwise_p6v4", REGISTERS_32, 6, 4) \
    K(p9v3, "expand_depthwise_p9v3", BLOCK_16, 9, 3)     \
    K(p14v2, "expand_depthwise_p14v2", BLOCK_16, 14, 2)  \
    K(p28v1, "expand_depthwise_p28v1", BLOCK_16, 28, 1)  \
    K(p7v3, "expand_depthwise_p7v3", NEON, 7, 3)         \
    K(p12v2, "expand_depthwise_p12v2", NEON, 12, 2)      \
    K(p20v1, "expand_depthwise_p20v1", NEON, 20, 1)      \
    K(p6v2, "expand_depthwise_p6v2", REGISTERS_16, 6, 2) \
    K(p4v3, "expand_depthwise_p4v3", REGISTERS_16, 4, 3) \
    K(p12v1, "expand_depthwise_p12v1", REGISTERS_16, 12, 1)
#define KERNELS_depthwise_project(K)                              \
    K(p6v4_project, "depthwise_project_p6v4", REGISTERS_32, 6, 4) \
    K(p9v3_project, "depthwise_project_p9v3", BLOCK_16, 9, 3)     \
    K(p14v2_project, "depthwise_project_p14v2", BLOCK_16, 14, 2)  \
    K(p28v1_project, "depthwise_project_p28v1", BLOCK_16, 28, 1)  \
    K(p7v3_project, "depthwise_project_p7v3", NEON, 7, 3)         \
    K(p12v2_project, "depthwise_project_p12v2", NEON, 12, 2)      \
    K(p20v1_project, "depthwise_project_p20v1", NEON, 20, 1)      \
    K(p6v2_project, "depthwise_project_p6v2", REGISTERS_16, 6, 2) \
    K(p4v3_project, "depthwise_project_p4v3", REGISTERS_16, 4, 3) \
    K(p12v1_project, "depthwise_project_p12v1", REGISTERS_16, 12, 1)
#define CONSTRAIN_expand_depthwise(p) \
    p->geometry.c = p->geometry.o = between(1, 140);
#define CONSTRAIN_depthwise_project(p) p->geometry.c = p->geometry.o = between(1, 140);

/* ---- dense: convolution/dense.c --------------------------------------------------------------------------------- */

#define PARAMETERS_dense(P, A, G)               \
    P(n, RANGE(1, MOST_INT32), BETWEEN(1, 16))  \
    P(k, RANGE(1, MOST_INT32), BETWEEN(1, 80))  \
    P(m, RANGE(1, MOST_INT32), BETWEEN(1, 150)) \
    G(activation_parameters, activation)
#define READS_dense(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_dense(rows, vectors)
#define KERNELS_dense(K)                  \
    K(v4, "dense_v4", REGISTERS_32, 6, 4) \
    K(r12v2, "dense_r12v2", NEON, 12, 2)  \
    K(v2, "dense_v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_dense(p)

/* ---- conv_int8, conv_int8_planar, rows_int8, depthwise_int8, dense_int8:
 *      int8/{conv,planar,rows,depthwise,dense}_int8.c ----------------------------------------------------------- */

/* How results become int8: zero point, bounds, and scale (bits of a float32, in steps of the result) and zero point of a
 * residual. */
#define PARAMETERS_rounding_parameters(P, A, G)                                         \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                                       \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                                          \
    P(high, RANGE(-128, 127), BETWEEN(0, 127))                                          \
    P(residual_scale, RANGE(0, 0xffffffff), BETWEEN(0x3f000000, 0x3f000000)) /* 0.5 */  \
    P(residual_zero, RANGE(-128, 127), BETWEEN(-128, 127))

#define PARAMETERS_conv_int8(P, A, G)                                                    \
    G(kernel_geometry, geometry)                                                         \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                      \
    P(tiles, RANGE(1, MOST_INT32), BETWEEN(1, 6)) /* per unit */                         \
    P(order, RANGE(0, 1), BETWEEN(0, 1)) /* 0: weights stay in cache, pixels pass; 1: reverse */ \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127)) /* zero point of x */                  \
    G(rounding_parameters, rounding)
#define READS_conv_int8(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(WEIGHTS) REQUIRED(BIAS) REQUIRED(MULTIPLIERS) OPTIONAL(RESIDUAL)
#define COLUMNS_conv_int8(pixels, vectors)
#define KERNELS_conv_int8(K)                         \
    K(p6v4, "conv_int8_p6v4", REGISTERS_32, 6, 4)    \
    K(p9v3, "conv_int8_p9v3", BLOCK_16, 9, 3)        \
    K(p14v2, "conv_int8_p14v2", BLOCK_16, 14, 2)     \
    K(p28v1, "conv_int8_p28v1", BLOCK_16, 28, 1)     \
    K(p7v3, "conv_int8_p7v3", NEON, 7, 3)            \
    K(p12v2, "conv_int8_p12v2", NEON, 12, 2)         \
    K(p20v1, "conv_int8_p20v1", NEON, 20, 1)         \
    K(p6v2, "conv_int8_p6v2", REGISTERS_16, 6, 2)    \
    K(p12v1, "conv_int8_p12v1", REGISTERS_16, 12, 1)
#define CONSTRAIN_conv_int8(p)                  \
    if (draw(5) < 2) p->groups = 1;             \
    p->geometry.c = p->groups * between(1, 40); \
    p->geometry.o = p->groups * between(1, 40);

#define PARAMETERS_conv_int8_planar(P, A, G)                                    \
    G(kernel_geometry, geometry)                                                \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* of the output, per unit */ \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127)) /* zero point of x */         \
    G(rounding_parameters, rounding)
#define READS_conv_int8_planar(REQUIRED, OPTIONAL) READS_conv_int8(REQUIRED, OPTIONAL)
#define COLUMNS_conv_int8_planar(pixels, vectors)
#define KERNELS_conv_int8_planar(K)                       \
    K(p6v4, "conv_int8_planar_p6v4", REGISTERS_32, 6, 4)  \
    K(p14v2, "conv_int8_planar_p14v2", BLOCK_16, 14, 2)   \
    K(p14v1, "conv_int8_planar_p14v1", BLOCK_16, 14, 1)   \
    K(p12v2, "conv_int8_planar_p12v2", NEON, 12, 2)       \
    K(p20v1, "conv_int8_planar_p20v1", NEON, 20, 1)       \
    K(p6v2, "conv_int8_planar_p6v2", REGISTERS_16, 6, 2)  \
    K(p12v1, "conv_int8_planar_p12v1", REGISTERS_16, 12, 1)
#define CONSTRAIN_conv_int8_planar(p) \
    p->geometry.c = between(1, 4);    \
    p->geometry.dw = 1;

#define PARAMETERS_rows_int8(P, A, G)                                           \
    G(kernel_geometry, geometry)                                                \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                             \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* of the output, per unit */ \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127)) /* zero point of x */         \
    G(rounding_parameters, rounding)
#define READS_rows_int8(REQUIRED, OPTIONAL) READS_conv_int8(REQUIRED, OPTIONAL)
#define KERNELS_rows_int8(K) K(rows_int8, "rows_int8", ANY)
#define CONSTRAIN_rows_int8(p)                     \
    if (draw(5) < 2) p->groups = 1;                \
    p->geometry.c = p->groups * between(1, 8) * 4; \
    p->geometry.o = p->groups * between(1, 12) * 4;

#define PARAMETERS_depthwise_int8(P, A, G) PARAMETERS_conv_int8_planar(P, A, G)
#define READS_depthwise_int8(REQUIRED, OPTIONAL) READS_conv_int8(REQUIRED, OPTIONAL)
#define KERNELS_depthwise_int8(K) K(depthwise_int8, "depthwise_int8", ANY)
#define CONSTRAIN_depthwise_int8(p) p->geometry.o = p->geometry.c;

#define PARAMETERS_dense_int8(P, A, G)          \
    P(n, RANGE(1, MOST_INT32), BETWEEN(1, 16))  \
    P(k, RANGE(1, MOST_INT32), BETWEEN(1, 80))  \
    P(m, RANGE(1, MOST_INT32), BETWEEN(1, 150)) \
    G(rounding_parameters, rounding)
#define READS_dense_int8(REQUIRED, OPTIONAL) READS_conv_int8(REQUIRED, OPTIONAL)
#define COLUMNS_dense_int8(rows, vectors)
#define KERNELS_dense_int8(K)                     \
    K(v4, "dense_int8_v4", REGISTERS_32, 6, 4)    \
    K(v2, "dense_int8_v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_dense_int8(p)

/* ---- attention: attention/attention.c ------------------------------------------------------------------------------ */

/* Tokens are the pixels of blocked tensors, or rows of channels. Strides of bias and mask are in floats. */
#define PARAMETERS_attention(P, A, G)                                      \
    P(batch, RANGE(1, MOST_EXTENT), BETWEEN(1, 2))                         \
    P(windows, RANGE(1, MOST_EXTENT), BETWEEN(1, 3)) /* per image */       \
    P(heads, RANGE(1, MOST_STEP), BETWEEN(1, 3))                           \
    P(groups, RANGE(1, MOST_STEP), BETWEEN(1, 1)) /* heads of k and v */   \
    P(queries, RANGE(1, MOST_EXTENT), BETWEEN(1, 70)) /* per window */     \
    P(keys, RANGE(1, MOST_EXTENT), BETWEEN(1, 90))                         \
    P(depth, RANGE(1, MOST_STEP), BETWEEN(1, 40)) /* channels per head */  \
    P(width, RANGE(1, MOST_STEP), BETWEEN(1, 40)) /* of v */               \
    P(rows, RANGE(0, 1), BETWEEN(0, 1)) /* tokens are rows of channels */  \
    P(scale, RANGE(LEAST_INT64, MOST_INT64), BETWEEN(0x3e800000, 0x3e800000)) /* bits of a float32; 0.25 */ \
    P(bias_image, RANGE(0, MOST_INT32), BETWEEN(0, 0)) /* between windows */ \
    P(bias_head, RANGE(0, MOST_INT32), BETWEEN(0, 0))                      \
    P(bias_query, RANGE(0, MOST_INT32), BETWEEN(0, 90))                    \
    P(mask_image, RANGE(0, MOST_INT32), BETWEEN(0, 90))                    \
    P(mask_head, RANGE(0, MOST_INT32), BETWEEN(0, 90))                     \
    P(mask_query, RANGE(0, MOST_INT32), BETWEEN(0, 0))
#define READS_attention(REQUIRED, OPTIONAL) REQUIRED(Q) REQUIRED(K) REQUIRED(V) OPTIONAL(BIAS) OPTIONAL(MASK)
#define COLUMNS_attention(queries, vectors)
#define KERNELS_attention(K)                              \
    K(q14v2, "attention_q14v2", BLOCK_16, 14, 2)          \
    K(q12v2, "attention_q12v2", NEON, 12, 2)              \
    K(q6v2, "attention_q6v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_attention(p)                     \
    if (draw(2)) p->groups = p->heads;             \
    if (draw(4) == 0) p->keys = between(500, 700); \
    if (draw(4) == 0) p->depth = between(600, 700);

/* ---- matmul: attention/matmul.c ----------------------------------------------------------------------------------- */

/* Steps and strides are in floats; those between matrices are 0 where one serves for all. */
#define PARAMETERS_matmul(P, A, G)                             \
    P(outer, RANGE(1, MOST_EXTENT), BETWEEN(1, 3))             \
    P(inner, RANGE(1, MOST_EXTENT), BETWEEN(1, 3))             \
    P(m, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))                \
    P(k, RANGE(1, MOST_EXTENT), BETWEEN(1, 60))                \
    P(n, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))                \
    P(x_outer, RANGE(0, MOST_INT32), BETWEEN(0, 900))          \
    P(x_inner, RANGE(0, MOST_INT32), BETWEEN(0, 900))          \
    P(m_step, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))           \
    P(xk_step, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))          \
    P(y_outer, RANGE(0, MOST_INT32), BETWEEN(0, 900))          \
    P(y_inner, RANGE(0, MOST_INT32), BETWEEN(0, 900))          \
    P(yk_step, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))          \
    P(n_step, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))           \
    G(activation_parameters, activation)
#define READS_matmul(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(Y)
#define COLUMNS_matmul(rows, vectors)
#define KERNELS_matmul(K)                        \
    K(r14v2, "matmul_r14v2", BLOCK_16, 14, 2)    \
    K(r12v2, "matmul_r12v2", NEON, 12, 2)        \
    K(r6v2, "matmul_r6v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_matmul(p)                              \
    *(draw(2) ? &p->m_step : &p->xk_step) = 1;           \
    *(draw(2) ? &p->yk_step : &p->n_step) = 1;           \
    if (draw(4) == 0) p->k = between(500, 600);          \
    if (draw(4) == 0) p->n = between(500, 600);

/* ---- pool: memory_bound/pool.c ---------------------------------------------------------------------------------- */

#define PARAMETERS_pool_window(P, A, G)                                                     \
    P(mode, RANGE(0, 2), BETWEEN(0, 2)) /* maximum, average, average that counts padding */ \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(1, 5))                                          \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                                      \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                          \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                           \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                      \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                       \
    P(kernel_h, RANGE(1, MOST_SPAN), BETWEEN(1, 5))                                         \
    P(kernel_w, RANGE(1, MOST_SPAN), BETWEEN(1, 5))                                         \
    P(stride_h, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                         \
    P(stride_w, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                         \
    P(top, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                              \
    P(left, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                             \
    P(bottom, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                           \
    P(right, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                            \
    P(dilation_h, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                       \
    P(dilation_w, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                       \
    G(activation_parameters, activation)
#define READS_pool_window(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_pool_window(K) K(window, "pool/window", ANY)
#define CONSTRAIN_pool_window(p)

#define PARAMETERS_pool_global(P, A, G)                        \
    P(mode, RANGE(0, 1), BETWEEN(0, 1)) /* maximum, average */ \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 6))               \
    P(pixels, RANGE(1, MOST_INT64), BETWEEN(1, 900))           \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))         \
    G(activation_parameters, activation)
#define READS_pool_global(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_pool_global(K) K(global, "pool/global", ANY)
#define CONSTRAIN_pool_global(p)

/* ---- eltwise: memory_bound/eltwise.c ---------------------------------------------------------------------------- */

#define PARAMETERS_eltwise_unary(P, A, G)            \
    P(count, RANGE(0, MOST_INT64), BETWEEN(0, 9000)) \
    G(activation_parameters, activation)
#define READS_eltwise_unary(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_eltwise_unary(K) K(unary, "eltwise/unary", ANY)
#define CONSTRAIN_eltwise_unary(p)

/* `lanes` 0: y has the shape of x. */
#define PARAMETERS_eltwise_binary(P, A, G)                                   \
    P(op, RANGE(0, 5), BETWEEN(0, 5)) /* sum, difference, product, quotient, larger, smaller */ \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 30))                            \
    P(row, RANGE(0, MOST_INT64), BETWEEN(0, 40)) /* floats */                \
    P(lanes, ONE_OF(0, 1, 4, 8, 16), ONE_OF(0, 0, 1, 4, 8, 16))              \
    P(period, RANGE(LEAST_INT64, MOST_INT64), BETWEEN(1, 9)) /* rows of y */ \
    G(activation_parameters, activation)
#define READS_eltwise_binary(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(Y)
#define KERNELS_eltwise_binary(K) K(binary, "eltwise/binary", ANY)
#define CONSTRAIN_eltwise_binary(p) if (p->lanes) p->row *= p->lanes;

#define PARAMETERS_eltwise_affine(P, A, G)                                       \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 30))                                \
    P(row, RANGE(0, MOST_INT64), BETWEEN(0, 40)) /* floats */                    \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                           \
    P(period, RANGE(1, MOST_INT64), BETWEEN(1, 9)) /* rows of scale and shift */ \
    G(activation_parameters, activation)
#define READS_eltwise_affine(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(SCALE) REQUIRED(SHIFT)
#define KERNELS_eltwise_affine(K) K(affine, "eltwise/affine", ANY)
#define CONSTRAIN_eltwise_affine(p) p->row *= p->lanes;

#define PARAMETERS_eltwise_prelu(P, A, G)                                  \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 30))                          \
    P(row, RANGE(0, MOST_INT64), BETWEEN(0, 40)) /* floats */              \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                     \
    P(period, RANGE(1, MOST_INT64), BETWEEN(1, 9)) /* rows of the slope */ \
    G(activation_parameters, activation)
#define READS_eltwise_prelu(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(SLOPE)
#define KERNELS_eltwise_prelu(K) K(prelu, "eltwise/prelu", ANY)
#define CONSTRAIN_eltwise_prelu(p) p->row *= p->lanes;

/* ---- concat: memory_bound/data_movement/concat.c ---------------------------------------------------------------- */

#define PARAMETERS_concat_rows(P, A, G)                                                                       \
    P(outer, RANGE(0, MOST_INT64), BETWEEN(0, 9))                                                             \
    P(offset, RANGE(0, MOST_INT64), BETWEEN(0, 200)) /* of the first input's row in the output's, in bytes */ \
    P(total, RANGE(0, MOST_INT64), BETWEEN(0, 200)) /* bytes per row of the output */                         \
    A(sizes, EACH_READ, RANGE(0, MOST_INT64), BETWEEN(0, 2800)) /* bytes per row of each input */
#define READS_concat_rows(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_concat_rows(K) K(rows, "concat/rows", ANY)
#define CONSTRAIN_concat_rows(p) \
    p->total += p->offset;       \
    for (int i = 0; i < reads; i++) p->total += p->sizes[i];

#define PARAMETERS_concat_lanes(P, A, G)                                                \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))                                      \
    P(pixels, RANGE(1, MOST_INT64), BETWEEN(1, 90))                                     \
    P(block, ONE_OF(4, 8, 16), ONE_OF(4, 8, 16))                                        \
    P(offset, RANGE(0, MOST_INT64), BETWEEN(0, 40)) /* first channel that is written */ \
    P(total, RANGE(0, MOST_INT64), BETWEEN(0, 40)) /* channels of the output */         \
    A(channels, EACH_READ, RANGE(0, MOST_INT64), BETWEEN(0, 40))
#define READS_concat_lanes(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_concat_lanes(K) K(lanes, "concat/lanes", ANY)
#define CONSTRAIN_concat_lanes(p) \
    p->total += p->offset;        \
    for (int i = 0; i < reads; i++) p->total += p->channels[i];

/* ---- softmax: memory_bound/softmax.c ---------------------------------------------------------------------------- */

#define PARAMETERS_softmax(P, A, G)                  \
    P(outer, RANGE(0, MOST_INT64), BETWEEN(0, 5))    \
    P(length, RANGE(1, MOST_INT64), BETWEEN(1, 100)) \
    P(inner, RANGE(1, MOST_INT64), BETWEEN(1, 50))   \
    G(activation_parameters, activation)
#define READS_softmax(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_softmax(K) K(softmax, "softmax", ANY)
#define CONSTRAIN_softmax(p) if (draw(2)) p->inner = 1;

/* ---- layer_norm, norm_statistics, group_norm: memory_bound/normalization.c -------------------------------------- */

#define PARAMETERS_layer_norm(P, A, G)                                                         \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))                                             \
    P(channels, RANGE(1, MOST_INT32), BETWEEN(1, 90))                                          \
    P(pixels, RANGE(1, MOST_INT32), BETWEEN(1, 90))                                            \
    P(block, ONE_OF(0, 4, 8, 16), ONE_OF(0, 4, 8, 16)) /* 0 or the engine's */                 \
    P(rms, RANGE(0, 1), BETWEEN(0, 1)) /* the mean is not subtracted */                        \
    P(epsilon, RANGE(0, MOST_INT32), BETWEEN(0x3727c5ac, 0x3727c5ac)) /* bits of a float32 */ \
    G(activation_parameters, activation)
#define READS_layer_norm(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(SCALE) REQUIRED(SHIFT)
#define KERNELS_layer_norm(K) K(layer, "norm/layer", ANY)
#define CONSTRAIN_layer_norm(p) if (draw(3) == 0) p->pixels = 1;

#define PARAMETERS_norm_statistics(P, A, G)           \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 9))      \
    P(pixels, RANGE(1, MOST_INT32), BETWEEN(1, 200))  \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))
#define READS_norm_statistics(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_norm_statistics(K) K(statistics, "norm/statistics", ANY)
#define CONSTRAIN_norm_statistics(p)

#define PARAMETERS_group_norm(P, A, G)                                                         \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))                                             \
    P(channels, RANGE(1, MOST_INT32), BETWEEN(1, 20))                                          \
    P(pixels, RANGE(1, MOST_INT32), BETWEEN(1, 200))                                           \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                                         \
    P(groups, RANGE(1, MOST_INT32), BETWEEN(1, 4))                                             \
    P(epsilon, RANGE(0, MOST_INT32), BETWEEN(0x3727c5ac, 0x3727c5ac)) /* bits of a float32 */ \
    G(activation_parameters, activation)
#define READS_group_norm(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(SCALE) REQUIRED(SHIFT) REQUIRED(STATISTICS)
#define KERNELS_group_norm(K) K(groups, "norm/groups", ANY)
#define CONSTRAIN_group_norm(p) p->channels *= p->groups;

/* ---- reduce: memory_bound/reduce.c ------------------------------------------------------------------------------ */

/* Modes: sum, mean, maximum, minimum, sum of absolutes, root of the sum of squares, sum of squares, product. */
#define PARAMETERS_reduce(P, A, G)                   \
    P(mode, RANGE(0, 7), BETWEEN(0, 7))              \
    P(outer, RANGE(0, MOST_INT64), BETWEEN(0, 5))    \
    P(length, RANGE(1, MOST_INT64), BETWEEN(1, 150)) \
    P(inner, RANGE(1, MOST_INT64), BETWEEN(1, 50))   \
    G(activation_parameters, activation)
#define READS_reduce(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_reduce(K) K(reduce, "reduce", ANY)
#define CONSTRAIN_reduce(p) if (draw(2)) p->inner = 1;

/* ---- pad: memory_bound/data_movement/pad.c ---------------------------------------------------------------------- */

#define PARAMETERS_pad(P, A, G)                                         \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(0, 5))                      \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                  \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 12))                      \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 12))                       \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(0, 5))                   \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(0, 5))                    \
    P(top, RANGE(0, MOST_SPAN), BETWEEN(0, 5))                          \
    P(left, RANGE(0, MOST_SPAN), BETWEEN(0, 5))                         \
    P(value, RANGE(0, 0xffffffff), BETWEEN(0, 1)) /* bits of a float */ \
    G(activation_parameters, activation)
#define READS_pad(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_pad(K) K(pad, "pad", ANY)
#define CONSTRAIN_pad(p)                \
    p->out_height += p->height + p->top; \
    p->out_width += p->width + p->left;

/* ---- resize: memory_bound/resize.c ------------------------------------------------------------------------------ */

/* Tables hold the source of each output row and column. */
#define PARAMETERS_resize_nearest(P, A, G)             \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(0, 5))     \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16)) \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))     \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))      \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(1, 30)) \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))  \
    G(activation_parameters, activation)
#define READS_resize_nearest(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(ROWS) REQUIRED(COLUMNS)
#define KERNELS_resize_nearest(K) K(nearest, "resize/nearest", ANY)
#define CONSTRAIN_resize_nearest(p)

#define PARAMETERS_resize_linear(P, A, G) PARAMETERS_resize_nearest(P, A, G)
#define READS_resize_linear(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(ROWS) REQUIRED(ROW_WEIGHTS) REQUIRED(COLUMNS) REQUIRED(COLUMN_WEIGHTS)
#define KERNELS_resize_linear(K) K(linear, "resize/linear", ANY)
#define CONSTRAIN_resize_linear(p)

/* ---- strided: memory_bound/data_movement/strided.c -------------------------------------------------------------- */

#define PARAMETERS_strided_copy(P, A, G)                                    \
    A(sizes, 6, RANGE(1, MOST_INT64), BETWEEN(1, 3))                        \
    A(strides, 6, RANGE(0, MOST_INT64), BETWEEN(0, 50)) /* elements of x */ \
    P(first, RANGE(0, MOST_INT64), BETWEEN(0, 9)) /* element of x */        \
    P(bytes, ONE_OF(1, 2, 4, 8), ONE_OF(1, 2, 4, 8)) /* of an element */
#define READS_strided_copy(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_strided_copy(K) K(copy, "strided/copy", ANY)
#define CONSTRAIN_strided_copy(p) \
    p->sizes[4] = between(1, 40); \
    p->sizes[5] = between(1, 40);

#define PARAMETERS_strided_channels_last(P, A, G)     \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))    \
    P(channels, RANGE(1, MOST_INT64), BETWEEN(1, 70)) \
    P(pixels, RANGE(1, MOST_INT64), BETWEEN(1, 200))  \
    P(block, ONE_OF(4, 8, 16), ONE_OF(4, 8, 16))
#define READS_strided_channels_last(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_strided_channels_last(K) K(channels_last, "strided/channels_last", ANY)
#define CONSTRAIN_strided_channels_last(p)

/* Each channel of a blocked tensor becomes `times` neighbouring ones. */
#define PARAMETERS_strided_repeat(P, A, G)            \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))    \
    P(channels, RANGE(1, MOST_INT32), BETWEEN(1, 70)) \
    P(pixels, RANGE(1, MOST_INT64), BETWEEN(1, 200))  \
    P(block, ONE_OF(4, 8, 16), ONE_OF(4, 8, 16))      \
    P(times, ONE_OF(2, 4), ONE_OF(2, 4))
#define READS_strided_repeat(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_strided_repeat(K) K(repeat, "strided/repeat", ANY)
#define CONSTRAIN_strided_repeat(p)

/* ---- reorder: memory_bound/data_movement/reorder.c -------------------------------------------------------------- */

#define PARAMETERS_reorder_copy(P, A, G) \
    P(count, RANGE(0, MOST_INT64), BETWEEN(0, 160000)) /* bytes */
#define READS_reorder_copy(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_reorder_copy(K) K(copy, "reorder/copy", ANY)
#define CONSTRAIN_reorder_copy(p)

/* Block 0: plain. */
#define PARAMETERS_reorder_layout(P, A, G)              \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))      \
    P(channels, RANGE(0, MOST_INT64), BETWEEN(0, 70))   \
    P(pixels, RANGE(0, MOST_INT64), BETWEEN(0, 700))    \
    P(source, ONE_OF(0, 4, 8, 16), ONE_OF(0, 4, 8, 16)) \
    P(target, ONE_OF(0, 4, 8, 16), ONE_OF(0, 4, 8, 16))
#define READS_reorder_layout(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_reorder_layout(K) K(layout, "reorder/layout", ANY)
#define CONSTRAIN_reorder_layout(p) if (p->source == 0 && p->target == 0) p->target = 8;

/* ---- int8_quantize, …_image, int8_dequantize, int8_requantize, int8_table: int8/quantize.c ------------------------ */

/* Scales are the bits of a float32. */
#define PARAMETERS_int8_quantize(P, A, G)                                 \
    P(count, RANGE(0, MOST_INT64), BETWEEN(0, 9000))                      \
    P(scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000))       \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))
#define READS_int8_quantize(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_quantize(K) K(quantize, "int8/quantize", ANY)
#define CONSTRAIN_int8_quantize(p)

#define PARAMETERS_int8_quantize_image(P, A, G)                     \
    P(images, RANGE(0, MOST_INT64), BETWEEN(0, 3))                  \
    P(channels, RANGE(1, 4), BETWEEN(1, 4))                         \
    P(pixels, RANGE(1, MOST_INT64), BETWEEN(1, 3000))               \
    P(block, ONE_OF(4, 8, 16), ONE_OF(4, 8, 16))                    \
    P(scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000)) \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))
#define READS_int8_quantize_image(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_quantize_image(K) K(quantize_image, "int8/quantize_image", ANY)
#define CONSTRAIN_int8_quantize_image(p)

#define PARAMETERS_int8_dequantize(P, A, G) PARAMETERS_int8_quantize(P, A, G)
#define READS_int8_dequantize(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_dequantize(K) K(dequantize, "int8/dequantize", ANY)
#define CONSTRAIN_int8_dequantize(p)

/* `scale` is the input's over the output's. */
#define PARAMETERS_int8_requantize(P, A, G)                                                 \
    P(outer, RANGE(0, MOST_INT64), BETWEEN(0, 9))                                           \
    P(row, RANGE(1, MOST_INT64), BETWEEN(1, 2000))                                          \
    P(offset, RANGE(0, MOST_INT64), BETWEEN(0, 200)) /* of the row in the output's */       \
    P(total, RANGE(1, MOST_INT64), BETWEEN(1, 200)) /* integers per row of the output */    \
    P(x_zero, RANGE(-128, 127), BETWEEN(-128, 127))                                         \
    P(scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000))                         \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                                           \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                                              \
    P(high, RANGE(-128, 127), BETWEEN(1, 127))
#define READS_int8_requantize(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_requantize(K) K(requantize, "int8/requantize", ANY)
#define CONSTRAIN_int8_requantize(p) p->total += p->offset + p->row;

#define PARAMETERS_int8_table(P, A, G) P(count, RANGE(0, MOST_INT64), BETWEEN(0, 9000))
#define READS_int8_table(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(TABLE)
#define KERNELS_int8_table(K) K(table, "int8/table", ANY)
#define CONSTRAIN_int8_table(p)

/* ---- int8_binary: int8/binary_int8.c ------------------------------------------------------------------------------ */

/* `lanes` 0: y has the shape of x. Scales are those of the inputs over the output's, of a product that of both in one. */
#define PARAMETERS_int8_binary(P, A, G)                                      \
    P(op, RANGE(0, 1), BETWEEN(0, 1)) /* sum, product */                     \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 30))                            \
    P(row, RANGE(1, MOST_INT64), BETWEEN(1, 400)) /* integers */             \
    P(lanes, ONE_OF(0, 1, 4, 8, 16), ONE_OF(0, 0, 1, 4, 8, 16))              \
    P(period, RANGE(LEAST_INT64, MOST_INT64), BETWEEN(1, 9)) /* rows of y */ \
    P(x_zero, RANGE(-128, 127), BETWEEN(-128, 127))                          \
    P(y_zero, RANGE(-128, 127), BETWEEN(-128, 127))                          \
    P(x_scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000))        \
    P(y_scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000))        \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                            \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                               \
    P(high, RANGE(-128, 127), BETWEEN(1, 127))
#define READS_int8_binary(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(Y)
#define KERNELS_int8_binary(K) K(binary, "int8/binary", ANY)
#define CONSTRAIN_int8_binary(p) if (p->lanes) p->row *= p->lanes;

/* ---- int8_pool_window, int8_pool_global: int8/pool_int8.c --------------------------------------------------------- */

/* `scale` is the input's over the output's; the maximum keeps the input's parameters. */
#define PARAMETERS_int8_pool_window(P, A, G)                                                \
    P(mode, RANGE(0, 2), BETWEEN(0, 2)) /* maximum, average, average that counts padding */ \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(1, 5))                                          \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))                                      \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                          \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                           \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                      \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))                                       \
    P(kernel_h, RANGE(1, MOST_SPAN), BETWEEN(1, 5))                                         \
    P(kernel_w, RANGE(1, MOST_SPAN), BETWEEN(1, 5))                                         \
    P(stride_h, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                         \
    P(stride_w, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                         \
    P(top, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                              \
    P(left, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                             \
    P(bottom, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                           \
    P(right, RANGE(0, MOST_SPAN), BETWEEN(0, 4))                                            \
    P(dilation_h, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                       \
    P(dilation_w, RANGE(1, MOST_SPAN), BETWEEN(1, 3))                                       \
    P(x_zero, RANGE(-128, 127), BETWEEN(-128, 127))                                         \
    P(scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000))                         \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                                           \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                                              \
    P(high, RANGE(-128, 127), BETWEEN(1, 127))
#define READS_int8_pool_window(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_pool_window(K) K(window, "int8/pool_window", ANY)
#define CONSTRAIN_int8_pool_window(p)

/* `scale` is that of a sum over pixels, or of the maximum. */
#define PARAMETERS_int8_pool_global(P, A, G)                        \
    P(mode, RANGE(0, 1), BETWEEN(0, 1)) /* maximum, average */      \
    P(rows, RANGE(0, MOST_INT64), BETWEEN(0, 6))                    \
    P(pixels, RANGE(1, MOST_SUMMED), BETWEEN(1, 900))               \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16))              \
    P(x_zero, RANGE(-128, 127), BETWEEN(-128, 127))                 \
    P(scale, RANGE(0, 0xffffffff), BETWEEN(0x3c000000, 0x3f800000)) \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                   \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                      \
    P(high, RANGE(-128, 127), BETWEEN(1, 127))
#define READS_int8_pool_global(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_int8_pool_global(K) K(global, "int8/pool_global", ANY)
#define CONSTRAIN_int8_pool_global(p)

/* ---- resize_bytes: int8/resize_int8.c; reorder_bytes, concat_bytes: int8/reorder_int8.c --------------------------- */

/* Elements of one byte; the tables of resize_nearest. */
#define PARAMETERS_resize_bytes(P, A, G)               \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(0, 5))     \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16)) \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))     \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))      \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(1, 30)) \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))
#define READS_resize_bytes(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(ROWS) REQUIRED(COLUMNS)
#define KERNELS_resize_bytes(K) K(nearest, "resize/nearest_bytes", ANY)
#define CONSTRAIN_resize_bytes(p)

#define PARAMETERS_reorder_bytes(P, A, G) PARAMETERS_reorder_layout(P, A, G)
#define READS_reorder_bytes(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_reorder_bytes(K) K(layout, "reorder/layout_bytes", ANY)
#define CONSTRAIN_reorder_bytes(p) CONSTRAIN_reorder_layout(p)

#define PARAMETERS_concat_bytes(P, A, G) PARAMETERS_concat_lanes(P, A, G)
#define READS_concat_bytes(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_concat_bytes(K) K(lanes, "concat/lanes_bytes", ANY)
#define CONSTRAIN_concat_bytes(p) CONSTRAIN_concat_lanes(p)

/* ---- families --------------------------------------------------------------------------------------------------- */

#define FAMILIES(F)          \
    F(conv_direct)           \
    F(conv_planar)           \
    F(conv_strassen)         \
    F(winograd)              \
    F(depthwise)             \
    F(expand_depthwise)      \
    F(depthwise_project)     \
    F(dense)                 \
    F(conv_int8)             \
    F(conv_int8_planar)      \
    F(rows_int8)             \
    F(depthwise_int8)        \
    F(dense_int8)            \
    F(attention)             \
    F(matmul)                \
    F(pool_window)           \
    F(pool_global)           \
    F(eltwise_unary)         \
    F(eltwise_binary)        \
    F(eltwise_affine)        \
    F(eltwise_prelu)         \
    F(concat_rows)           \
    F(concat_lanes)          \
    F(softmax)               \
    F(reduce)                \
    F(pad)                   \
    F(layer_norm)            \
    F(norm_statistics)       \
    F(group_norm)            \
    F(resize_nearest)        \
    F(resize_linear)         \
    F(strided_copy)          \
    F(strided_channels_last) \
    F(strided_repeat)        \
    F(int8_quantize)         \
    F(int8_quantize_image)   \
    F(int8_dequantize)       \
    F(int8_requantize)       \
    F(int8_table)            \
    F(int8_binary)           \
    F(int8_pool_window)      \
    F(int8_pool_global)      \
    F(resize_bytes)          \
    F(reorder_bytes)         \
    F(concat_bytes)          \
    F(reorder_copy)          \
    F(reorder_layout)

/* F(family, features…): the build compiles the family's file again with these CPU features, for instruction sets that
 * lack one of them. Features of vectors that no level of the architecture includes are for the instruction set with
 * vectors of that width. The engine uses the variant with the most features that the CPU has. Families of one file have
 * the same variants. */
#define VARIANTS(F)                                 \
    F(conv_direct, fma)                             \
    F(conv_planar, fma)                             \
    F(conv_strassen, fma)                           \
    F(winograd, fma)                                \
    F(depthwise, fma)                               \
    F(expand_depthwise, fma)                        \
    F(depthwise_project, fma)                       \
    F(dense, fma)                                   \
    F(conv_int8, avx512_vnni)                       \
    F(conv_int8, avx_vnni)                          \
    F(conv_int8, asimddp)                           \
    F(conv_int8_planar, avx512_vnni)                \
    F(conv_int8_planar, avx_vnni)                   \
    F(conv_int8_planar, asimddp)                    \
    F(rows_int8, avx512_vnni)                       \
    F(rows_int8, amx_int8, amx_tile, avx512_vnni)   \
    F(rows_int8, avx_vnni)                          \
    F(rows_int8, asimddp)                           \
    F(depthwise_int8, avx512_vnni)                  \
    F(depthwise_int8, avx_vnni)                     \
    F(depthwise_int8, asimddp)                      \
    F(dense_int8, avx512_vnni)                      \
    F(dense_int8, avx_vnni)                         \
    F(dense_int8, asimddp)                          \
    F(attention, fma)                               \
    F(matmul, fma)

#endif
