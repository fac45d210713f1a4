typedef struct {
    int flags_offset, waits_offset;
    int count;
} semaphore_arguments;

/* A semaphore before a sub-graph: spins until the flags of all sub-graphs in `waits` are set. The host sets flags while the
 * kernel runs, so they must lie in coherent memory. */
kernel void semaphore(const volatile global int *flags_buffer, const global int *waits_buffer, const semaphore_arguments given)
{
    const volatile global int *flags = flags_buffer + given.flags_offset;
    const global int *waits = waits_buffer + given.waits_offset;
    for (int i = 0; i < given.count; i++)
        while (!flags[waits[i]]) {
        }
    mem_fence(CLK_GLOBAL_MEM_FENCE);
}
