/* Features of the CPU, as bits of one 64-bit mask. The rows are in cpu_features.inc. */
#ifndef NNS_CPU_FEATURES_H
#define NNS_CPU_FEATURES_H

#include <stdint.h>

#include "nns_engine.h"

/* Bit numbers: NNS_CPU_fma, NNS_CPU_asimddp, … */
enum {
#define NNS_X86(name, level, leaf, subleaf, reg, bit, state, option) NNS_CPU_##name,
#define NNS_ARM(name, level, word, bit, option) NNS_CPU_##name,
#define NNS_ARM32(name, level, word, bit, option) NNS_CPU_##name,
#include "cpu_features.inc"
    NNS_CPU_FEATURES
};

_Static_assert(NNS_CPU_FEATURES <= 64, "features are bits of a uint64_t");

/* The mask of one feature: NNS_CPU(fma). */
#define NNS_CPU(name) (UINT64_C(1) << NNS_CPU_##name)

/* The features that a level of this architecture includes: 2 to 4 for x86-64-v2 to v4, 1 for others. */
uint64_t nns_features_of_level(int32_t level);

/* The name of the first feature of `required` that this CPU lacks, or NULL. */
const char *nns_features_missing(uint64_t required);

#endif
