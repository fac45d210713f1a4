/* Runs every kernel of the engine on memory of exactly the sizes that its `check` asks for, with random parameters, which are
 * drawn as kernels/manifest.h says. The address sanitizer stops at the first access outside; without it, operands begin behind
 * a page that cannot be accessed, or end before one. Fails if a kernel's `check` refuses nearly all that the manifest draws.
 *
 * kernel_fuzz ROUNDS SEED [FAMILY...]    some families of kernels; by default all */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "family.h"

enum { MOST_PARAMETERS = 64, LARGEST = 1 << 22, READS_OF_ANY_NUMBER = 3, LINE = 64, NUMBERS = 4099 };

static uint64_t state;

static uint64_t draw(uint64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % n;
}

static int64_t between(int64_t low, int64_t high) { return low + (int64_t)draw((uint64_t)(high - low + 1)); }

/* ---- draws: from the values and constraints of the manifest ---------------------------------------------------------- */

static int64_t any_of(const int64_t *values, int64_t count) { return values[draw((uint64_t)count)]; }

#undef ONE_OF
#undef EACH_READ
#define BETWEEN(low, high) between(low, high)
#define ONE_OF(...) any_of(NNS_SIZES(__VA_ARGS__))
#define EACH_READ reads
#define DRAW(name, legal, drawn) *next++ = drawn;
#define DRAW_ARRAY(name, count, legal, drawn) \
    for (int64_t i_ = 0; i_ < (count); i_++) *next++ = drawn;
#define DRAW_GROUP(group, name) PARAMETERS_##group(DRAW, DRAW_ARRAY, DRAW_GROUP)

/* draw_family writes parameters for steps of `reads` operands, at most MOST_PARAMETERS, and returns how many. */
#define DEFINE_DRAW(family)                                                        \
    static int32_t draw_##family(int64_t *drawn_, int32_t reads) {                 \
        int64_t *next = drawn_;                                                    \
        family##_parameters *p = (void *)drawn_;                                   \
        PARAMETERS_##family(DRAW, DRAW_ARRAY, DRAW_GROUP)                          \
        CONSTRAIN_##family(p)                                                      \
        (void)p, (void)reads;                                                      \
        return (int32_t)(next - drawn_);                                           \
    }
FAMILIES(DEFINE_DRAW)

typedef struct {
    const char *family;
    int32_t (*draw)(int64_t *p, int32_t reads);
    const bool *optional; /* of each operand that is read */
} fuzz_row;

#define IS_REQUIRED(name) false,
#define IS_OPTIONAL(name) true,
#define DEFINE_OPTIONAL(family) \
    static const bool optional_##family[NNS_MAX_READS] = {READS_##family(IS_REQUIRED, IS_OPTIONAL)};
FAMILIES(DEFINE_OPTIONAL)

#define FUZZ_ROW(family) {#family, draw_##family, optional_##family},
static const fuzz_row rows[] = {FAMILIES(FUZZ_ROW)};

static const fuzz_row *row_of(const nns_family *family) {
    const fuzz_row *row = rows;
    while (strcmp(row->family, family->name)) row++;
    return row;
}

/* Whether a step may have any number of reads. */
static bool has_parameter_per_read(const nns_family *family) {
    for (int64_t i = 0; i < family->n_parameters; i++)
        if (!family->parameters[i].count) return true;
    return false;
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

#if defined(__SANITIZE_ADDRESS__)
static void *memory_of(int64_t bytes) { return malloc((size_t)bytes); }

/* Aligned as the engine aligns scratch: the sanitizer knows its end to the byte. */
static void *scratch_of(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, LINE, (size_t)bytes)) abort();
    return memory;
}

static void release(void *memory, int64_t bytes) {
    (void)bytes;
    free(memory);
}
#else
enum { PAGE = 4096, MOST_KEPT = 64 };

/* Released runs of 1 to MOST_KEPT pages between two that cannot be accessed, to be used again: mapping takes longer than most
 * kernels. The first word of each is the next one. */
static char *kept[MOST_KEPT + 1];

/* Bytes of the pages that hold an operand, without the pages around them. */
static int64_t paged(int64_t bytes) { return nns_ceil_div(bytes, PAGE) * PAGE; }

/* The first of the pages for `bytes` between two that cannot be accessed. */
static char *pages_of(int64_t bytes) {
    const size_t size = (size_t)paged(bytes), pages = size / PAGE;
    if (pages && pages <= MOST_KEPT && kept[pages]) {
        char *found = kept[pages];
        kept[pages] = *(char **)(void *)found;
        return found;
    }
    char *all = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || (size && mprotect(all + PAGE, size, PROT_READ | PROT_WRITE))) abort();
    return all + PAGE;
}

static void *memory_of(int64_t bytes) {
    char *pages = pages_of(bytes);
    return draw(4) ? pages + paged(bytes) - bytes : pages;
}

/* Aligned as the engine aligns scratch. */
static void *scratch_of(int64_t bytes) {
    const int64_t lines = nns_ceil_div(bytes, LINE) * LINE;
    return pages_of(bytes) + paged(bytes) - lines;
}

static void release(void *memory, int64_t bytes) {
    char *first = (char *)memory - (uintptr_t)memory % PAGE;
    const int64_t pages = paged(bytes) / PAGE;
    if (memory && pages && pages <= MOST_KEPT) {
        *(char **)(void *)first = kept[pages];
        kept[pages] = first;
    } else if (memory) {
        munmap(first - PAGE, (size_t)paged(bytes) + 2 * PAGE);
    }
}
#endif

/* Numbers that operands are made of, from any place on: to draw each one takes longer than most kernels. */
static float numbers[2 * NUMBERS];

static void draw_numbers(void) {
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(numbers); i++) numbers[i] = (float)between(-8, 8) / 8;
}

static float *filled(int64_t bytes) {
    float *memory = memory_of(bytes);
    const int64_t count = bytes / 4;
    for (int64_t i = 0; i < count; i += NUMBERS)
        memcpy(memory + i, numbers + draw(NUMBERS), (size_t)nns_min_int(count - i, NUMBERS) * sizeof *memory);
    return memory;
}

/* Finds the least size of every operand. Whether all of them together are small enough to be tried. */
static int shrink(const nns_kernel *kernel, nns_args *args, const bool *optional) {
    int64_t in[NNS_MAX_READS], out[NNS_MAX_WRITES], total = 0;
    for (int i = 0; i < args->n_out; i++) out[i] = least(kernel, args, &args->out_bytes[i]);
    for (int i = 0; i < args->n_in; i++) in[i] = least(kernel, args, &args->in_bytes[i]);
    for (int i = 0; i < args->n_in; i++) {
        args->in_bytes[i] = optional[i] && draw(2) ? 0 : in[i];
        total = in[i] < LARGEST ? total + in[i] : LARGEST + 1;
    }
    for (int i = 0; i < args->n_out; i++) {
        args->out_bytes[i] = out[i];
        total = out[i] < LARGEST ? total + out[i] : LARGEST + 1;
    }
    return total <= LARGEST;
}

/* Runs the kernel if it accepts the parameters; whether it did. */
static int run(const nns_kernel *kernel, nns_args *args, const bool *optional) {
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
    release(scratch, work.scratch);
    for (int i = 0; i < args->n_out; i++) release(args->out[i], args->out_bytes[i]);
    for (int i = 0; i < args->n_in; i++) release((void *)args->in[i], args->in_bytes[i]);
    return 1;
}

/* Tries a kernel with `rounds` drawn parameters, one of them odd in every fourth round; how often it ran. */
static int64_t try_kernel(const nns_kernel *kernel, const nns_family *family, int64_t rounds) {
    const fuzz_row *row = row_of(family);
    const nns_parameter *illegal;
    int64_t done = 0;
    for (int64_t i = 0; i < rounds; i++) {
        int64_t p[MOST_PARAMETERS];
        nns_args args = {.p = p, .n_in = has_parameter_per_read(family) ? READS_OF_ANY_NUMBER : family->n_in, .n_out = 1};
        args.n_p = row->draw(p, args.n_in);
        if (!nns_counts_fit(family, &args)) abort();
        const bool hostile = draw(4) == 0;
        if (!hostile && nns_illegal_parameter(family, &args, &illegal) >= 0) {
            fprintf(stderr, "kernel %s: the manifest draws an illegal %s\n", kernel->name, illegal->name);
            exit(1);
        }
        if (hostile) p[draw((uint64_t)args.n_p)] = odd[draw(NNS_ARRAY_LENGTH(odd))];
        if (nns_illegal_parameter(family, &args, &illegal) < 0) done += run(kernel, &args, row->optional);
    }
    return done;
}

static bool is_named(const char *name, char **names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

int main(int argc, char **argv) {
    enum { FIRST_FAMILY = 3 };
    const int64_t rounds = argc > 1 ? atoll(argv[1]) : 100;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    draw_numbers();
    int64_t failed = 0;
    for (int64_t id = 0; id < nns_kernel_count(); id++) {
        const nns_kernel *kernel = nns_kernel_at(id);
        const nns_family *family = nns_family_of(id);
        if (argc > FIRST_FAMILY && !is_named(family->name, argv + FIRST_FAMILY, argc - FIRST_FAMILY)) continue;
        printf("%s ", kernel->name);
        fflush(stdout); /* names the kernel if the next line does not return */
        const int64_t done = try_kernel(kernel, family, rounds);
        printf("%lld\n", (long long)done);
        if (done * 20 >= rounds) continue;
        fprintf(stderr, "kernel %s ran %lld of %lld times: the manifest draws too few parameters that it accepts\n",
                kernel->name, (long long)done, (long long)rounds);
        failed++;
    }
    return failed != 0;
}
