/* The machine's float32 peak: as many independent fused multiply-adds as hide their latency. */
#include "clock.h"
#include "kernel.h"

enum { CHAINS = 12, ROUNDS = 20000 };

/* Read at run time: a compiler that knew them would leave out a chain that starts at their fixed point. */
static const volatile float peak_factor = 0.5f, peak_term = 1.0f;

/* Sums that depend on every chain, so that none can be left out. */
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
