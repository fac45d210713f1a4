/* Kernels of Winograd convolutions: a part of manifest.h. */

#define FAMILIES_winograd(F) \
    F(winograd)              \
    F(winograd_int16)

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
    K(a7r3t6v4, "winograd_a7r3t6v4", NEON, 7, 3, 5, 6, 4)            \
    K(a8r3t6v4, "winograd_a8r3t6v4", NEON, 8, 3, 6, 6, 4)            \
    K(a8r4t6v4, "winograd_a8r4t6v4", NEON, 8, 4, 5, 6, 4)            \
    K(a8r5t6v4, "winograd_a8r5t6v4", NEON, 8, 5, 4, 6, 4)            \
    K(a8r6t6v4, "winograd_a8r6t6v4", NEON, 8, 6, 3, 6, 4)            \
    K(a4r2t12v2, "winograd_a4r2t12v2", NEON, 4, 2, 3, 12, 2)         \
    K(a4r3t12v2, "winograd_a4r3t12v2", NEON, 4, 3, 2, 12, 2)         \
    K(a6r2t12v2, "winograd_a6r2t12v2", NEON, 6, 2, 5, 12, 2)         \
    K(a6r3t12v2, "winograd_a6r3t12v2", NEON, 6, 3, 4, 12, 2)         \
    K(a6r4t12v2, "winograd_a6r4t12v2", NEON, 6, 4, 3, 12, 2)         \
    K(a7r3t12v2, "winograd_a7r3t12v2", NEON, 7, 3, 5, 12, 2)         \
    K(a8r3t12v2, "winograd_a8r3t12v2", NEON, 8, 3, 6, 12, 2)         \
    K(a8r4t12v2, "winograd_a8r4t12v2", NEON, 8, 4, 5, 12, 2)         \
    K(a8r5t12v2, "winograd_a8r5t12v2", NEON, 8, 5, 4, 12, 2)         \
    K(a8r6t12v2, "winograd_a8r6t12v2", NEON, 8, 6, 3, 12, 2)         \
    K(a4r2t20v1, "winograd_a4r2t20v1", NEON, 4, 2, 3, 20, 1)         \
    K(a4r3t20v1, "winograd_a4r3t20v1", NEON, 4, 3, 2, 20, 1)         \
    K(a6r2t20v1, "winograd_a6r2t20v1", NEON, 6, 2, 5, 20, 1)         \
    K(a6r3t20v1, "winograd_a6r3t20v1", NEON, 6, 3, 4, 20, 1)         \
    K(a6r4t20v1, "winograd_a6r4t20v1", NEON, 6, 4, 3, 20, 1)         \
    K(a7r3t20v1, "winograd_a7r3t20v1", NEON, 7, 3, 5, 20, 1)         \
    K(a8r3t20v1, "winograd_a8r3t20v1", NEON, 8, 3, 6, 20, 1)         \
    K(a8r4t20v1, "winograd_a8r4t20v1", NEON, 8, 4, 5, 20, 1)         \
    K(a8r5t20v1, "winograd_a8r5t20v1", NEON, 8, 5, 4, 20, 1)         \
    K(a8r6t20v1, "winograd_a8r6t20v1", NEON, 8, 6, 3, 20, 1)         \
    K(a4r2t28v1, "winograd_a4r2t28v1", BLOCK_16, 4, 2, 3, 28, 1)     \
    K(a4r3t28v1, "winograd_a4r3t28v1", BLOCK_16, 4, 3, 2, 28, 1)     \
    K(a6r2t28v1, "winograd_a6r2t28v1", BLOCK_16, 6, 2, 5, 28, 1)     \
    K(a6r3t28v1, "winograd_a6r3t28v1", BLOCK_16, 6, 3, 4, 28, 1)     \
    K(a6r4t28v1, "winograd_a6r4t28v1", BLOCK_16, 6, 4, 3, 28, 1)     \
    K(a7r3t28v1, "winograd_a7r3t28v1", BLOCK_16, 7, 3, 5, 28, 1)     \
    K(a8r3t28v1, "winograd_a8r3t28v1", BLOCK_16, 8, 3, 6, 28, 1)     \
    K(a8r4t28v1, "winograd_a8r4t28v1", BLOCK_16, 8, 4, 5, 28, 1)     \
    K(a8r5t28v1, "winograd_a8r5t28v1", BLOCK_16, 8, 5, 4, 28, 1)     \
    K(a8r6t28v1, "winograd_a8r6t28v1", BLOCK_16, 8, 6, 3, 28, 1)     \
    K(a4r2t6v2, "winograd_a4r2t6v2", REGISTERS_16, 4, 2, 3, 6, 2)    \
    K(a4r3t6v2, "winograd_a4r3t6v2", REGISTERS_16, 4, 3, 2, 6, 2)    \
    K(a6r2t6v2, "winograd_a6r2t6v2", REGISTERS_16, 6, 2, 5, 6, 2)    \
    K(a6r3t6v2, "winograd_a6r3t6v2", REGISTERS_16, 6, 3, 4, 6, 2)    \
    K(a6r4t6v2, "winograd_a6r4t6v2", REGISTERS_16, 6, 4, 3, 6, 2)    \
    K(a7r3t6v2, "winograd_a7r3t6v2", REGISTERS_16, 7, 3, 5, 6, 2)    \
    K(a8r3t6v2, "winograd_a8r3t6v2", REGISTERS_16, 8, 3, 6, 6, 2)    \
    K(a8r4t6v2, "winograd_a8r4t6v2", REGISTERS_16, 8, 4, 5, 6, 2)    \
    K(a8r5t6v2, "winograd_a8r5t6v2", REGISTERS_16, 8, 5, 4, 6, 2)    \
    K(a8r6t6v2, "winograd_a8r6t6v2", REGISTERS_16, 8, 6, 3, 6, 2)    \
    K(a4r2t4v3, "winograd_a4r2t4v3", REGISTERS_16, 4, 2, 3, 4, 3)    \
    K(a4r3t4v3, "winograd_a4r3t4v3", REGISTERS_16, 4, 3, 2, 4, 3)    \
    K(a6r2t4v3, "winograd_a6r2t4v3", REGISTERS_16, 6, 2, 5, 4, 3)    \
    K(a6r3t4v3, "winograd_a6r3t4v3", REGISTERS_16, 6, 3, 4, 4, 3)    \
    K(a6r4t4v3, "winograd_a6r4t4v3", REGISTERS_16, 6, 4, 3, 4, 3)    \
    K(a7r3t4v3, "winograd_a7r3t4v3", REGISTERS_16, 7, 3, 5, 4, 3)    \
    K(a8r3t4v3, "winograd_a8r3t4v3", REGISTERS_16, 8, 3, 6, 4, 3)    \
    K(a8r4t4v3, "winograd_a8r4t4v3", REGISTERS_16, 8, 4, 5, 4, 3)    \
    K(a8r5t4v3, "winograd_a8r5t4v3", REGISTERS_16, 8, 5, 4, 4, 3)    \
    K(a8r6t4v3, "winograd_a8r6t4v3", REGISTERS_16, 8, 6, 3, 4, 3)    \
    K(a4r2t12v1, "winograd_a4r2t12v1", REGISTERS_16, 4, 2, 3, 12, 1) \
    K(a4r3t12v1, "winograd_a4r3t12v1", REGISTERS_16, 4, 3, 2, 12, 1) \
    K(a6r2t12v1, "winograd_a6r2t12v1", REGISTERS_16, 6, 2, 5, 12, 1) \
    K(a6r3t12v1, "winograd_a6r3t12v1", REGISTERS_16, 6, 3, 4, 12, 1) \
    K(a6r4t12v1, "winograd_a6r4t12v1", REGISTERS_16, 6, 4, 3, 12, 1) \
    K(a7r3t12v1, "winograd_a7r3t12v1", REGISTERS_16, 7, 3, 5, 12, 1) \
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

/* Weights are stored as int16, with a scale per position, output and group of 16 input channels. */
#define PARAMETERS_winograd_int16(P, A, G) PARAMETERS_winograd(P, A, G)
#define READS_winograd_int16(REQUIRED, OPTIONAL) READS_winograd(REQUIRED, OPTIONAL)
#define COLUMNS_winograd_int16(alpha, taps, outputs, tiles, vectors)
#define KERNELS_winograd_int16(K)                                                  \
    K(int16_a4r3t20v1, "winograd_int16_a4r3t20v1", NEON, 4, 3, 2, 20, 1)           \
    K(int16_a6r3t20v1, "winograd_int16_a6r3t20v1", NEON, 6, 3, 4, 20, 1)           \
    K(int16_a4r3t28v1, "winograd_int16_a4r3t28v1", BLOCK_16, 4, 3, 2, 28, 1)       \
    K(int16_a6r3t28v1, "winograd_int16_a6r3t28v1", BLOCK_16, 6, 3, 4, 28, 1)       \
    K(int16_a4r3t6v2, "winograd_int16_a4r3t6v2", REGISTERS_16, 4, 3, 2, 6, 2)      \
    K(int16_a6r3t6v2, "winograd_int16_a6r3t6v2", REGISTERS_16, 6, 3, 4, 6, 2)      \
    K(int16_a4r3t12v1, "winograd_int16_a4r3t12v1", REGISTERS_16, 4, 3, 2, 12, 1)   \
    K(int16_a6r3t12v1, "winograd_int16_a6r3t12v1", REGISTERS_16, 6, 3, 4, 12, 1)
#define CONSTRAIN_winograd_int16(p)                       \
    CONSTRAIN_winograd(p)                                 \
    p->groups = 1;                                        \
    p->geometry.kh = p->geometry.kw = draw(4) ? 3 : 2;    \
    p->geometry.sh = p->geometry.sw = 1;
