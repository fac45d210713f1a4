#include "registry.h"

#include <string.h>

/* One line per family here and in the table below. A kernel's number is its place in the table: it may differ between
 * engines, so files name kernels and never number them. */
#define FAMILY(name) extern const nns_kernel_family nns_family_##name __attribute__((weak));
FAMILY(conv_direct)
FAMILY(conv_planar)
FAMILY(depthwise)
FAMILY(dense)
FAMILY(pool)
FAMILY(eltwise)
FAMILY(concat)
FAMILY(softmax)
FAMILY(resize)
FAMILY(reorder)

static const nns_kernel_family *const families[] = {
    &nns_family_conv_direct, &nns_family_conv_planar, &nns_family_depthwise, &nns_family_dense,  &nns_family_pool,    &nns_family_eltwise,
    &nns_family_concat,      &nns_family_softmax,   &nns_family_resize, &nns_family_reorder,
};

const nns_kernel *nns_kernel_at(int64_t id) {
    if (id < 0) return NULL;
    for (int64_t i = 0; i < NNS_ARRAY_LENGTH(families); i++) {
        if (!families[i]) continue;
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
