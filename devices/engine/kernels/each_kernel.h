/* Includes NNS_TEMPLATE once per kernel that NNS_ROWS, the KERNELS list of a family, has for this instruction set.
 *
 * Meanwhile NNS_STEM is the row's stem and NNS_COLUMN_1 to NNS_COLUMN_3 are its tile's columns; the template defines
 * `NNS_STEM_check` and `NNS_STEM_run` as NNS_CHECK and NNS_RUN. */

#ifndef NNS_EACH_KERNEL_H
#define NNS_EACH_KERNEL_H

#define NNS_ROW(stem, name, type, needs, where, ...) WHERE_##where((stem, __VA_ARGS__, ),)
#define NNS_ROW_ONE(stem, name, type, needs, where, ...) WHERE_##where(+1)

#define NNS_PICK_0(a, ...) a
#define NNS_PICK_1(a, b, ...) b
#define NNS_PICK_2(a, b, c, ...) c
#define NNS_PICK_3(a, b, c, d, ...) d
#define NNS_PICK_4(a, b, c, d, e, ...) e
#define NNS_PICK_5(a, b, c, d, e, f, ...) f
#define NNS_PICK_6(a, b, c, d, e, f, g, ...) g
#define NNS_PICK_7(a, b, c, d, e, f, g, h, ...) h
#define NNS_PICK_(index, ...) NNS_PICK_##index(__VA_ARGS__)
#define NNS_PICK(index, ...) NNS_PICK_(index, __VA_ARGS__)
#define NNS_COLUMN_(index, row) NNS_COLUMN_OF(index, row)
#define NNS_COLUMN_OF(index, row) NNS_PICK_##index row
#define NNS_COLUMN(index) NNS_COLUMN_(index, NNS_PICK(NNS_INDEX, NNS_ROWS(NNS_ROW) (), (), (), (), (), (), (), ()))

#define NNS_STEM NNS_COLUMN(0)
#define NNS_COLUMN_1 NNS_COLUMN(1)
#define NNS_COLUMN_2 NNS_COLUMN(2)
#define NNS_COLUMN_3 NNS_COLUMN(3)

#define NNS_JOIN_(a, b) a##b
#define NNS_JOIN(a, b) NNS_JOIN_(a, b)
#define NNS_CHECK NNS_JOIN(NNS_STEM, _check)
#define NNS_RUN NNS_JOIN(NNS_STEM, _run)

#endif

#define NNS_INDEX 0
#include NNS_TEMPLATE
#undef NNS_INDEX
#if 0 NNS_ROWS(NNS_ROW_ONE) > 1
#define NNS_INDEX 1
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 2
#define NNS_INDEX 2
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 3
#define NNS_INDEX 3
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 4
#define NNS_INDEX 4
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 5
#define NNS_INDEX 5
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 6
#define NNS_INDEX 6
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 7
#define NNS_INDEX 7
#include NNS_TEMPLATE
#undef NNS_INDEX
#endif
#if 0 NNS_ROWS(NNS_ROW_ONE) > 8
#error "a family has at most 8 kernels per instruction set: add to the list above"
#endif

#undef NNS_TEMPLATE
#undef NNS_ROWS
