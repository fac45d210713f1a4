/* Kernels of int8 layers: a part of manifest.h. */

#define FAMILIES_int8(F)   \
    F(conv_int8)           \
    F(conv_int8_planar)    \
    F(rows_int8)           \
    F(depthwise_int8)      \
    F(dense_int8)          \
    F(int8_quantize)       \
    F(int8_quantize_image) \
    F(int8_dequantize)     \
    F(int8_requantize)     \
    F(int8_table)          \
    F(int8_binary)         \
    F(int8_pool_window)    \
    F(int8_pool_global)    \
    F(resize_bytes)        \
    F(reorder_bytes)       \
    F(concat_bytes)

/* ---- conv_int8, conv_int8_planar, rows_int8, depthwise_int8, dense_int8:
 *      int8/{conv,planar,rows,depthwise,dense}_int8.c ----------------------------------------------------------- */

/* How results become int8: zero point, bounds, and scale (bits of a float32, in steps of the result) and zero point of a
 * residual. With a sum_scale other than 0, sums become int8 of this scale and of sum_zero before the residual is added.
 * Packages of earlier versions lack the last two. */
#define PARAMETERS_rounding_parameters(P, A, G)                                        \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127))                                      \
    P(low, RANGE(-128, 127), BETWEEN(-128, 0))                                         \
    P(high, RANGE(-128, 127), BETWEEN(0, 127))                                         \
    P(residual_scale, RANGE(0, 0xffffffff), BETWEEN(0x3f000000, 0x3f000000)) /* 0.5 */ \
    P(residual_zero, RANGE(-128, 127), BETWEEN(-128, 127))                             \
    P(sum_scale, RANGE(0, 0xffffffff), BETWEEN(0, 1))                                  \
    P(sum_zero, RANGE(-128, 127), BETWEEN(-128, 127))

/* Whether results stay float32, and then their bounds as bits of a float32: sums times multipliers, which are in numbers then
 * in place of steps, as is the scale of a residual. Packages of earlier versions lack these. */
#define PARAMETERS_float_result(P, A, G)                           \
    P(is_float, RANGE(0, 1), BETWEEN(0, 1))                        \
    P(least, RANGE(0, 0xffffffff), BETWEEN(0xbf000000, 0xc0000000)) \
    P(most, RANGE(0, 0xffffffff), BETWEEN(0x3f000000, 0x40000000))

#define PARAMETERS_conv_int8(P, A, G)                                                    \
    G(kernel_geometry, geometry)                                                         \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                                      \
    P(tiles, RANGE(1, MOST_INT32), BETWEEN(1, 6)) /* per unit */                         \
    P(order, RANGE(0, 1), BETWEEN(0, 1)) /* 0: weights stay in cache, pixels pass; 1: reverse */ \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127)) /* zero point of x */                  \
    G(rounding_parameters, rounding)                                                     \
    G(float_result, result)
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
    G(rounding_parameters, rounding)                                            \
    G(float_result, result)
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
#define CONSTRAIN_conv_int8_planar(p)               \
    p->geometry.c = between(1, 4);                  \
    p->geometry.dw = 1;                             \
    if (draw(2)) p->geometry.o = between(61, 64); /* whole tiles of vectors */

#define PARAMETERS_rows_int8(P, A, G)                                           \
    G(kernel_geometry, geometry)                                                \
    P(groups, RANGE(1, MOST_EXTENT), BETWEEN(1, 6))                             \
    P(rows, RANGE(1, MOST_EXTENT), BETWEEN(1, 5)) /* of the output, per unit */ \
    P(zero, RANGE(-128, 127), BETWEEN(-128, 127)) /* zero point of x */         \
    G(rounding_parameters, rounding)                                            \
    P(split, RANGE(0, MOST_STEP), BETWEEN(0, 3)) /* shares of a set's outputs in units; 0: one */ \
    P(packed, RANGE(0, 1), BETWEEN(0, 1)) /* the weights lack the zeros of the last part */ \
    G(float_result, result)
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
    G(rounding_parameters, rounding)            \
    G(float_result, result)
#define READS_dense_int8(REQUIRED, OPTIONAL) READS_conv_int8(REQUIRED, OPTIONAL)
#define COLUMNS_dense_int8(rows, vectors)
#define KERNELS_dense_int8(K)                     \
    K(v4, "dense_int8_v4", REGISTERS_32, 6, 4)    \
    K(v2, "dense_int8_v2", REGISTERS_16, 6, 2)
#define CONSTRAIN_dense_int8(p)

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
