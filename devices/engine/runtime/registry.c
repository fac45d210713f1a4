#include "registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One line per family. */
#define FAMILIES(X) \
    X(conv_direct) \
    X(conv_planar) \
    X(conv_strassen) \
    X(winograd) \
    X(depthwise) \
    X(pair) \
    X(dense) \
    X(pool) \
    X(eltwise) \
    X(concat) \
    X(softmax) \
    X(resize) \
    X(strided) \
    X(reorder)

/* Families in files named NAME@FEATURE.c: the same kernels with more features of the CPU. A library holds those that its
 * instruction set does not include. */
#define VARIANTS(X) \
    X(conv_direct_fma) \
    X(conv_planar_fma) \
    X(conv_strassen_fma) \
    X(winograd_fma) \
    X(depthwise_fma) \
    X(pair_fma) \
    X(dense_fma)

#define DECLARE(name) extern const nns_kernel_family nns_family_##name;
#define DECLARE_WEAK(name) extern const nns_kernel_family nns_family_##name __attribute__((weak));
FAMILIES(DECLARE)
VARIANTS(DECLARE_WEAK)

#define POINT_TO(name) &nns_family_##name,
static const nns_kernel_family *const families[] = {FAMILIES(POINT_TO) VARIANTS(POINT_TO)};

/* ---- the choice of variants, made once -------------------------------------------------------------------- */

typedef struct {
    const nns_kernel *kernel;
    uint64_t requires;
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
static void add(const nns_kernel *kernel, uint64_t requires) {
    const int64_t id = find(kernel->name);
    entry *place = &table.entries[id < 0 ? table.count++ : id];
    if (id < 0 || __builtin_popcountll(requires) > __builtin_popcountll(place->requires))
        *place = (entry){kernel, requires};
}

/* Without memory for it the table stays empty, and programs are refused. */
static void make_table(void) {
    int64_t most = 0;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++) most += families[i] ? families[i]->count : 0;
    table.entries = calloc((size_t)most, sizeof *table.entries);
    for (int64_t i = 0; table.entries && i < NNS_ARRAY_LENGTH(families); i++) {
        const nns_kernel_family *family = families[i];
        if (!family || nns_features_missing(family->requires)) continue;
        for (int64_t k = 0; k < family->count; k++) add(&family->kernels[k], family->requires);
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

int32_t nns_abi(void) { return NNS_ABI; }

int32_t nns_block(void) { return NNS_BLOCK; }

int64_t nns_kernel_count(void) { return entry_at(0) ? table.count : 0; }

const char *nns_kernel_name(int64_t id) {
    const nns_kernel *kernel = nns_kernel_at(id);
    return kernel ? kernel->name : NULL;
}

uint64_t nns_kernel_features(int64_t id) {
    const entry *found = entry_at(id);
    return found ? found->requires : 0;
}

int64_t nns_kernel_find(const char *name) { return entry_at(0) ? find(name) : -1; }

const char *nns_kernel_missing_feature(const char *name) {
    if (nns_kernel_find(name) >= 0) return NULL;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++)
        for (int64_t k = 0; families[i] && k < families[i]->count; k++)
            if (strcmp(families[i]->kernels[k].name, name) == 0) return nns_features_missing(families[i]->requires);
    return NULL;
}
