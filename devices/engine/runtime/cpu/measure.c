/* Measures the machine: float32 peak and current clock; and flushes caches for measurements. */
#include "cpu_features.h"
#include "vectors/kernel.h"
#include "threads/threads.h"

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
