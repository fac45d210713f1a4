/* Detects the features of the CPU. This file is compiled for the oldest CPU of the architecture, since it runs
 * before anything is known about the CPU. */
#include "cpu_features.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Set in the cached mask after detection, so that a CPU without features is not asked again. */
#define DETECTED (UINT64_C(1) << 63)

_Static_assert(NNS_CPU_FEATURES < 64, "the highest bit of the cached mask is taken");

static const char *const names[] = {
#define NNS_X86(name, level, leaf, subleaf, reg, bit, state, option) #name,
#define NNS_ARM(name, level, word, bit, option) #name,
#define NNS_ARM32(name, level, word, bit, option) #name,
#include "cpu_features.inc"
};

/* ---- detection -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NNS_EAX, NNS_EBX, NNS_ECX, NNS_EDX };

/* State components of XCR0. The registers of SSE need none: every x86-64 system saves them. */
enum { NNS_XMM = 0, NNS_YMM = 0x6, NNS_ZMM = 0xe6, NNS_TILES = 0x60000 };

typedef struct {
    int32_t feature, level;
    uint32_t leaf, subleaf, reg, bit, state;
} feature_row;

static const feature_row rows[] = {
#define NNS_X86(name, level, leaf, subleaf, reg, bit, state, option) \
    {NNS_CPU_##name, level, leaf, subleaf, reg, bit, state},
#include "cpu_features.inc"
};

/* XCR0: the registers that the operating system saves when it switches threads. */
static uint32_t saved_state(void) {
    enum { OSXSAVE = 1 << 27 };
    uint32_t a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return 0;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Whether Linux lets this process use the tiles of AMX, for which it must ask. */
static bool may_use_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool has(const feature_row *row) {
    uint32_t regs[4] = {0};
    if (!__get_cpuid_count(row->leaf, row->subleaf, &regs[NNS_EAX], &regs[NNS_EBX], &regs[NNS_ECX], &regs[NNS_EDX]))
        return false;
    if (!(regs[row->reg] >> row->bit & 1) || (saved_state() & row->state) != row->state) return false;
    return row->state != NNS_TILES || may_use_tiles();
}

#elif defined(__aarch64__) || defined(__arm__)
#include <sys/auxv.h>

typedef struct {
    int32_t feature, level;
    unsigned long word;
    uint32_t bit;
} feature_row;

#ifdef __aarch64__
#define NNS_ARM(name, level, word, bit, option) {NNS_CPU_##name, level, word, bit},
#else
#define NNS_ARM32(name, level, word, bit, option) {NNS_CPU_##name, level, word, bit},
#endif
static const feature_row rows[] = {
#include "cpu_features.inc"
};

static bool has(const feature_row *row) { return getauxval(row->word) >> row->bit & 1; }

#elif defined(__riscv) && __riscv_xlen == 64
typedef struct {
    int32_t feature, level;
} feature_row;

/* The table has no features of RISC-V: kernels use those that every Linux requires, RV64GC. */
static const feature_row rows[] = {{NNS_CPU_FEATURES - 1, 0}};

static bool has(const feature_row *row) { return row->feature == NNS_CPU_FEATURES; }

#else
#error "the engine is written for x86-64, aarch64, 32-bit ARM and riscv64"
#endif

enum { N_ROWS = sizeof rows / sizeof *rows };

/* Whether NNSTRETCH_CPU_FEATURES hides a feature: it lists names with a minus in front, separated by commas. */
static bool is_hidden(const char *name) {
    const size_t length = strlen(name);
    const char *at = getenv("NNSTRETCH_CPU_FEATURES");
    while (at && *at) {
        const size_t word = strcspn(at, ",");
        if (word == length + 1 && *at == '-' && strncmp(at + 1, name, length) == 0) return true;
        at += word + (at[word] == ',');
    }
    return false;
}

uint64_t nns_cpu_features(void) {
    static _Atomic uint64_t cached;
    uint64_t found = atomic_load_explicit(&cached, memory_order_relaxed);
    if (found) return found & ~DETECTED;
    for (int i = 0; i < N_ROWS; i++)
        if (has(&rows[i]) && !is_hidden(names[rows[i].feature])) found |= UINT64_C(1) << rows[i].feature;
    atomic_store_explicit(&cached, found | DETECTED, memory_order_relaxed);
    return found;
}

/* ---- queries ---------------------------------------------------------------------------------------------- */

const char *nns_cpu_feature_name(int32_t bit) { return bit >= 0 && bit < NNS_CPU_FEATURES ? names[bit] : NULL; }

uint64_t nns_features_of_level(int32_t level) {
    uint64_t required = 0;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].level && rows[i].level <= level) required |= UINT64_C(1) << rows[i].feature;
    return required;
}

const char *nns_features_missing(uint64_t required) {
    const uint64_t missing = required & ~nns_cpu_features();
    return missing ? names[__builtin_ctzll(missing)] : NULL;
}
