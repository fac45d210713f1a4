/* Denormal floats. Most CPUs compute with them many times slower than with normal floats, and no network needs
 * them: kernels read and write them as zero. */
#ifndef NNS_FLOAT_MODE_H
#define NNS_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
/* MXCSR: flush to zero (results), denormals are zero (operands). */
#define NNS_FLUSH_BITS UINT64_C(0x8040)

static inline uint64_t nns_float_mode(void) { return __builtin_ia32_stmxcsr(); }
static inline void nns_float_mode_set(uint64_t mode) { __builtin_ia32_ldmxcsr((uint32_t)mode); }
#elif defined(__aarch64__)
/* FPCR.FZ: operands and results of single and double precision. */
#define NNS_FLUSH_BITS (UINT64_C(1) << 24)

static inline uint64_t nns_float_mode(void) {
    uint64_t mode;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode)::"memory");
    return mode;
}
static inline void nns_float_mode_set(uint64_t mode) { __asm__ __volatile__("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
/* Kernels of 32-bit ARM need no mode: its vectors flush denormals always. */
#define NNS_FLUSH_BITS UINT64_C(0)

static inline uint64_t nns_float_mode(void) { return 0; }
static inline void nns_float_mode_set(uint64_t mode) { (void)mode; }
#endif

/* Flushes denormals of the calling thread to zero. Returns the mode from before, for nns_float_mode_set. */
static inline uint64_t nns_flush_denormals(void) {
    const uint64_t before = nns_float_mode();
    nns_float_mode_set(before | NNS_FLUSH_BITS);
    return before;
}

#endif
