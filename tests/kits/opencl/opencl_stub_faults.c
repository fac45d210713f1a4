/* opencl_stub.c with calls that fail: those from number `first` on of one function, and of clBuildProgram where a test needs its log.
 */
#include <stdint.h>
#include <string.h>

static int stub_fails(const char *name);

#define STUB_FAILS(name) stub_fails(name)
#define STUB_REPORTS 0
/* Functions of opencl_double.c, which calls some of them itself. */
#define clFinish double_finish
#define clEnqueueMapBuffer double_map
#define clEnqueueUnmapMemObject double_unmap
#define clEnqueueReadBuffer double_read
#define clEnqueueWriteBuffer double_write
#include "opencl_stub.c"
#undef clFinish
#undef clEnqueueMapBuffer
#undef clEnqueueUnmapMemObject
#undef clEnqueueReadBuffer
#undef clEnqueueWriteBuffer

static struct {
    char function[64];
    int64_t number, calls, struck;
    int breaks_builds;
} fault;

static int stub_fails(const char *name) {
    if (fault.breaks_builds && !strcmp(name, "clBuildProgram")) return 1;
    if (strcmp(fault.function, name) || ++fault.calls != fault.number) return 0;
    fault.struck++;
    return 1;
}

void stub_set(const char *function, int64_t number, int breaks_builds) {
    memset(&fault, 0, sizeof fault);
    snprintf(fault.function, sizeof fault.function, "%s", function);
    fault.number = number;
    fault.breaks_builds = breaks_builds;
}

/* No faults any more; how many calls failed. */
int64_t stub_clear(void) {
    const int64_t struck = fault.struck;
    memset(&fault, 0, sizeof fault);
    return struck;
}

/* Objects and events that are not released, and accesses to memory out of turn. */
int64_t stub_left(void) {
    return atomic_load(&objects) + double_live_buffers() + double_live_events() + double_misuses();
}

int32_t clFinish(queue *to) { return STUB_FAILS("clFinish") ? OUT_OF_RESOURCES : double_finish(to); }

void *clEnqueueMapBuffer(queue *to, memory *what, uint32_t blocking, uint64_t flags, size_t offset, size_t size, uint32_t n,
                         const void *waits, event **out, int32_t *error) {
    *error = OUT_OF_RESOURCES;
    if (STUB_FAILS("clEnqueueMapBuffer")) return NULL;
    return double_map(to, what, blocking, flags, offset, size, n, waits, out, error);
}

int32_t clEnqueueUnmapMemObject(queue *to, memory *what, void *mapped, uint32_t n, const void *waits, event **out) {
    return STUB_FAILS("clEnqueueUnmapMemObject") ? OUT_OF_RESOURCES : double_unmap(to, what, mapped, n, waits, out);
}

int32_t clEnqueueReadBuffer(queue *to, memory *what, uint32_t blocking, size_t offset, size_t size, void *host, uint32_t n,
                            const void *waits, event **out) {
    if (STUB_FAILS("clEnqueueReadBuffer")) return OUT_OF_RESOURCES;
    return double_read(to, what, blocking, offset, size, host, n, waits, out);
}

int32_t clEnqueueWriteBuffer(queue *to, memory *what, uint32_t blocking, size_t offset, size_t size, const void *host, uint32_t n,
                             const void *waits, event **out) {
    if (STUB_FAILS("clEnqueueWriteBuffer")) return OUT_OF_RESOURCES;
    return double_write(to, what, blocking, offset, size, host, n, waits, out);
}
