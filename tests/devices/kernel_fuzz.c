/* Runs the convolution and dense kernels on memory of exactly the sizes that their `check` asks for, with random parameters.
 * Built with the address sanitizer, which stops at the first access outside.
 *
 * kernel_fuzz ROUNDS SEED */
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

extern const nns_kernel_family nns_family_conv_direct, nns_family_conv_planar, nns_family_conv_strassen;
extern const nns_kernel_family nns_family_winograd, nns_family_depthwise, nns_family_pair, nns_family_dense;

enum { WINDOW = 15, LARGEST = 1 << 22, READS = 6 };

static uint64_t state;

static uint64_t draw(uint64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % n;
}

static int64_t between(int64_t low, int64_t high) { return low + (int64_t)draw((uint64_t)(high - low + 1)); }

static void draw_window(int64_t *p, int narrow) {
    p[0] = between(1, 2);
    p[1] = between(1, 40);
    p[2] = between(1, 14);
    p[3] = between(1, 33);
    p[4] = narrow ? p[1] : between(1, 100);
    p[5] = between(1, 9);
    p[6] = between(1, 30);
    for (int i = 7; i < 9; i++) p[i] = between(1, 5);
    for (int i = 9; i < 11; i++) p[i] = between(1, 3);
    for (int i = 11; i < 13; i++) p[i] = between(0, 4);
    for (int i = 13; i < 15; i++) p[i] = between(1, 3);
}

static void draw_activation(int64_t *p) {
    p[0] = between(0, 8);
    p[1] = 0xbf000000; /* -0.5 */
    p[2] = 0x3f000000; /* 0.5 */
}

/* Parameters of a kernel of `family`; their count. */
static int32_t draw_parameters(const nns_kernel_family *family, int64_t *p) {
    if (family == &nns_family_dense) {
        p[0] = between(1, 16), p[1] = between(1, 80), p[2] = between(1, 150);
        draw_activation(p + 3);
        return 6;
    }
    if (family == &nns_family_conv_strassen) {
        p[0] = between(1, 2), p[1] = between(1, 100), p[2] = between(1, 60), p[3] = between(1, 200);
        p[4] = between(1, 4), p[5] = between(1, 4);
        draw_activation(p + 6);
        return 9;
    }
    draw_window(p, family == &nns_family_depthwise || family == &nns_family_pair);
    if (family == &nns_family_winograd) {
        const int64_t groups = between(1, 5) > 2 ? between(1, 6) : 1;
        p[1] = groups * between(1, 40), p[4] = groups * between(1, 40);
        for (int i = 7; i < 9; i++) p[i] = 3;
        for (int i = 9; i < 11; i++) p[i] = p[i + 4] = 1;
        p[WINDOW] = groups;
        p[WINDOW + 1] = between(1, 60);
        draw_activation(p + WINDOW + 2);
        return WINDOW + 5;
    }
    if (family == &nns_family_pair) {
        p[WINDOW] = between(1, 70), p[WINDOW + 1] = between(1, 5);
        draw_activation(p + WINDOW + 2);
        draw_activation(p + WINDOW + 5);
        return WINDOW + 8;
    }
    if (family != &nns_family_conv_direct) {
        p[WINDOW] = between(1, 5);
        draw_activation(p + WINDOW + 1);
        return WINDOW + 4;
    }
    const int64_t groups = between(1, 5) > 2 ? between(1, 6) : 1;
    p[1] = groups * between(1, 40), p[4] = groups * between(1, 40);
    p[WINDOW] = groups;
    p[WINDOW + 1] = between(1, 6);
    p[WINDOW + 2] = between(0, 1);
    p[WINDOW + 3] = between(1, 4);
    draw_activation(p + WINDOW + 4);
    return WINDOW + 7;
}

static const int64_t odd[] = {0, -1, 1, 2, 7, 64, 4095, 4096, 4097, 1 << 20, INT64_C(1) << 31, INT64_C(1) << 62, INT64_MIN};

/* The least size above 0 of an operand that `check` accepts while the others are huge. */
static int64_t least(const nns_kernel *kernel, nns_args *args, int64_t *size) {
    nns_work work;
    int64_t low = 0, high = *size;
    while (high - low > 1) {
        *size = low + (high - low) / 2;
        if (kernel->check(args, &work))
            low = *size;
        else
            high = *size;
    }
    *size = INT64_MAX;
    return high;
}

static float *filled(int64_t bytes) {
    float *memory = malloc((size_t)bytes);
    for (int64_t i = 0; i < bytes / 4; i++) memory[i] = (float)between(-8, 8) / 8;
    return memory;
}

/* Whether a kernel with `n` reads does without the one at `i`: biases and residuals. */
static int may_be_absent(int n, int i) { return n == READS ? i == 2 || i > 3 : i > 1; }

/* Runs the kernel if it accepts the parameters; whether it did. */
static int run(const nns_kernel *kernel, nns_args *args, int optional) {
    nns_work work;
    for (int i = 0; i < args->n_in; i++) args->in_bytes[i] = INT64_MAX;
    args->out_bytes[0] = INT64_MAX;
    if (kernel->check(args, &work)) return 0;
    const int64_t out = least(kernel, args, &args->out_bytes[0]);
    int64_t in[READS], total = out;
    for (int i = 0; i < args->n_in; i++) {
        in[i] = least(kernel, args, &args->in_bytes[i]);
        if (may_be_absent(args->n_in, i) && optional >> i & 1) in[i] = 0;
        total = in[i] < LARGEST ? total + in[i] : LARGEST + 1;
    }
    for (int i = 0; i < args->n_in; i++) args->in_bytes[i] = in[i];
    args->out_bytes[0] = out;
    if (total > LARGEST || kernel->check(args, &work) || work.units > LARGEST) return 0;
    for (int i = 0; i < args->n_in; i++) args->in[i] = in[i] ? filled(in[i]) : NULL;
    args->out[0] = filled(out);
    void *scratch = malloc((size_t)work.scratch + 1);
    for (int64_t begin = 0; begin < work.units;) {
        const int64_t end = between(begin + 1, work.units);
        kernel->run(args, begin, end, scratch);
        begin = end;
    }
    free(scratch);
    free(args->out[0]);
    for (int i = 0; i < args->n_in; i++) free((void *)args->in[i]);
    return 1;
}

int main(int argc, char **argv) {
    const nns_kernel_family *families[] = {&nns_family_conv_direct, &nns_family_conv_planar, &nns_family_conv_strassen,
                                           &nns_family_winograd, &nns_family_depthwise, &nns_family_pair,
                                           &nns_family_dense};
    const int64_t rounds = argc > 1 ? atoll(argv[1]) : 1000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int64_t done = 0;
    for (int64_t i = 0; i < rounds; i++) {
        const nns_kernel_family *family = families[draw(NNS_ARRAY_LENGTH(families))];
        int64_t p[32];
        nns_args args = {.p = p, .n_in = family == &nns_family_pair ? READS : 4, .n_out = 1};
        args.n_p = draw_parameters(family, p);
        if (draw(4) == 0) p[draw((uint64_t)args.n_p)] = odd[draw(NNS_ARRAY_LENGTH(odd))];
        done += run(&family->kernels[draw((uint64_t)family->count)], &args, (int)draw(1 << READS));
    }
    printf("%lld\n", (long long)done);
    return 0;
}
