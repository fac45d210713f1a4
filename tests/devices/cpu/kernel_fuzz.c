/* Runs every kernel of the engine on memory of exactly the sizes that its `check` asks for, with random parameters. Built with
 * the address sanitizer, which stops at the first access outside. Every registered kernel needs a row in `rows` that draws
 * parameters for it; without one, or if its `check` refuses nearly all that the row draws, this fails and says so.
 *
 * kernel_fuzz ROUNDS SEED */
#include <stdio.h>
#include <stdlib.h>

#include "registry.h"

enum { WINDOW = 15, MOST_PARAMETERS = 64, LARGEST = 1 << 22 };

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
    p[0] = between(0, 9);
    p[1] = 0xbf000000; /* -0.5 */
    p[2] = 0x3f000000; /* 0.5 */
}

/* ---- rows: each draws parameters for the kernels whose names begin with its prefix, and says how many operands they have -- */

static int32_t draw_dense(int64_t *p) {
    p[0] = between(1, 16), p[1] = between(1, 80), p[2] = between(1, 150);
    draw_activation(p + 3);
    return 6;
}

static int32_t draw_depthwise(int64_t *p) {
    draw_window(p, 1);
    p[WINDOW] = between(1, 5);
    draw_activation(p + WINDOW + 1);
    return WINDOW + 4;
}

static int32_t draw_planar(int64_t *p) {
    draw_window(p, 0);
    p[WINDOW] = between(1, 5);
    draw_activation(p + WINDOW + 1);
    return WINDOW + 4;
}

static int32_t draw_direct(int64_t *p) {
    draw_window(p, 0);
    const int64_t groups = between(1, 5) > 2 ? between(1, 6) : 1;
    p[1] = groups * between(1, 40), p[4] = groups * between(1, 40);
    p[WINDOW] = groups;
    p[WINDOW + 1] = between(1, 6);
    p[WINDOW + 2] = between(0, 1);
    p[WINDOW + 3] = between(1, 4);
    draw_activation(p + WINDOW + 4);
    return WINDOW + 7;
}

static int32_t draw_strassen(int64_t *p) {
    p[0] = between(1, 2), p[1] = between(1, 100), p[2] = between(2, 60), p[3] = between(1, 200);
    p[4] = between(1, 4), p[5] = between(1, 4);
    draw_activation(p + 6);
    return 9;
}

static int32_t draw_winograd(int64_t *p) {
    draw_window(p, 0);
    const int64_t groups = between(1, 5) > 2 ? between(1, 6) : 1;
    p[1] = groups * between(1, between(0, 1) ? 4 : 40), p[4] = groups * between(1, 40);
    for (int i = 7; i < 9; i++) p[i] = between(0, 1) ? 3 : between(1, 8);
    for (int i = 9; i < 11; i++) p[i] = between(1, 2), p[i + 4] = 1;
    p[WINDOW] = groups, p[WINDOW + 1] = groups == 1 && p[1] <= 4;
    p[WINDOW + 2] = between(1, 60), p[WINDOW + 3] = between(1, 5);
    draw_activation(p + WINDOW + 4);
    return WINDOW + 7;
}

static int32_t draw_pair(int64_t *p) {
    draw_window(p, 1);
    p[1] = p[4] = between(1, 140);
    p[WINDOW] = between(1, 70), p[WINDOW + 1] = between(1, 5);
    draw_activation(p + WINDOW + 2);
    draw_activation(p + WINDOW + 5);
    return WINDOW + 8;
}

static int32_t draw_strided(int64_t *p) {
    for (int i = 0; i < 6; i++) p[i] = i < 4 ? between(1, 3) : between(1, 40), p[i + 6] = between(0, 50);
    p[12] = between(0, 9), p[13] = 1 << between(0, 3);
    return 14;
}

/* 1, 4, 8 or 16 floats side by side. */
static int64_t draw_lanes(int64_t least) {
    static const int64_t lanes[] = {1, 4, 8, 16};
    return lanes[between(least, 3)];
}

static int32_t draw_pool(int64_t *p) {
    p[0] = between(0, 2), p[1] = between(1, 5), p[2] = draw_lanes(0);
    for (int i = 3; i < 7; i++) p[i] = between(1, 30);
    for (int i = 7; i < 9; i++) p[i] = between(1, 5);
    for (int i = 9; i < 11; i++) p[i] = between(1, 3);
    for (int i = 11; i < 15; i++) p[i] = between(0, 4);
    for (int i = 15; i < 17; i++) p[i] = between(1, 3);
    draw_activation(p + 17);
    return 20;
}

static int32_t draw_global_pool(int64_t *p) {
    p[0] = between(0, 1), p[1] = between(0, 6), p[2] = between(1, 900), p[3] = draw_lanes(0);
    draw_activation(p + 4);
    return 7;
}

static int32_t draw_unary(int64_t *p) {
    p[0] = between(0, 9000);
    draw_activation(p + 1);
    return 4;
}

static int32_t draw_binary(int64_t *p) {
    p[0] = between(0, 2), p[1] = between(0, 30), p[3] = between(0, 1) ? draw_lanes(0) : 0;
    p[2] = between(0, 40) * nns_max_int(p[3], 1), p[4] = between(1, 9);
    draw_activation(p + 5);
    return 8;
}

static int32_t draw_affine(int64_t *p) {
    p[0] = between(0, 30), p[2] = draw_lanes(0), p[1] = between(0, 40) * p[2], p[3] = between(1, 9);
    draw_activation(p + 4);
    return 7;
}

static int32_t draw_concat_rows(int64_t *p) {
    p[0] = between(0, 9), p[1] = between(0, 200);
    p[2] = p[1] + between(0, 200);
    for (int i = 3; i < 6; i++) p[2] += p[i] = between(0, 2800);
    return 6;
}

static int32_t draw_concat_lanes(int64_t *p) {
    p[0] = between(0, 3), p[1] = between(1, 90), p[2] = draw_lanes(1), p[3] = between(0, 40);
    p[4] = p[3] + between(0, 40);
    for (int i = 5; i < 8; i++) p[4] += p[i] = between(0, 40);
    return 8;
}

static int32_t draw_softmax(int64_t *p) {
    p[0] = between(0, 5), p[1] = between(1, 100), p[2] = between(0, 1) ? 1 : between(1, 50);
    draw_activation(p + 3);
    return 6;
}

static int32_t draw_resize(int64_t *p) {
    p[0] = between(0, 5), p[1] = draw_lanes(0);
    for (int i = 2; i < 6; i++) p[i] = between(1, 30);
    draw_activation(p + 6);
    return 9;
}

static int32_t draw_channels_last(int64_t *p) {
    p[0] = between(0, 3), p[1] = between(1, 70), p[2] = between(1, 200), p[3] = draw_lanes(1);
    return 4;
}

static int32_t draw_copy(int64_t *p) {
    p[0] = between(0, 160000);
    return 1;
}

static int32_t draw_layout(int64_t *p) {
    p[0] = between(0, 3), p[1] = between(0, 70), p[2] = between(0, 700);
    p[3] = between(0, 1) ? draw_lanes(1) : 0, p[4] = p[3] && between(0, 1) ? 0 : draw_lanes(1);
    return 5;
}

/* Inputs that are there only sometimes. */
enum { THIRD = 1 << 2, FOURTH = 1 << 3, FIFTH = 1 << 4, SIXTH = 1 << 5 };

typedef struct {
    const char *prefix;
    int32_t (*draw)(int64_t *p); /* writes at most MOST_PARAMETERS and returns how many */
    int32_t n_in, optional, n_out;
} row;

static const row rows[] = {
    {"conv_direct_", draw_direct, 4, THIRD | FOURTH, 1},
    {"conv_planar_", draw_planar, 4, THIRD | FOURTH, 1},
    {"conv_strassen_", draw_strassen, 4, THIRD | FOURTH, 1},
    {"winograd_", draw_winograd, 4, THIRD | FOURTH, 1},
    {"expand_depthwise_", draw_pair, 6, THIRD | FIFTH | SIXTH, 1},
    {"depthwise_project_", draw_pair, 6, THIRD | FIFTH | SIXTH, 1},
    {"depthwise_", draw_depthwise, 4, THIRD | FOURTH, 1},
    {"dense_", draw_dense, 4, THIRD | FOURTH, 1},
    {"pool/window", draw_pool, 1, 0, 1},
    {"pool/global", draw_global_pool, 1, 0, 1},
    {"eltwise/unary", draw_unary, 1, 0, 1},
    {"eltwise/binary", draw_binary, 2, 0, 1},
    {"eltwise/affine", draw_affine, 3, 0, 1},
    {"concat/rows", draw_concat_rows, 3, 0, 1},
    {"concat/lanes", draw_concat_lanes, 3, 0, 1},
    {"softmax", draw_softmax, 1, 0, 1},
    {"resize/nearest", draw_resize, 3, 0, 1},
    {"resize/linear", draw_resize, 5, 0, 1},
    {"strided/copy", draw_strided, 1, 0, 1},
    {"strided/channels_last", draw_channels_last, 1, 0, 1},
    {"reorder/copy", draw_copy, 1, 0, 1},
    {"reorder/layout", draw_layout, 1, 0, 1},
};

static const row *row_of(const nns_kernel *kernel) {
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(rows); i++)
        if (strncmp(kernel->name, rows[i].prefix, strlen(rows[i].prefix)) == 0) return &rows[i];
    fprintf(stderr, "kernel %s has no row in kernel_fuzz.c: write one that draws parameters for it\n", kernel->name);
    exit(1);
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

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

/* Memory of exactly that size, aligned as the engine aligns scratch: the sanitizer knows its end to the byte. */
static void *scratch_of(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)bytes)) abort();
    return memory;
}

/* Finds the least size of every operand. Whether all of them together are small enough to be tried. */
static int shrink(const nns_kernel *kernel, nns_args *args, int32_t optional) {
    int64_t in[NNS_MAX_READS], out[NNS_MAX_WRITES], total = 0;
    for (int i = 0; i < args->n_out; i++) out[i] = least(kernel, args, &args->out_bytes[i]);
    for (int i = 0; i < args->n_in; i++) in[i] = least(kernel, args, &args->in_bytes[i]);
    for (int i = 0; i < args->n_in; i++) {
        args->in_bytes[i] = optional >> i & 1 && draw(2) ? 0 : in[i];
        total = in[i] < LARGEST ? total + in[i] : LARGEST + 1;
    }
    for (int i = 0; i < args->n_out; i++) {
        args->out_bytes[i] = out[i];
        total = out[i] < LARGEST ? total + out[i] : LARGEST + 1;
    }
    return total <= LARGEST;
}

/* Runs the kernel if it accepts the parameters; whether it did. */
static int run(const nns_kernel *kernel, nns_args *args, int32_t optional) {
    nns_work work;
    for (int i = 0; i < args->n_in; i++) args->in_bytes[i] = INT64_MAX;
    for (int i = 0; i < args->n_out; i++) args->out_bytes[i] = INT64_MAX;
    if (kernel->check(args, &work) || !shrink(kernel, args, optional)) return 0;
    work = (nns_work){0};
    if (kernel->check(args, &work) || work.units > LARGEST || work.scratch > LARGEST) return 0;
    for (int i = 0; i < args->n_in; i++) args->in[i] = args->in_bytes[i] ? filled(args->in_bytes[i]) : NULL;
    for (int i = 0; i < args->n_out; i++) args->out[i] = filled(args->out_bytes[i]);
    void *scratch = scratch_of(work.scratch);
    if (work.scratch >= 8) memset(scratch, 0, 8);
    for (int64_t begin = 0; begin < work.units;) {
        const int64_t end = between(begin + 1, work.units);
        kernel->run(args, begin, end, scratch);
        begin = end;
    }
    free(scratch);
    for (int i = 0; i < args->n_out; i++) free(args->out[i]);
    for (int i = 0; i < args->n_in; i++) free((void *)args->in[i]);
    return 1;
}

/* Tries a kernel with `rounds` drawn parameters, one of them odd in every fourth round; how often it ran. */
static int64_t try_kernel(const nns_kernel *kernel, int64_t rounds) {
    const row *row = row_of(kernel);
    int64_t done = 0;
    for (int64_t i = 0; i < rounds; i++) {
        int64_t p[MOST_PARAMETERS];
        nns_args args = {.p = p, .n_in = row->n_in, .n_out = row->n_out};
        args.n_p = row->draw(p);
        if (draw(4) == 0) p[draw((uint64_t)args.n_p)] = odd[draw(NNS_ARRAY_LENGTH(odd))];
        done += run(kernel, &args, row->optional);
    }
    return done;
}

int main(int argc, char **argv) {
    const int64_t rounds = argc > 1 ? atoll(argv[1]) : 100;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int64_t failed = 0;
    for (int64_t id = 0; id < nns_kernel_count(); id++) {
        const nns_kernel *kernel = nns_kernel_at(id);
        const int64_t done = try_kernel(kernel, rounds);
        printf("%s %lld\n", kernel->name, (long long)done);
        if (done * 20 >= rounds) continue;
        fprintf(stderr, "kernel %s ran %lld of %lld times: its row in kernel_fuzz.c draws too little that it accepts\n",
                kernel->name, (long long)done, (long long)rounds);
        failed++;
    }
    return failed != 0;
}
