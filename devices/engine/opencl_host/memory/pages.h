/* Zeroed memory of the host in whole pages, in huge pages if it is large and the system has them. */
#ifndef NNS_OCL_PAGES_H
#define NNS_OCL_PAGES_H

#include <stdint.h>

enum { NNS_OCL_PAGE = 4096, NNS_OCL_HUGE_PAGE = 2 << 20 };

typedef struct {
    void *map; /* what is mapped, `map_bytes` long */
    uint64_t map_bytes;
    char *start; /* a multiple of a page, or of a huge page */
} nns_ocl_pages;

/* Maps at least `bytes`; `start` is NULL on failure. */
nns_ocl_pages nns_ocl_map_pages(int64_t bytes);
void nns_ocl_unmap_pages(nns_ocl_pages *pages);

/* Asks for huge pages where whole ones lie within memory that was not written yet. */
void nns_ocl_ask_for_huge_pages(char *memory, int64_t bytes);

#endif
