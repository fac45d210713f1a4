/* Threads of the engine, time, and waiting between threads: by spinning first, then on a futex. */
#ifndef NNS_THREADS_H
#define NNS_THREADS_H

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

/* Starts a thread that runs on the given cores only (on any core if there are none). It blocks signals, so
 * that the application's threads receive them, but not those that its own instructions raise (SIGSEGV and others). */
int32_t nns_thread_start(pthread_t *thread, const char *name, const int32_t *cores, int32_t n_cores,
                         void *(*body)(void *), void *argument, nns_report *report);

/* Lets the calling thread run on the given cores only. `before` receives its affinity, `moved` whether that changed. */
int32_t nns_thread_pin(const int32_t *cores, int32_t n_cores, cpu_set_t *before, bool *moved, nns_report *report);
void nns_thread_restore(const cpu_set_t *before);

#define NNS_CACHE_LINE 64

static inline int64_t nns_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Spends some dozen cycles and hints to the core that this is a spin loop. */
static inline void nns_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ __volatile__("yield");
#endif
}

/* Delays a thread at random in sanitizer builds (NNS_SANITIZED), where threads synchronise: rare interleavings
 * become common. */
static inline void nns_jitter(void) {
#ifdef NNS_SANITIZED
    static _Thread_local uint32_t state;
    if (!state) state = (uint32_t)(uintptr_t)&state | 1;
    state = state * 1664525 + 1013904223;
    const uint32_t lot = state >> 16 & 255;
    if (lot < 1) usleep(100);
    else if (lot < 12) sched_yield();
#endif
}

/* Sleeps while `*word == seen`, at most `timeout_ns` if that is positive. May return early. */
static inline void nns_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    /* This call takes seconds and nanoseconds as longs, also where the C library's time has 64 bits on a 32-bit CPU. */
    const long timeout[2] = {(long)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout_ns > 0 ? timeout : NULL, NULL, 0);
}

static inline void nns_futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* A word with one sender and one receiver. Its lowest bit is set while the receiver sleeps; the sender's values
 * are even. Writes of the sender before a send are visible to the receiver after the await. */
typedef struct {
    _Alignas(NNS_CACHE_LINE) _Atomic uint32_t word;
} nns_signal;

/* One exchange publishes the value and reads whether the receiver sleeps. So no wake-up is lost, and none is
 * sent to a receiver that spins. */
static inline void nns_signal_send(nns_signal *signal, uint32_t value) {
    nns_jitter();
    if (atomic_exchange_explicit(&signal->word, value, memory_order_acq_rel) & 1) nns_futex_wake(&signal->word, 1);
}

/* Waits until the value is no longer `seen`, and returns it. Spins for about `spin_ns` first. */
static inline uint32_t nns_signal_await(nns_signal *signal, uint32_t seen, int64_t spin_ns) {
    enum { BETWEEN_CLOCKS = 32 };
    uint32_t now = atomic_load_explicit(&signal->word, memory_order_acquire);
    if (now != seen) return now;
    const int64_t end = nns_now() + spin_ns;
    do {
        for (int i = 0; i < BETWEEN_CLOCKS; i++) {
            nns_pause();
            now = atomic_load_explicit(&signal->word, memory_order_acquire);
            if (now != seen) return now;
        }
    } while (nns_now() < end);
    nns_jitter();
    uint32_t expected = seen;
    if (!atomic_compare_exchange_strong_explicit(&signal->word, &expected, seen | 1, memory_order_acq_rel,
                                                 memory_order_acquire))
        return expected;
    do {
        nns_futex_wait(&signal->word, seen | 1, 0);
        now = atomic_load_explicit(&signal->word, memory_order_acquire);
    } while (now == (seen | 1));
    return now;
}

#endif
