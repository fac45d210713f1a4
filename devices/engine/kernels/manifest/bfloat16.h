/* Kernels that multiply in bfloat16: a part of manifest.h. */

#define FAMILIES_bfloat16(F)      \
    F(conv_bfloat16)              \
    F(expand_depthwise_bfloat16)  \
    F(depthwise_project_bfloat16) \
    F(dense_bfloat16)             \
    F(attention_bfloat16)

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

/* ---- expand_depthwise_bfloat16, depthwise_project_bfloat16: bfloat16/pair_bfloat16.c ---------------------------- */

#define PARAMETERS_expand_depthwise_bfloat16(P, A, G) PARAMETERS_expand_depthwise(P, A, G)
#define PARAMETERS_depthwise_project_bfloat16(P, A, G) PARAMETERS_expand_depthwise(P, A, G)
#define READS_expand_depthwise_bfloat16(REQUIRED, OPTIONAL) READS_expand_depthwise(REQUIRED, OPTIONAL)
#define READS_depthwise_project_bfloat16(REQUIRED, OPTIONAL) READS_expand_depthwise(REQUIRED, OPTIONAL)
#define KERNELS_expand_depthwise_bfloat16(K) K(expand_depthwise_bfloat16, "expand_depthwise_bfloat16", ANY)
#define KERNELS_depthwise_project_bfloat16(K) K(depthwise_project_bfloat16, "depthwise_project_bfloat16", ANY)
#define CONSTRAIN_expand_depthwise_bfloat16(p) p->geometry.c = p->geometry.o = between(1, 140);
#define CONSTRAIN_depthwise_project_bfloat16(p) p->geometry.c = p->geometry.o = between(1, 140);

/* ---- dense_bfloat16: bfloat16/dense_bfloat16.c ------------------------------------------------------------------ */

#define PARAMETERS_dense_bfloat16(P, A, G)                                            \
    P(n, RANGE(1, MOST_INT32), BETWEEN(1, 40))                                        \
    P(k, RANGE(1, MOST_INT32), BETWEEN(1, 80))                                        \
    P(m, RANGE(1, MOST_INT32), BETWEEN(1, 150))                                       \
    P(rows, RANGE(1, MOST_INT32), BETWEEN(1, 20)) /* per unit */                      \
    P(split, RANGE(1, MOST_STEP), BETWEEN(1, 3)) /* shares of the outputs in units */ \
    G(activation_parameters, activation)
#define READS_dense_bfloat16(REQUIRED, OPTIONAL) READS_dense(REQUIRED, OPTIONAL)
#define KERNELS_dense_bfloat16(K) K(dense_bfloat16, "dense_bfloat16", ANY)
#define CONSTRAIN_dense_bfloat16(p)

/* ---- attention_bfloat16: bfloat16/attention_bfloat16.c ---------------------------------------------------------- */

#define PARAMETERS_attention_bfloat16(P, A, G) PARAMETERS_attention(P, A, G)
#define READS_attention_bfloat16(REQUIRED, OPTIONAL) READS_attention(REQUIRED, OPTIONAL)
#define COLUMNS_attention_bfloat16(queries, vectors)
#define KERNELS_attention_bfloat16(K)                   \
    K(q14v2, "attention_bfloat16_q14v2", BLOCK_16, 14, 2) \
    K(q12v2, "attention_bfloat16_q12v2", NEON, 12, 2)     \
    K(q6v2, "attention_bfloat16_q6v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_attention_bfloat16(p) CONSTRAIN_attention(p)
