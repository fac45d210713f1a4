/* The kernels of the engine: one row per kernel, and one list of parameters and operands per family. The files of `manifest`
 * hold the lists of the families of a folder, and their names in FAMILIES_folder.
 *
 * A family is the kernels that share a parameter list and operands. Four lists describe it:
 *
 *   PARAMETERS_family(P, A, G)         its int64 parameters in order:
 *                                      P(name, legal values, values to draw in tests), one parameter;
 *                                      A(name, count, legal, draw), an array; EACH_READ: one element per read;
 *                                      G(group, name), the parameters of another list
 *   READS_family(REQUIRED, OPTIONAL)   names of the operands that it reads; every family writes one
 *   KERNELS_family(K)                  K(stem, name, where, tile…), the best kernel first
 *   CONSTRAIN_family(p)                statements that fit drawn parameters to each other, for kernel_fuzz.c
 *
 * Legal values are RANGE(low, high) or ONE_OF(…) of numbers below 64; the engine refuses a program with others before
 * it asks the kernel. Draws are BETWEEN(low, high) or ONE_OF(…).
 *
 * A kernel's functions are `stem_check` and `stem_run` in the family's C file. Its name is what packages and profiles
 * hold: it never changes. `where` is the vector hardware that it is written for:
 *
 *   ANY   REGISTERS_32   REGISTERS_16   NEON   BLOCK_16 (vectors of 16 floats)   BLOCK_OVER_4 (of 8 or 16 floats)
 *
 * COLUMNS_family names the tile's columns.
 *
 * VARIANTS lists the families that are compiled again with CPU features beyond the engine's instruction set, NARROW those
 * with kernels for weights of seven bits. ADDED lists
 * those that got parameters, or optional operands that they read, at the end after packages had been written, and how many of
 * each since each earlier version: in a step that lacks them parameters are 0, and operands absent.
 *
 * Readers: the C preprocessor (family.h, registry.c, the families' files, tests/devices/cpu/kernel_fuzz.c),
 * devices/cpu/manifest.py, which reads only the C syntax that these lists use, and the build (VARIANTS).
 *
 * To add a kernel to a family, add its row. To add a family, write its C file, and its lists and its name in the file of
 * its folder. */
#ifndef NNS_MANIFEST_H
#define NNS_MANIFEST_H

#include "manifest/parameters.h"
#include "manifest/convolution.h"
#include "manifest/winograd.h"
#include "manifest/attention.h"
#include "manifest/recurrence.h"
#include "manifest/memory_bound.h"
#include "manifest/int8.h"
#include "manifest/bfloat16.h"
#include "manifest/float16.h"

/* ---- families --------------------------------------------------------------------------------------------------- */

#define FAMILIES(F)          \
    FAMILIES_convolution(F)  \
    FAMILIES_winograd(F)     \
    FAMILIES_attention(F)    \
    FAMILIES_recurrence(F)   \
    FAMILIES_memory_bound(F) \
    FAMILIES_int8(F)         \
    FAMILIES_bfloat16(F)     \
    FAMILIES_float16(F)

/* F(family, features…): the build compiles the family's file again with these CPU features, for instruction sets that
 * lack one of them; the first names the variant. Features of vectors that no level of the architecture includes are for
 * the instruction set with vectors of that width. The engine uses the variant with the most features that the CPU has.
 * Families of one file have the same variants. */
#define VARIANTS(F)                                                \
    F(conv_direct, fma)                                            \
    F(conv_planar, fma)                                            \
    F(conv_strassen, fma)                                          \
    F(winograd, fma)                                               \
    F(winograd_int16, fma)                                         \
    F(depthwise, fma)                                              \
    F(expand_depthwise, fma)                                       \
    F(depthwise_project, fma)                                      \
    F(inverted_residual, fma)                                      \
    F(dense, fma)                                                  \
    F(dense_int16, fma)                                            \
    F(conv_int8, avx512_vnni)                                      \
    F(conv_int8, avx_vnni)                                         \
    F(conv_int8, asimddp)                                          \
    F(conv_int8_planar, avx512_vnni)                               \
    F(conv_int8_planar, avx_vnni)                                  \
    F(conv_int8_planar, asimddp)                                   \
    F(rows_int8, avx512_vnni)                                      \
    F(rows_int8, amx_int8, amx_tile, avx512_vnni)                  \
    F(rows_int8, avx_vnni)                                         \
    F(rows_int8, asimddp)                                          \
    F(rows_int8, i8mm, asimddp)                                    \
    F(depthwise_int8, avx512_vnni)                                 \
    F(depthwise_int8, avx_vnni)                                    \
    F(depthwise_int8, asimddp)                                     \
    F(dense_int8, avx512_vnni)                                     \
    F(dense_int8, avx_vnni)                                        \
    F(dense_int8, asimddp)                                         \
    F(dense_int8, i8mm, asimddp)                                   \
    F(int8_table, avx512vbmi)                                      \
    F(conv_bfloat16, avx512_bf16)                                  \
    F(conv_bfloat16, amx_bf16, amx_tile, avx512_bf16)              \
    F(conv_bfloat16, bf16)                                         \
    F(expand_depthwise_bfloat16, avx512_bf16)                      \
    F(expand_depthwise_bfloat16, amx_bf16, amx_tile, avx512_bf16)  \
    F(expand_depthwise_bfloat16, bf16)                             \
    F(depthwise_project_bfloat16, avx512_bf16)                     \
    F(depthwise_project_bfloat16, amx_bf16, amx_tile, avx512_bf16) \
    F(depthwise_project_bfloat16, bf16)                            \
    F(dense_bfloat16, avx512_bf16)                                 \
    F(dense_bfloat16, amx_bf16, amx_tile, avx512_bf16)             \
    F(dense_bfloat16, bf16)                                        \
    F(attention_bfloat16, avx512_bf16)                             \
    F(attention_bfloat16, bf16)                                    \
    F(conv_float16, asimdhp)                                       \
    F(dense_float16, asimdhp)                                      \
    F(attention, fma)                                              \
    F(matmul, fma)                                                 \
    F(recurrence, fma)

/* F(family): a file of its own compiles the family's file again for weights within ±64 (int8/narrow.h), for x86-64 with AVX2.
 * Names of these kernels end with _narrow. */
#define NARROW(F)       \
    F(conv_int8)        \
    F(conv_int8_planar) \
    F(rows_int8)        \
    F(dense_int8)

/* A(family, parameters, reads) */
#define ADDED(A)               \
    A(conv_strassen, 1, 0)     \
    A(conv_strassen, 6, 0)     \
    A(conv_strassen, 7, 0)     \
    A(conv_int8, 5, 0)         \
    A(conv_int8, 3, 0)         \
    A(conv_int8_planar, 5, 0)  \
    A(conv_int8_planar, 3, 0)  \
    A(rows_int8, 7, 0)         \
    A(rows_int8, 3, 0)         \
    A(depthwise_int8, 5, 0)    \
    A(depthwise_int8, 3, 0)    \
    A(dense_int8, 5, 0)        \
    A(dense_int8, 3, 0)        \
    A(attention, 3, 1)         \
    A(attention_bfloat16, 3, 1)

#endif
