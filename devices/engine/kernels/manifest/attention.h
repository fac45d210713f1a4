/* Kernels of attention and of products of matrices: a part of manifest.h. */

#define FAMILIES_attention(F) \
    F(attention)              \
    F(matmul)

/* ---- attention: attention/attention.c ------------------------------------------------------------------------------ */

/* Tokens are the pixels of blocked tensors, or rows of channels. Strides of bias, mask and factor are in floats. */
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
    P(mask_query, RANGE(0, MOST_INT32), BETWEEN(0, 0))                     \
    P(epsilon, RANGE(0, MOST_INT32), ONE_OF(0, 0x2b8cbccc)) /* bits of a float32; 1e-12 */ \
    P(factor_image, RANGE(0, MOST_INT32), BETWEEN(0, 3))                   \
    P(factor_head, RANGE(0, MOST_INT32), BETWEEN(0, 1))
#define READS_attention(REQUIRED, OPTIONAL) \
    REQUIRED(Q) REQUIRED(K) REQUIRED(V) OPTIONAL(BIAS) OPTIONAL(MASK) OPTIONAL(FACTOR)
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
