/* The manifest as C: parameters as structs, and the table of each family.
 *
 * The C file of a family defines `stem_check` and `stem_run` for each row of manifest.h and ends with
 * NNS_DEFINE_FAMILY(family). The engine compares the numbers of operands and parameters and every parameter's range with the
 * manifest before it calls `check`. A kernel reads and writes only what its `check` has compared with the operands' sizes;
 * `run` trusts that. */
#ifndef NNS_FAMILY_H
#define NNS_FAMILY_H

#include "manifest.h"
#include "registry.h"

/* The rows of this instruction set: WHERE_x(row) is the row or nothing. */
#define WHERE_ANY(...) __VA_ARGS__
#if NNS_BLOCK == 16 || defined(__aarch64__)
#define WHERE_REGISTERS_32(...) __VA_ARGS__
#define WHERE_REGISTERS_16(...)
#else
#define WHERE_REGISTERS_32(...)
#define WHERE_REGISTERS_16(...) __VA_ARGS__
#endif
#if defined(__aarch64__)
#define WHERE_NEON(...) __VA_ARGS__
#else
#define WHERE_NEON(...)
#endif
#if NNS_BLOCK == 16
#define WHERE_BLOCK_16(...) __VA_ARGS__
#else
#define WHERE_BLOCK_16(...)
#endif
#if NNS_BLOCK > 4
#define WHERE_BLOCK_OVER_4(...) __VA_ARGS__
#else
#define WHERE_BLOCK_OVER_4(...)
#endif

/* Parameters as a struct: `family_parameters`. Its members are the int64 words of nns_args.p, in order. */
#define NNS_FIELD(name, legal, drawn) int64_t name;
#define NNS_ARRAY_FIELD(name, count, legal, drawn) int64_t name[count];
#define NNS_GROUP_FIELD(group, name) group name;
#define EACH_READ /* a flexible array member */

typedef struct {
    PARAMETERS_kernel_geometry(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD)
} kernel_geometry;
typedef struct {
    PARAMETERS_activation_parameters(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD)
} activation_parameters;

#define NNS_PARAMETERS(family)                                               \
    typedef struct {                                                         \
        PARAMETERS_##family(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD)     \
    } family##_parameters;
FAMILIES(NNS_PARAMETERS)

/* Rows of tables. */
#define RANGE(low, high) low, high, 0
#define ONE_OF(...) 0, 63, NNS_BITS(__VA_ARGS__, 63, 63, 63, 63, 63, 63)
#define NNS_BITS(a, b, c, d, e, f, ...)                                                                     \
    ((UINT64_C(1) << (a) | UINT64_C(1) << (b) | UINT64_C(1) << (c) | UINT64_C(1) << (d) | UINT64_C(1) << (e) | \
      UINT64_C(1) << (f)) & ~(UINT64_C(1) << 63))

#define NNS_PARAMETER_ROW(name, legal, drawn) {#name, 1, legal},
#define NNS_ARRAY_ROW(name, count, legal, drawn) {#name, count + 0, legal},
#define NNS_GROUP_ROWS(group, name) PARAMETERS_##group(NNS_PARAMETER_ROW, NNS_ARRAY_ROW, NNS_GROUP_ROWS)
#define NNS_KERNEL_ROW(stem, name, type, needs, where, ...) \
    WHERE_##where({name, stem##_check, stem##_run},)
#define NNS_ONE(name) +1

/* The features that a file's kernels require beyond the library's instruction set. The build defines it for files named
 * NAME@FEATURE.c, which it compiles with these features. */
#ifndef NNS_REQUIRES
#define NNS_REQUIRES 0
#endif

/* The names of the operands that a family reads: READ_X, READ_WEIGHTS, … */
#define NNS_READ(name) READ_##name,
#define NNS_DEFINE_READS(family) enum { READS_##family(NNS_READ, NNS_READ) }

/* The table of a family. */
#define NNS_DEFINE_FAMILY(family)                                                                                  \
    static const nns_parameter family##_parameter_rows[] = {                                                                 \
        PARAMETERS_##family(NNS_PARAMETER_ROW, NNS_ARRAY_ROW, NNS_GROUP_ROWS)};                                    \
    static const nns_kernel family##_kernels[] = {KERNELS_##family(NNS_KERNEL_ROW)};                               \
    const nns_family nns_family_##family = {#family, family##_parameter_rows, NNS_ARRAY_LENGTH(family##_parameter_rows),               \
                                            0 READS_##family(NNS_ONE, NNS_ONE), family##_kernels,                  \
                                            NNS_ARRAY_LENGTH(family##_kernels), NNS_REQUIRES}

#endif
