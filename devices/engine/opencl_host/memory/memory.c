#include <stdlib.h>
#include <string.h>

#include "host.h"

enum { SVM_ALIGNMENT = 128 }; /* bytes of the largest type; drivers may reject more */

int32_t nns_ocl_sharing(const nns_ocl_device *device) {
    if (!device->unified) return NNS_SHARING_COPIED;
    return device->fine_grained ? NNS_SHARING_COHERENT : NNS_SHARING_MAPPED;
}

static int32_t fail_memory(const nns_ocl_port *port, int64_t bytes, ocl_int code, nns_report *report) {
    return nns_ocl_fail(port->device, code, report, "has no %lld bytes of memory", (long long)bytes);
}

/* Sizes of memory are at least 1 byte for a driver. */
static size_t size_of(int64_t bytes) { return bytes > 0 ? (size_t)bytes : 1; }

static void free_one(nns_ocl_memory *memory) {
    if (memory->buffer) nns_ocl.ReleaseMemObject(memory->buffer);
    nns_ocl_unmap_pages(&memory->pages);
    memory->buffer = NULL;
}

/* ---- memory of a device ----------------------------------------------------------------------------------- */

/* Memory in pages of the host. */
static int32_t use_pages(const nns_ocl_port *port, ocl_ulong flags, int64_t bytes, const void *content,
                         nns_ocl_memory *memory, nns_report *report) {
    enum { OUT_OF_HOST_MEMORY = -6 };
    ocl_int code = OUT_OF_HOST_MEMORY;
    memory->pages = nns_ocl_map_pages(bytes);
    if (!memory->pages.start) return fail_memory(port, bytes, code, report);
    if (content) memcpy(memory->pages.start, content, (size_t)bytes);
    memory->buffer = nns_ocl.CreateBuffer(port->context, flags | OCL_MEM_USE_HOST_PTR, size_of(bytes),
                                          memory->pages.start, &code);
    return memory->buffer ? NNS_OK : fail_memory(port, bytes, code, report);
}

/* Memory that only the device uses, with a copy of `content` if that is not NULL. A CPU streams weights faster from huge pages, which
 * only the host can ask for. */
static int32_t make_one(const nns_ocl_port *port, ocl_ulong flags, int64_t bytes, const void *content,
                        nns_ocl_memory *memory, nns_report *report) {
    if (!bytes) return NNS_OK;
    if (port->device->on_cpu && port->device->unified) return use_pages(port, flags, bytes, content, memory, report);
    ocl_int code = 0;
    void *from = NULL;
    memcpy(&from, &content, sizeof from); /* the driver copies it and writes nothing there */
    memory->buffer = nns_ocl.CreateBuffer(port->context, flags | (content ? OCL_MEM_COPY_HOST_PTR : 0), size_of(bytes),
                                          from, &code);
    return memory->buffer ? NNS_OK : fail_memory(port, bytes, code, report);
}

/* ---- memory shared with the host -------------------------------------------------------------------------- */

/* Where the host sees a buffer that the driver has allocated; NULL if it cannot be mapped. */
static char *mapped_at(const nns_ocl_port *port, ocl_handle buffer, int64_t bytes) {
    ocl_int code = 0;
    char *host = nns_ocl.EnqueueMapBuffer(port->queue, buffer, 1, OCL_MAP_READ_WRITE, 0, size_of(bytes), 0, NULL, NULL,
                                          &code);
    if (!host || code) return NULL;
    memset(host, 0, (size_t)bytes);
    if (nns_ocl.EnqueueUnmapMemObject(port->queue, buffer, host, 0, NULL, NULL) || nns_ocl.Finish(port->queue))
        return NULL;
    return host;
}

/* Memory that the driver of a GPU allocates where host and device can use it; memory of the host may be copied by such drivers. The
 * engine's regions stay at one address, so a driver that maps it twice at different ones gets memory of the host. */
static bool let_driver_allocate(const nns_ocl_port *port, int64_t bytes, nns_ocl_shared *shared) {
    ocl_int code = 0;
    ocl_handle buffer = nns_ocl.CreateBuffer(port->context, OCL_MEM_READ_WRITE | OCL_MEM_ALLOC_HOST_PTR, size_of(bytes),
                                             NULL, &code);
    if (!buffer) return false;
    shared->host = mapped_at(port, buffer, bytes);
    if (shared->host && mapped_at(port, buffer, bytes) == shared->host) {
        shared->memory.buffer = buffer;
        return true;
    }
    nns_ocl.ReleaseMemObject(buffer);
    shared->host = NULL;
    return false;
}

/* Makes host memory that the driver allocates where the device can copy it by itself; it stays mapped. A driver first copies other
 * memory to its own, which takes several times as long. */
static bool pin(const nns_ocl_port *port, int64_t bytes, nns_ocl_shared *shared) {
    ocl_int code = 0;
    ocl_handle buffer = nns_ocl.CreateBuffer(port->context, OCL_MEM_READ_WRITE | OCL_MEM_ALLOC_HOST_PTR, size_of(bytes),
                                             NULL, &code);
    if (!buffer) return false;
    shared->host = nns_ocl.EnqueueMapBuffer(port->queue, buffer, 1, OCL_MAP_READ_WRITE, 0, size_of(bytes), 0, NULL,
                                            NULL, &code);
    if (shared->host && !code) {
        shared->pinned = buffer;
        memset(shared->host, 0, (size_t)bytes);
        return true;
    }
    nns_ocl.ReleaseMemObject(buffer);
    shared->host = NULL;
    return false;
}

static void unpin(const nns_ocl_port *port, nns_ocl_shared *shared) {
    if (!shared->pinned) return;
    nns_ocl.EnqueueUnmapMemObject(port->queue, shared->pinned, shared->host, 0, NULL, NULL);
    nns_ocl.Finish(port->queue);
    nns_ocl.ReleaseMemObject(shared->pinned);
    shared->pinned = NULL;
}

static int32_t share_one(const nns_ocl_port *port, int64_t bytes, nns_ocl_shared *shared, nns_report *report) {
    if (shared->sharing == NNS_SHARING_MAPPED) {
        if (!port->device->on_cpu && let_driver_allocate(port, bytes, shared)) return NNS_OK;
        TRY(use_pages(port, OCL_MEM_READ_WRITE, bytes, NULL, &shared->memory, report));
    } else {
        TRY(make_one(port, OCL_MEM_READ_WRITE, bytes ? bytes : 1, NULL, &shared->memory, report));
        if (pin(port, bytes, shared)) return NNS_OK;
        shared->memory.pages = nns_ocl_map_pages(bytes);
        if (!shared->memory.pages.start) return fail_memory(port, bytes, 0, report);
    }
    shared->host = shared->memory.pages.start;
    return NNS_OK;
}

static int64_t whole_pages(int64_t bytes) { return (bytes + NNS_OCL_PAGE - 1) / NNS_OCL_PAGE * NNS_OCL_PAGE; }

/* Parts of one allocation of fine-grained shared virtual memory, in huge pages for a device on the CPU. */
static int32_t share_coherently(const nns_ocl_port *port, const int64_t *sizes, int64_t count, nns_ocl_shared *shared,
                                nns_ocl_svm *svm, nns_report *report) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        if (__builtin_add_overflow(total, whole_pages(sizes[i] ? sizes[i] : 1), &total) || total > NNS_MOST_BYTES / 2)
            return fail_memory(port, INT64_MAX, 0, report);
    const int64_t margin = port->device->on_cpu && total >= NNS_OCL_HUGE_PAGE ? NNS_OCL_HUGE_PAGE : 0;
    svm->start = nns_ocl.SVMAlloc(port->context, OCL_MEM_READ_WRITE | OCL_MEM_SVM_FINE_GRAIN_BUFFER,
                                  (size_t)(total + margin), SVM_ALIGNMENT);
    if (!svm->start) return fail_memory(port, total, 0, report);
    ocl_int code = 0;
    svm->buffer = nns_ocl.CreateBuffer(port->context, OCL_MEM_READ_WRITE | OCL_MEM_USE_HOST_PTR,
                                       (size_t)(total + margin), svm->start, &code);
    if (!svm->buffer) return fail_memory(port, total, code, report);
    if (margin) nns_ocl_ask_for_huge_pages(svm->start, total + margin);
    const uint64_t past = (uintptr_t)svm->start % NNS_OCL_HUGE_PAGE;
    int64_t at = margin && past ? NNS_OCL_HUGE_PAGE - (int64_t)past : 0;
    for (int64_t i = 0; i < count; i++) {
        const ocl_part part = {(size_t)at, size_of(sizes[i])};
        shared[i].memory.buffer = nns_ocl.CreateSubBuffer(svm->buffer, OCL_MEM_READ_WRITE,
                                                          OCL_BUFFER_CREATE_TYPE_REGION, &part, &code);
        if (!shared[i].memory.buffer) return fail_memory(port, sizes[i], code, report);
        shared[i].host = svm->start + at;
        memset(shared[i].host, 0, (size_t)sizes[i]);
        at += whole_pages(sizes[i] ? sizes[i] : 1);
    }
    return NNS_OK;
}

int32_t nns_ocl_share(const nns_ocl_port *port, const int64_t *sizes, int64_t count, nns_ocl_shared *shared,
                      nns_ocl_svm *svm, nns_report *report) {
    const int32_t sharing = nns_ocl_sharing(port->device);
    for (int64_t i = 0; i < count; i++) shared[i].sharing = sharing;
    if (sharing == NNS_SHARING_COHERENT) return count ? share_coherently(port, sizes, count, shared, svm, report) : 0;
    for (int64_t i = 0; i < count; i++) TRY(share_one(port, sizes[i], &shared[i], report));
    return NNS_OK;
}

void nns_ocl_free_shared(const nns_ocl_port *port, nns_ocl_shared *shared, int64_t count, nns_ocl_svm *svm) {
    for (int64_t i = 0; shared && i < count; i++) {
        unpin(port, &shared[i]);
        free_one(&shared[i].memory);
    }
    if (svm->buffer) nns_ocl.ReleaseMemObject(svm->buffer);
    if (svm->start) nns_ocl.SVMFree(port->context, svm->start);
    *svm = (nns_ocl_svm){0};
}

/* ---- all of a queue --------------------------------------------------------------------------------------- */

int32_t nns_ocl_make_memory(nns_ocl_port *port, nns_report *report) {
    const nns_ocl_queue *plan = port->plan;
    port->slots = calloc(plan->n_slots ? (size_t)plan->n_slots : 1, sizeof *port->slots);
    if (!port->slots) return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    TRY(nns_ocl_share(port, plan->slots, plan->n_slots, port->slots, &port->svm, report));
    TRY(make_one(port, OCL_MEM_READ_ONLY, plan->constant_bytes, plan->constants, &port->constants, report));
    return make_one(port, OCL_MEM_READ_WRITE, plan->arena_bytes, NULL, &port->arena, report);
}

void nns_ocl_free_memory(nns_ocl_port *port) {
    nns_ocl_free_shared(port, port->slots, port->plan->n_slots, &port->svm);
    free_one(&port->constants);
    free_one(&port->arena);
    free(port->slots);
    port->slots = NULL;
}
