/* Kernels that multiply in float16: a part of manifest.h. */

#define FAMILIES_float16(F) F(conv_float16)

/* ---- conv_float16: float16/conv_float16.c ----------------------------------------------------------------------- */

#define MOST_TERMS 128 /* of a sum of float16 */
#define PARAMETERS_conv_float16(P, A, G)                                                                \
    G(kernel_geometry, geometry)                                                                        \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                                     \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5))   /* of the output, per unit */                       \
    P(split, RANGE(1, MOST_STEP), BETWEEN(1, 3))    /* shares of the outputs in units */                \
    P(terms, RANGE(1, MOST_TERMS), BETWEEN(1, 128)) /* products of a sum of float16, if not fewer than a part has */ \
    G(activation_parameters, activation)
#define READS_conv_float16(REQUIRED, OPTIONAL) READS_conv_bfloat16(REQUIRED, OPTIONAL)
#define KERNELS_conv_float16(K) K(conv_float16, "conv_float16", ANY)
#define CONSTRAIN_conv_float16(p) CONSTRAIN_conv_bfloat16(p)
