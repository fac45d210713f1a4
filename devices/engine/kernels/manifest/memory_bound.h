/* Memory-bound kernels: a part of manifest.h. */

#define FAMILIES_memory_bound(F) \
    F(pool_window)               \
    F(pool_global)               \
    F(eltwise_unary)             \
    F(eltwise_binary)            \
    F(eltwise_affine)            \
    F(eltwise_prelu)             \
    F(concat_rows)               \
    F(concat_lanes)              \
    F(softmax)                   \
    F(layer_norm)                \
    F(norm_statistics)           \
    F(group_norm)                \
    F(reduce)                    \
    F(pad)                       \
    F(resize_nearest)            \
    F(resize_linear)             \
    F(resize_filter)             \
    F(strided_copy)              \
    F(strided_channels_last)     \
    F(strided_repeat)            \
    F(reorder_copy)              \
    F(reorder_layout)            \
    F(cast)

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

#define PARAMETERS_resized_planes(P, A, G)             \
    P(planes, RANGE(0, MOST_INT64), BETWEEN(0, 5))     \
    P(lanes, ONE_OF(1, 4, 8, 16), ONE_OF(1, 4, 8, 16)) \
    P(height, RANGE(1, MOST_SPAN), BETWEEN(1, 30))     \
    P(width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))      \
    P(out_height, RANGE(1, MOST_SPAN), BETWEEN(1, 30)) \
    P(out_width, RANGE(1, MOST_SPAN), BETWEEN(1, 30))

/* Tables hold the source of each output row and column. */
#define PARAMETERS_resize_nearest(P, A, G) \
    PARAMETERS_resized_planes(P, A, G)     \
    G(activation_parameters, activation)
#define READS_resize_nearest(REQUIRED, OPTIONAL) REQUIRED(X) REQUIRED(ROWS) REQUIRED(COLUMNS)
#define KERNELS_resize_nearest(K) K(nearest, "resize/nearest", ANY)
#define CONSTRAIN_resize_nearest(p)

#define PARAMETERS_resize_linear(P, A, G) PARAMETERS_resize_nearest(P, A, G)
#define READS_resize_linear(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(ROWS) REQUIRED(ROW_WEIGHTS) REQUIRED(COLUMNS) REQUIRED(COLUMN_WEIGHTS)
#define KERNELS_resize_linear(K) K(linear, "resize/linear", ANY)
#define CONSTRAIN_resize_linear(p)

/* Tables hold `row_taps` sources and weights for each output row, and `column_taps` for each column. */
#define PARAMETERS_resize_filter(P, A, G)              \
    PARAMETERS_resized_planes(P, A, G)                 \
    P(row_taps, RANGE(1, MOST_SPAN), BETWEEN(1, 9))    \
    P(column_taps, RANGE(1, MOST_SPAN), BETWEEN(1, 9)) \
    G(activation_parameters, activation)
#define READS_resize_filter(REQUIRED, OPTIONAL) READS_resize_linear(REQUIRED, OPTIONAL)
#define KERNELS_resize_filter(K) K(filter, "resize/filter", ANY)
#define CONSTRAIN_resize_filter(p)

/* ---- strided: memory_bound/data_movement/strided.c -------------------------------------------------------------- */

#define PARAMETERS_strided_copy(P, A, G)                                    \
    A(sizes, 6, RANGE(1, MOST_INT64), BETWEEN(1, 3))                        \
    A(strides, 6, RANGE(0, MOST_INT64), BETWEEN(0, 50)) /* elements of x */ \
    P(first, RANGE(0, MOST_INT64), BETWEEN(0, 9)) /* element of x */        \
    P(bytes, ONE_OF(1, 2, 4, 8, 16), ONE_OF(1, 2, 4, 8, 16)) /* of an element */
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

/* ---- cast: memory_bound/data_movement/cast.c -------------------------------------------------------------------- */

#define PARAMETERS_cast(P, A, G) P(count, RANGE(0, MOST_INT64), BETWEEN(0, 9000))
#define READS_cast(REQUIRED, OPTIONAL) REQUIRED(X)
#define KERNELS_cast(K)                              \
    K(from_float16, "cast/from_float16", ANY)        \
    K(to_float16, "cast/to_float16", ANY)            \
    K(from_bfloat16, "cast/from_bfloat16", ANY)      \
    K(to_bfloat16, "cast/to_bfloat16", ANY)          \
    K(to_uint8, "cast/to_uint8", ANY)                \
    K(from_uint8, "cast/from_uint8", ANY)            \
    K(from_int32, "cast/from_int32", ANY)            \
    K(from_int64, "cast/from_int64", ANY)
#define CONSTRAIN_cast(p)
