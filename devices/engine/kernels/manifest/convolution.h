/* Kernels of convolutions and dense layers: a part of manifest.h. */

#define FAMILIES_convolution(F) \
    F(conv_direct)              \
    F(conv_planar)              \
    F(conv_strassen)            \
    F(depthwise)                \
    F(expand_depthwise)         \
    F(depthwise_project)        \
    F(inverted_residual)        \
    F(dense)                    \
    F(dense_int16)

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
    K(p4v3, "conv_direct_p4v3", REGISTERS_16, 4, 3, v)    \
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

#define PARAMETERS_conv_strassen(P, A, G)                                                                             \
    P(n, RANGE(1, MOST_EXTENT), BETWEEN(1, 2))                                                                        \
    P(c, RANGE(1, MOST_EXTENT), BETWEEN(1, 100))                                                                      \
    P(pixels, RANGE(2, MOST_EXTENT), BETWEEN(2, 60))                                                                  \
    P(o, RANGE(1, MOST_EXTENT), BETWEEN(1, 200))                                                                      \
    P(tiles, RANGE(1, MOST_EXTENT), BETWEEN(1, 4)) /* per unit */                                                     \
    P(panels, RANGE(1, MOST_EXTENT), BETWEEN(1, 4)) /* per unit */                                                    \
    G(activation_parameters, activation)                                                                              \
    P(divisions, RANGE(0, MOST_EXTENT), BETWEEN(0, 3)) /* of the pixels; 0: as few as there can be */                 \
    P(ow, RANGE(0, MOST_EXTENT), ONE_OF(0, 0, 0, 1, 3, 7, 13)) /* 0: the input has the output's pixels, no strides */ \
    P(h, RANGE(0, MOST_EXTENT), BETWEEN(0, 0))                                                                        \
    P(w, RANGE(0, MOST_EXTENT), BETWEEN(0, 0))                                                                        \
    P(sh, RANGE(0, MOST_EXTENT), BETWEEN(0, 3))                                                                       \
    P(sw, RANGE(0, MOST_EXTENT), BETWEEN(0, 3))                                                                       \
    P(rows, RANGE(0, 1), ONE_OF(0, 0, 0, 0, 0, 0, 1)) /* 1: x and y are matrices pixels × channels */
#define READS_conv_strassen(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define COLUMNS_conv_strassen(pixels, vectors)
#define KERNELS_conv_strassen(K)                      \
    K(p14v2, "conv_strassen_p14v2", BLOCK_16, 14, 2)  \
    K(p9v3, "conv_strassen_p9v3", BLOCK_16, 9, 3)     \
    K(p6v4, "conv_strassen_p6v4", NEON, 6, 4)         \
    K(p12v2, "conv_strassen_p12v2", NEON, 12, 2)      \
    K(p6v2, "conv_strassen_p6v2", REGISTERS_16, 6, 2) \
    K(p4v3, "conv_strassen_p4v3", REGISTERS_16, 4, 3)
#define CONSTRAIN_conv_strassen(p)                                                   \
    if (p->ow) {                                                                     \
        p->h = (nns_ceil_div(p->pixels, p->ow) - 1) * p->sh + 1 + (p->c + p->o) % 3; \
        p->w = (p->ow - 1) * p->sw + 1 + p->o % 3;                                   \
    }                                                                                \
    if (p->rows) {                                                                   \
        p->n = 1, p->ow = 0;                                                         \
        p->o = nns_ceil_div(p->o, NNS_BLOCK) * NNS_BLOCK;                            \
    }

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

/* ---- inverted_residual: convolution/inverted_residual.c --------------------------------------------------------- */

/* The geometry is the depthwise convolution's. Vectors are those of the tiles of expand_depthwise. */
#define PARAMETERS_inverted_residual(P, A, G)                                \
    G(kernel_geometry, geometry)                                             \
    P(inputs, RANGE(1, MOST_EXTENT), BETWEEN(1, 70)) /* of the block */      \
    P(outputs, RANGE(1, MOST_EXTENT), BETWEEN(1, 70))                        \
    P(expand_vectors, RANGE(1, 4), BETWEEN(1, 4))                            \
    P(project_vectors, RANGE(1, 4), BETWEEN(1, 4))                           \
    P(band, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* output rows per unit */ \
    G(activation_parameters, first_activation)                               \
    G(activation_parameters, second_activation)                              \
    G(activation_parameters, activation)
#define READS_inverted_residual(REQUIRED, OPTIONAL)                                                       \
    REQUIRED(X) REQUIRED(WEIGHTS1) OPTIONAL(BIAS1) REQUIRED(WEIGHTS2) OPTIONAL(BIAS2) REQUIRED(WEIGHTS3) \
    OPTIONAL(BIAS3) OPTIONAL(RESIDUAL)
#define KERNELS_inverted_residual(K) K(bands, "inverted_residual", ANY)
#define CONSTRAIN_inverted_residual(p) p->geometry.c = p->geometry.o = between(1, 140);

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

/* Weights are stored as int16, with a scale per output. */
#define PARAMETERS_dense_int16(P, A, G) PARAMETERS_dense(P, A, G)
#define READS_dense_int16(REQUIRED, OPTIONAL) READS_dense(REQUIRED, OPTIONAL)
#define COLUMNS_dense_int16(rows, vectors)
#define KERNELS_dense_int16(K)                       \
    K(int16_v4, "dense_int16_v4", REGISTERS_32, 6, 4) \
    K(int16_v2, "dense_int16_v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_dense_int16(p)
