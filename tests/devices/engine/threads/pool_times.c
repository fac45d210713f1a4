/* A pool of two threads whose first thread, the caller, is stopped after it has computed its share of one task, until the other
 * thread has computed the whole next task. It is stopped in the clock, which it reads while it waits. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static int stopping_clock(clockid_t clock, struct timespec *now);
#define clock_gettime stopping_clock
#include "../../../../devices/engine/runtime/threads/pool.c"
#include "../../../../devices/engine/runtime/threads/split.c"
#include "../../../../devices/engine/runtime/status.c"
#include "../../../../devices/engine/runtime/threads/threads.c"
#include "../../../../devices/engine/runtime/threads/turn.c"
#undef clock_gettime

enum { SHARES = 2, TASKS = 4, LONG_SPIN = 1000000000 };

static pthread_t caller;
static nns_pool *pool_of_two;
static _Atomic int32_t entered;
static _Atomic bool stopped;

static int64_t computed(void) { return pool_of_two ? atomic_load(&pool_of_two->computed) : 0; }

/* Stops the caller once: it reads the clock first thing after its share, before it may sleep. */
static int stopping_clock(clockid_t clock, struct timespec *now) {
    if (pthread_equal(pthread_self(), caller) && computed() && !atomic_exchange(&stopped, true))
        while (computed() < TASKS * SHARES) usleep(100);
    return clock_gettime(clock, now);
}

/* In the first task both threads take a share; the other thread's is over when the caller has been stopped. In the others a
 * share takes a millisecond. */
static void meet(const nns_args *args, int64_t first, int64_t end, void *scratch) {
    (void)args, (void)first, (void)end, (void)scratch;
    atomic_fetch_add(&entered, 1);
    while (atomic_load(&entered) < SHARES) usleep(100);
    if (pthread_equal(pthread_self(), caller)) return;
    while (!atomic_load(&stopped)) usleep(100);
}

static void last(const nns_args *args, int64_t first, int64_t end, void *scratch) {
    (void)args, (void)scratch;
    usleep((useconds_t)(1000 * (end - first)));
}

/* Runs the tasks on two cores; `times` gets their begins and ends. 0 if it worked. */
int32_t pool_times(const int32_t *cores, int64_t *times) {
    static const nns_kernel meeting = {.run = meet}, lasting = {.run = last};
    static const nns_args none;
    nns_report report = {0};
    nns_task tasks[TASKS];
    uint16_t bounds[TASKS][SHARES + 1];
    caller = pthread_self();
    pool_of_two = nns_pool_acquire(cores, 2, true, 0, &report);
    if (!pool_of_two) return 1;
    for (int i = 0; i < TASKS; i++)
        nns_task_make(&tasks[i], i ? &lasting : &meeting, &none, SHARES, NULL, 2, bounds[i], i ? &tasks[i - 1] : NULL);
    nns_pool_enter(pool_of_two, LONG_SPIN);
    nns_pool_lock(pool_of_two);
    nns_pool_run(pool_of_two, tasks, TASKS, times);
    nns_pool_unlock(pool_of_two);
    nns_pool_leave(pool_of_two);
    nns_pool_release(pool_of_two);
    return 0;
}
