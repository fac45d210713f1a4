/* Measures the machine: float32 peak, current clock, barriers of thread pools; and flushes caches for
 * measurements. */
#include <stdlib.h>

#include "clock.h"
#include "cpu_features.h"
#include "pool.h"
#include "threads.h"

enum { CHAINS = 12, ROUNDS = 20000 };

/* Enough independent fused multiply-adds to hide their latency. The sum depends on each chain, so that none is
 * optimised away. */
static float multiply_add(nns_vec *chains, nns_vec factor, nns_vec term) {
    nns_vec c[CHAINS];
    memcpy(c, chains, sizeof c);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CHAINS; i++) c[i] = c[i] * factor + term;
    memcpy(chains, c, sizeof c);
    nns_vec sum = nns_zero();
    for (int i = 0; i < CHAINS; i++) sum += c[i];
    return nns_sum_lanes(sum);
}

/* Volatile: a compiler that knows the values would drop a chain that starts at their fixed point. */
static const volatile float peak_factor = 0.5f, peak_term = 1.0f;

double nns_peak_gflops(int32_t milliseconds) {
    nns_vec chains[CHAINS];
    for (int i = 0; i < CHAINS; i++) chains[i] = nns_broadcast((float)i);
    const nns_vec factor = nns_broadcast(peak_factor), term = nns_broadcast(peak_term);
    const double flops = 2.0 * NNS_BLOCK * CHAINS * ROUNDS;
    const int64_t end = nns_now() + (int64_t)milliseconds * 1000000;
    double best = 0;
    volatile float sink = 0;
    do {
        const int64_t begin = nns_now();
        sink = sink * 0.0f + multiply_add(chains, factor, term);
        const double gflops = flops / (double)(nns_now() - begin);
        best = gflops > best ? gflops : best;
    } while (nns_now() < end);
    return best;
}

enum { TILE_ROWS = 6, TILE_VECTORS = 2, TILE_STEPS = 64, TILES = 300 };

/* Repeats one tile of a matrix product with operands in the L1 cache. */
static float multiply_tiles(const nns_vec *weights, const float *inputs) {
    nns_vec sums[TILE_ROWS][TILE_VECTORS] = {{{0}}};
    for (int tile = 0; tile < TILES; tile++)
        for (int step = 0; step < TILE_STEPS; step++)
            for (int row = 0; row < TILE_ROWS; row++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    sums[row][i] +=
                        nns_broadcast(inputs[row * TILE_STEPS + step]) * weights[step * TILE_VECTORS + i];
    nns_vec sum = nns_zero();
    for (int row = 0; row < TILE_ROWS; row++)
        for (int i = 0; i < TILE_VECTORS; i++) sum += sums[row][i];
    return nns_sum_lanes(sum);
}

double nns_clock_gflops(void) {
    nns_vec weights[TILE_STEPS * TILE_VECTORS];
    float inputs[TILE_ROWS * TILE_STEPS];
    const float input = peak_factor;
    for (int i = 0; i < TILE_STEPS * TILE_VECTORS; i++) weights[i] = nns_broadcast((float)i);
    for (int i = 0; i < TILE_ROWS * TILE_STEPS; i++) inputs[i] = input;
    const int64_t begin = nns_now();
    volatile float sink = multiply_tiles(weights, inputs);
    const int64_t end = nns_now();
    (void)sink;
    return 2.0 * NNS_BLOCK * TILE_ROWS * TILE_VECTORS * TILE_STEPS * TILES / (double)(end - begin);
}

#if defined(__x86_64__)
/* Unordered flushes do not wait for each other: up to twenty times as fast. */
__attribute__((target("clflushopt"))) static void flush_unordered(const char *line, const char *end) {
    for (; line < end; line += NNS_CACHE_LINE) __builtin_ia32_clflushopt(line);
}

static void flush_lines(const char *line, const char *end) {
    if (nns_cpu_features() & NNS_CPU(clflushopt)) {
        flush_unordered(line, end);
        return;
    }
    for (; line < end; line += NNS_CACHE_LINE) __builtin_ia32_clflush(line);
}
#elif defined(__aarch64__)
static void flush_lines(const char *line, const char *end) {
    for (; line < end; line += NNS_CACHE_LINE) __asm__ volatile("dc civac, %0" : : "r"(line) : "memory");
}
#else
static void flush_lines(const char *line, const char *end) { (void)line, (void)end; }
#endif

void nns_flush(const void *memory, int64_t bytes) {
    const char *line = (const char *)((uintptr_t)memory & ~(uintptr_t)(NNS_CACHE_LINE - 1));
    flush_lines(line, (const char *)memory + bytes);
    atomic_thread_fence(memory_order_seq_cst);
}

static const char *check_nothing(const nns_args *args, nns_work *work) {
    *work = (nns_work){.units = args->n_p};
    return NULL;
}

static void run_nothing(const nns_args *args, int64_t begin, int64_t end, void *scratch) {
    (void)args, (void)begin, (void)end, (void)scratch;
}

static double time_lists(nns_pool *pool, int32_t n_cores, int32_t steps, nns_task *tasks, uint16_t *bounds) {
    enum { LISTS = 50 };
    static const nns_kernel nothing = {"nothing", check_nothing, run_nothing};
    static const nns_args args;
    for (int32_t i = 0; i < steps; i++)
        nns_task_make(&tasks[i], &nothing, &args, n_cores, NULL, n_cores, bounds, i ? &tasks[i - 1] : NULL);
    int64_t best = INT64_MAX;
    nns_pool_enter(pool, 1000000);
    nns_pool_lock(pool);
    for (int list = 0; list < LISTS; list++) {
        const int64_t begin = nns_now();
        nns_pool_run(pool, tasks, steps, NULL);
        best = nns_min_int(best, nns_now() - begin);
    }
    nns_pool_unlock(pool);
    nns_pool_leave(pool);
    return (double)best / steps;
}

double nns_join_ns(const int32_t *cores, int32_t n_cores, int32_t steps) {
    if (n_cores < 1 || n_cores > NNS_MAX_CORES || steps < 1) return -1;
    for (int32_t i = 0; i < n_cores; i++)
        if (cores[i] < 0 || cores[i] >= NNS_MAX_CORES) return -1;
    nns_report report = {0};
    cpu_set_t before;
    bool moved = false;
    if (nns_thread_pin(cores[0], &before, &moved, &report)) return -1;
    nns_pool *pool = nns_pool_acquire(cores, n_cores, 0, &report);
    nns_task *tasks = calloc((size_t)steps, sizeof *tasks);
    uint16_t *bounds = calloc((size_t)n_cores + 1, sizeof *bounds);
    const double ns = pool && tasks && bounds ? time_lists(pool, n_cores, steps, tasks, bounds) : -1;
    free(bounds);
    free(tasks);
    if (pool) nns_pool_release(pool);
    if (moved) nns_thread_restore(&before);
    return ns;
}
