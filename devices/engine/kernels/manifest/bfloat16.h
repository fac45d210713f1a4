/* Kernels that multiply in bfloat16: a part of manifest.h. */

#define FAMILIES_bfloat16(F) F(conv_bfloat16)

/* ---- conv_bfloat16: bfloat16/conv_bfloat16.c -------------------------------------------------------------------- */

#define PARAMETERS_conv_bfloat16(P, A, G)                                             \
    G(kernel_geometry, geometry)                                                      \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                   \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* of the output, per unit */       \
    P(split, RANGE(1, MOST_STEP), BETWEEN(1, 3)) /* shares of the outputs in units */ \
    G(activation_parameters, activation)
#define READS_conv_bfloat16(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(RESIDUAL)
#define KERNELS_conv_bfloat16(K) K(conv_bfloat16, "conv_bfloat16", ANY)
#define CONSTRAIN_conv_bfloat16(p)              \
    if (draw(5) < 2) p->groups = 1;             \
    p->geometry.c = p->groups * between(1, 40); \
    p->geometry.o = p->groups * between(1, 40);
