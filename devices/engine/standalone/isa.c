#include "isa.h"

#include <stdbool.h>
#include <stddef.h>

#include "nnstretch.h"

#ifndef NNS_ISA
#error "NNS_ISA must be the name of the instruction set, NNS_ISA_LEVEL its level (x86-64) or 0"
#endif

const char *nns_library_isa(void) { return NNS_ISA; }

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct {
    unsigned leaf, reg, bit; /* register: 1 is ebx, 2 is ecx */
    int level;               /* of x86-64 that needs it */
    const char *name;
} feature;

/* The features by which a CPU of one level is told from one of the level below; the others come with them. */
static const feature features[] = {
    {1, 2, 0, 2, "SSE3"},      {1, 2, 9, 2, "SSSE3"},     {1, 2, 20, 2, "SSE4.2"},     {1, 2, 23, 2, "POPCNT"},
    {1, 2, 12, 3, "FMA"},      {1, 2, 28, 3, "AVX"},      {1, 2, 29, 3, "F16C"},       {7, 1, 3, 3, "BMI1"},
    {7, 1, 5, 3, "AVX2"},      {7, 1, 8, 3, "BMI2"},      {7, 1, 16, 4, "AVX-512F"},   {7, 1, 17, 4, "AVX-512DQ"},
    {7, 1, 28, 4, "AVX-512CD"}, {7, 1, 30, 4, "AVX-512BW"}, {7, 1, 31, 4, "AVX-512VL"},
};

/* Whether the system saves the registers of a level: the state components of YMM, and of masks and ZMM. */
static bool system_saves(int level) {
    enum { OSXSAVE = 1 << 27, YMM = 0x6, ZMM = 0xe6 };
    unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    if (level < 3) return true;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const unsigned needed = level < 4 ? YMM : ZMM;
    return (low & needed) == needed;
}

const char *nns_isa_missing(void) {
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const feature *f = &features[i];
        unsigned found[4] = {0};
        if (f->level > NNS_ISA_LEVEL) continue;
        if (!__get_cpuid_count(f->leaf, 0, &found[0], &found[1], &found[2], &found[3])) return f->name;
        if (!(found[f->reg] >> f->bit & 1)) return f->name;
    }
    return system_saves(NNS_ISA_LEVEL) ? NULL : "wide registers (the system does not save them)";
}

#else

const char *nns_isa_missing(void) { return NULL; }

#endif
