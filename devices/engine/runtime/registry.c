#include "registry.h"

#include <string.h>

/* One line per family. A kernel's number is its place in the table: it may differ between engines, so files name
 * kernels and never number them. */
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

#define DECLARE(name) extern const nns_kernel_family nns_family_##name;
FAMILIES(DECLARE)

#define POINT_TO(name) &nns_family_##name,
static const nns_kernel_family *const families[] = {FAMILIES(POINT_TO)};

const nns_kernel *nns_kernel_at(int64_t id) {
    if (id < 0) return NULL;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++) {
        if (id < families[i]->count) return &families[i]->kernels[id];
        id -= families[i]->count;
    }
    return NULL;
}

int32_t nns_abi(void) { return NNS_ABI; }

int32_t nns_block(void) { return NNS_BLOCK; }

int64_t nns_kernel_count(void) {
    int64_t count = 0;
    while (nns_kernel_at(count)) count++;
    return count;
}

const char *nns_kernel_name(int64_t id) {
    const nns_kernel *kernel = nns_kernel_at(id);
    return kernel ? kernel->name : NULL;
}

int64_t nns_kernel_find(const char *name) {
    for (int64_t id = 0;; id++) {
        const nns_kernel *kernel = nns_kernel_at(id);
        if (!kernel) return -1;
        if (strcmp(kernel->name, name) == 0) return id;
    }
}
