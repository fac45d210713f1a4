#include "registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

/* An engine for one CPU has the variants that this CPU takes, and no others. */
#define DECLARE(family) extern const nns_family nns_family_##family __attribute__((weak));
#define DECLARE_VARIANT(family, feature, ...) DECLARE(family##_##feature)
#define DECLARE_NARROW(family) DECLARE(family##_narrow)
FAMILIES(DECLARE)
VARIANTS(DECLARE_VARIANT)
NARROW(DECLARE_NARROW)

#define POINT_TO(family) &nns_family_##family,
#define POINT_TO_VARIANT(family, feature, ...) &nns_family_##family##_##feature,
#define POINT_TO_NARROW(family) &nns_family_##family##_narrow,
static const nns_family *const families[] = {FAMILIES(POINT_TO) VARIANTS(POINT_TO_VARIANT) NARROW(POINT_TO_NARROW)};

/* Families that got parameters and reads at their end, and how many. */
#define COUNTS_OF(family, parameters, reads) {#family, {parameters, reads}},
static const struct {
    const char *family;
    nns_counts counts;
} added[] = {ADDED(COUNTS_OF)};

/* ---- the choice of variants, made once -------------------------------------------------------------------- */

typedef struct {
    const nns_kernel *kernel;
    const nns_family *family;
} entry;

static struct {
    entry *entries; /* names are unique */
    int64_t count;
} table;

static int64_t find(const char *name) {
    for (int64_t id = 0; id < table.count; id++)
        if (strcmp(table.entries[id].kernel->name, name) == 0) return id;
    return -1;
}

/* Adds a kernel, or puts it in the place of a variant that requires fewer features. */
static void add(const nns_kernel *kernel, const nns_family *family) {
    const int64_t id = find(kernel->name);
    entry *place = &table.entries[id < 0 ? table.count++ : id];
    if (id < 0 || __builtin_popcountll(family->requires) > __builtin_popcountll(place->family->requires))
        *place = (entry){kernel, family};
}

/* Without memory for it the table stays empty, and programs are refused. */
static void make_table(void) {
    int64_t most = 0;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++) most += families[i] ? families[i]->n_kernels : 0;
    table.entries = calloc((size_t)most, sizeof *table.entries);
    for (int64_t i = 0; table.entries && i < NNS_ARRAY_LENGTH(families); i++) {
        const nns_family *family = families[i];
        if (!family || nns_features_missing(family->requires)) continue;
        for (int64_t k = 0; k < family->n_kernels; k++) add(&family->kernels[k], family);
    }
}

static const entry *entry_at(int64_t id) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    return id >= 0 && id < table.count ? &table.entries[id] : NULL;
}

/* ---- queries ---------------------------------------------------------------------------------------------- */

const nns_kernel *nns_kernel_at(int64_t id) {
    const entry *found = entry_at(id);
    return found ? found->kernel : NULL;
}

const nns_family *nns_family_of(int64_t id) {
    const entry *found = entry_at(id);
    return found ? found->family : NULL;
}

/* The number of parameters of a step that reads `n_in` operands; `per_read`: whether it depends on these. */
static int64_t count_parameters(const nns_family *family, int32_t n_in, bool *per_read) {
    int64_t count = 0;
    *per_read = false;
    for (int64_t i = 0; i < family->n_parameters; i++) {
        const int64_t entries = family->parameters[i].count;
        *per_read |= entries == 0;
        count += entries ? entries : n_in;
    }
    return count;
}

bool nns_counts_fit(const nns_family *family, const nns_args *args) {
    bool per_read;
    const int64_t count = count_parameters(family, args->n_in, &per_read);
    const bool reads = per_read ? args->n_in >= family->n_in : args->n_in == family->n_in;
    return reads && args->n_out == 1 && args->n_p == count;
}

nns_counts nns_lacking(const nns_family *family, const nns_args *args) {
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(added); i++) {
        const nns_counts counts = added[i].counts;
        if (strcmp(family->name, added[i].family) != 0) continue;
        bool per_read;
        const bool same_reads = args->n_in + counts.reads == family->n_in;
        if (same_reads && count_parameters(family, family->n_in, &per_read) - args->n_p == counts.parameters) return counts;
    }
    return (nns_counts){0};
}

static bool is_legal(const nns_parameter *parameter, int64_t value) {
    if (value < parameter->low || value > parameter->high) return false;
    return !parameter->among || parameter->among >> value & 1;
}

int64_t nns_illegal_parameter(const nns_family *family, const nns_args *args, const nns_parameter **found) {
    int64_t index = 0;
    for (int64_t i = 0; i < family->n_parameters; i++) {
        *found = &family->parameters[i];
        const int64_t entries = (*found)->count ? (*found)->count : args->n_in;
        for (const int64_t end = index + entries; index < end; index++)
            if (!is_legal(*found, args->p[index])) return index;
    }
    return -1;
}

int32_t nns_abi(void) { return NNS_ABI; }

int32_t nns_block(void) { return NNS_BLOCK; }

int64_t nns_kernel_count(void) { return entry_at(0) ? table.count : 0; }

const char *nns_kernel_name(int64_t id) {
    const nns_kernel *kernel = nns_kernel_at(id);
    return kernel ? kernel->name : NULL;
}

uint64_t nns_kernel_features(int64_t id) {
    const entry *found = entry_at(id);
    return found ? found->family->requires : 0;
}

int64_t nns_kernel_find(const char *name) { return entry_at(0) ? find(name) : -1; }

const char *nns_kernel_missing_feature(const char *name) {
    if (nns_kernel_find(name) >= 0) return NULL;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++)
        for (int64_t k = 0; families[i] && k < families[i]->n_kernels; k++)
            if (strcmp(families[i]->kernels[k].name, name) == 0) return nns_features_missing(families[i]->requires);
    return NULL;
}
