/* Kernels that multiply in float16: a part of manifest.h. */

#define FAMILIES_float16(F) \
    F(conv_float16)         \
    F(dense_float16)

#define MOST_TERMS 128 /* of a sum of float16 */

/* ---- conv_float16: float16/conv_float16.c ----------------------------------------------------------------------- */

#define PARAMETERS_conv_float16(P, A, G)                                                                         \
    G(kernel_geometry, geometry)                                                                                 \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                                              \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5))   /* of the output, per unit */                                \
    P(split, RANGE(1, MOST_STEP), BETWEEN(1, 3))    /* shares of the outputs in units */                         \
    P(terms, RANGE(1, MOST_TERMS), BETWEEN(1, 128)) /* most of a sum of float16, but at least those of a part */ \
    G(activation_parameters, activation)
#define READS_conv_float16(REQUIRED, OPTIONAL) READS_conv_bfloat16(REQUIRED, OPTIONAL)
#define KERNELS_conv_float16(K) K(conv_float16, "conv_float16", ANY)
#define CONSTRAIN_conv_float16(p) CONSTRAIN_conv_bfloat16(p)

/* ---- dense_float16: float16/dense_float16.c --------------------------------------------------------------------- */

#define PARAMETERS_dense_float16(P, A, G)                                                \
    P(n, RANGE(1, MOST_INT32), BETWEEN(1, 40))                                           \
    P(k, RANGE(1, MOST_INT32), BETWEEN(1, 80))                                           \
    P(m, RANGE(1, MOST_INT32), BETWEEN(1, 150))                                          \
    P(rows, RANGE(1, MOST_INT32), BETWEEN(1, 20))   /* per unit */                       \
    P(split, RANGE(1, MOST_STEP), BETWEEN(1, 3))    /* shares of the outputs in units */ \
    P(terms, RANGE(1, MOST_TERMS), BETWEEN(1, 128)) /* as in conv_float16 */             \
    G(activation_parameters, activation)
#define READS_dense_float16(REQUIRED, OPTIONAL) READS_dense(REQUIRED, OPTIONAL)
#define KERNELS_dense_float16(K) K(dense_float16, "dense_float16", ANY)
#define CONSTRAIN_dense_float16(p)
