#include "pages.h"

#include <stddef.h>
#include <sys/mman.h>

static uint64_t round_up(uint64_t number, uint64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

nns_ocl_pages nns_ocl_map_pages(int64_t bytes) {
    nns_ocl_pages pages = {0};
    const uint64_t alignment = bytes >= NNS_OCL_HUGE_PAGE ? NNS_OCL_HUGE_PAGE : NNS_OCL_PAGE;
    const uint64_t margin = alignment > NNS_OCL_PAGE ? alignment : 0;
    pages.map_bytes = round_up(bytes > 0 ? (uint64_t)bytes : 1, NNS_OCL_PAGE) + margin;
    if (pages.map_bytes > SIZE_MAX / 2) return (nns_ocl_pages){0};
    void *map = mmap(NULL, (size_t)pages.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return (nns_ocl_pages){0};
    pages.map = map;
    pages.start = (char *)map + (round_up((uintptr_t)map, alignment) - (uintptr_t)map);
    if (margin) nns_ocl_ask_for_huge_pages(pages.start, bytes);
    return pages;
}

void nns_ocl_unmap_pages(nns_ocl_pages *pages) {
    if (pages->map) munmap(pages->map, (size_t)pages->map_bytes);
    *pages = (nns_ocl_pages){0};
}

void nns_ocl_ask_for_huge_pages(char *memory, int64_t bytes) {
    const uintptr_t start = round_up((uintptr_t)memory, NNS_OCL_HUGE_PAGE);
    const uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / NNS_OCL_HUGE_PAGE * NNS_OCL_HUGE_PAGE;
    if (end > start) madvise(memory + (start - (uintptr_t)memory), end - start, MADV_HUGEPAGE);
}
