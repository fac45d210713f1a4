/* The manifest as C: parameters as structs, and the table of each family.
 *
 * The C file of a family defines `stem_check` and `stem_run` for each row of manifest.h and ends with
 * NNS_DEFINE_FAMILY(family). The engine compares the numbers of operands and parameters and every parameter's range
 * with the manifest before it calls `check`. A kernel reads and writes only what its `check` has compared with the
 * operands' sizes; `run` trusts that. */
#ifndef NNS_FAMILY_H
#define NNS_FAMILY_H

#include "manifest.h"
#include "program/registry.h"

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

/* The largest value that a column of the tile has in the rows of this instruction set: NNS_MOST(dense, 1). */
#define NNS_MOST(family, column) (int)sizeof(union {KERNELS_##family(NNS_COLUMN_##column)})
#define NNS_COLUMN_1(stem, name, where, a, ...) WHERE_##where(char stem[a];)
#define NNS_COLUMN_2(stem, name, where, a, b, ...) WHERE_##where(char stem[b];)
#define NNS_COLUMN_3(stem, name, where, a, b, c, ...) WHERE_##where(char stem[c];)
#define NNS_COLUMN_4(stem, name, where, a, b, c, d, ...) WHERE_##where(char stem[d];)
#define NNS_COLUMN_5(stem, name, where, a, b, c, d, e, ...) WHERE_##where(char stem[e];)

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
typedef struct {
    PARAMETERS_rounding_parameters(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD)
} rounding_parameters;
typedef struct {
    PARAMETERS_float_result(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD)
} float_result;

#define NNS_PARAMETERS(family)                                           \
    typedef struct {                                                     \
        PARAMETERS_##family(NNS_FIELD, NNS_ARRAY_FIELD, NNS_GROUP_FIELD) \
    } family##_parameters;
FAMILIES(NNS_PARAMETERS)

/* Rows of tables. */
#define RANGE(low, high) low, high, 0
#define ONE_OF(...) 0, 63, NNS_BITS(__VA_ARGS__, 63, 63, 63, 63, 63, 63)
#define NNS_BITS(a, b, c, d, e, f, ...)                                                                        \
    ((UINT64_C(1) << (a) | UINT64_C(1) << (b) | UINT64_C(1) << (c) | UINT64_C(1) << (d) | UINT64_C(1) << (e) | \
      UINT64_C(1) << (f)) & ~(UINT64_C(1) << 63))

#define NNS_PARAMETER_ROW(name, legal, drawn) {#name, 1, legal},
#define NNS_ARRAY_ROW(name, count, legal, drawn) {#name, count + 0, legal},
#define NNS_GROUP_ROWS(group, name) PARAMETERS_##group(NNS_PARAMETER_ROW, NNS_ARRAY_ROW, NNS_GROUP_ROWS)
#define NNS_KERNEL_ROW(stem, name, where, ...) WHERE_##where(NNS_KERNEL(stem, name))
#define NNS_KERNEL(stem, name) {name, stem##_check, stem##_run},
#define NNS_ONE(name) +1

/* The build compiles a file again for each of its VARIANTS. Then NNS_VARIANT is the variant's suffix of external
 * names, such as _fma, and NNS_REQUIRES the features that it requires beyond the library's instruction set. */
#ifndef NNS_VARIANT
#define NNS_VARIANT
#define NNS_REQUIRES 0
#endif

/* The names of the operands that a family reads: READ_X, READ_WEIGHTS, … */
#define NNS_READ(name) READ_##name,
#define NNS_DEFINE_READS(family) enum { READS_##family(NNS_READ, NNS_READ) }

/* An operand that a family reads, and the refusal of one that is too small. */
typedef struct {
    const char *too_small;
    bool optional;
} nns_operand;
#define NNS_REQUIRED_OPERAND(name) {"the operand " #name " is too small", false},
#define NNS_OPTIONAL_OPERAND(name) {"the operand " #name " is too small", true},

/* Compares the operands' sizes with the bytes that a kernel accesses, as NNS_FLOAT_BYTES gave them: those of the
 * output, then those of each read in the order of READS_family. Returns the reason for refusal, or NULL. */
#define NNS_CHECK_SIZES(family, args, output, ...)                                                                   \
    nns_check_sizes(args, (const nns_operand[]){READS_##family(NNS_REQUIRED_OPERAND, NNS_OPTIONAL_OPERAND)}, output, \
                    NNS_SIZES(__VA_ARGS__))

static __attribute__((noinline, unused)) const char *nns_check_sizes(const nns_args *args, const nns_operand *operands,
                                                                     int64_t output, const int64_t *reads, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(operands[i].optional && !args->in_bytes[i]) && !nns_holds(args->in_bytes[i], reads[i]))
            return operands[i].too_small;
    return nns_holds(args->out_bytes[0], output) ? NULL : "the output is too small";
}

/* Defines `stem_check` by an expression of (args, work), and `stem_run` by one of (args, begin, end, scratch). */
#define NNS_DEFINE_KERNEL(stem, checks, runs)                                                 \
    static const char *stem##_check(const nns_args *args, nns_work *work) { return checks; }  \
    static void stem##_run(const nns_args *args, int64_t begin, int64_t end, void *scratch) { \
        (void)scratch;                                                                        \
        runs;                                                                                 \
    }

/* The table of a family. */
#define NNS_DEFINE_FAMILY(family)                                                    \
    static const nns_parameter family##_parameter_rows[] = {                         \
        PARAMETERS_##family(NNS_PARAMETER_ROW, NNS_ARRAY_ROW, NNS_GROUP_ROWS)};      \
    static const nns_kernel family##_kernels[] = {KERNELS_##family(NNS_KERNEL_ROW)}; \
    const nns_family NNS_JOIN(nns_family_##family, NNS_VARIANT) = {                  \
        #family, family##_parameter_rows, NNS_ARRAY_LENGTH(family##_parameter_rows), \
        0 READS_##family(NNS_ONE, NNS_ONE), family##_kernels, NNS_ARRAY_LENGTH(family##_kernels), NNS_REQUIRES}

#endif
