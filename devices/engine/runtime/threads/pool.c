#include "pool.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cpu/float_mode.h"
#include "threads.h"

/* How long workers spin for the next run, for the end of a task, and for anything if threads outnumber cores. A caller in Python
 * begins the next run some 60 us after the last, and waking a thread takes 50 us on a virtual machine: MobileNetV2 takes 2.99 ms
 * on two cores where it takes 3.07 with 30 us. A thread that waits longer for the end of a task waits for one whose core another
 * program took; by sleeping it gains time for both. With three busy programs on each of two cores a vision transformer takes 0.82
 * of its time with 1 ms, and on free cores the same. */
enum { IDLE_SPIN_NS = 200000, TASK_SPIN_NS = 200000, CROWDED_SPIN_NS = 1000 };
/* A thread takes 1/PART of what is left of a range, and at least one share. Measured on ResNet-50 with two
 * threads: as fast as fixed halves or 1 % faster on free cores; 15 % faster (median) with a busy loop on one of
 * the cores. 2, 4 and 8 differ by less than the noise. */
enum { PART = 4 };
#define LEAST_SPEED 0.01 /* of a core, for experiments */

/* A worker and its two signals, which count the lists that it received, in steps of 2. Only the pool's user
 * sends `go`, and only the worker sends `done`: together with the list they are a single-producer
 * single-consumer queue. */
typedef struct {
    nns_signal go, done;
    uint32_t sent; /* the pool's user only: last value of `go` */
    int32_t index;
    pthread_t thread;
    nns_pool *pool;
} nns_worker;

/* The remaining shares of a thread in a task: the task's number (its index + 1) in the upper half, then first
 * and end. A lower number means that no share of the task was taken: the whole range of the task's bounds
 * remains. */
typedef struct {
    _Alignas(NNS_CACHE_LINE) _Atomic uint64_t left;
} nns_slot;

struct nns_pool {
    /* The list: written before the `go` signals and read after them. */
    const nns_task *tasks;
    int64_t n_tasks;
    int64_t *times; /* NULL unless the list is timed; the thread that completes a task writes its end */
    bool stop;

    _Atomic int64_t began; /* when the first thread began a timed list */

    _Atomic int64_t spin_ns;
    _Atomic int32_t runs; /* in progress */
    bool crowded;
    bool slowed;       /* a core's speed is below 1, for experiments */
    int32_t n_threads; /* the caller and n - 1 workers */
    int32_t n_workers; /* started */
    nns_worker *workers;
    nns_slot *slots;
    void **scratch; /* one per thread */
    int64_t scratch_bytes;
    nns_turn turn;

    /* Key and place in the list of all pools. */
    int32_t *cores;
    double *speeds; /* one per thread */
    int32_t n_cores, ordinal;
    bool tied;
    pid_t process;
    int64_t references;
    nns_pool *next;

    /* Computed shares of the list. A task is done when its shares and all before them are computed. */
    _Alignas(NNS_CACHE_LINE) _Atomic int64_t computed;
    _Atomic uint32_t sleepers; /* threads that sleep until a task is done */
    _Atomic uint32_t alarm;    /* the word that they sleep on; a change wakes them */
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static nns_pool *pools;

/* ---- shares -------------------------------------------------------------------------------------------- */

/* Takes some shares of thread `whose`, from the front or from the back. False if none are left of this task. A
 * thread that was preempted and continues with an old task gets none, either: when a task is done, each slot
 * with shares carries the number of that task or of a later one. */
static bool take(nns_pool *pool, int32_t whose, uint32_t number, bool back, int64_t *first, int64_t *end) {
    _Atomic uint64_t *slot = &pool->slots[whose].left;
    const uint16_t *bounds = pool->tasks[number - 1].bounds;
    uint64_t seen = atomic_load_explicit(slot, memory_order_relaxed);
    for (;;) {
        nns_jitter();
        const uint32_t at = (uint32_t)(seen >> 32);
        if (at > number) return false;
        const int64_t low = at == number ? (int64_t)(seen >> 16 & UINT16_MAX) : bounds[whose];
        const int64_t high = at == number ? (int64_t)(seen & UINT16_MAX) : bounds[whose + 1];
        if (low >= high) return false;
        const int64_t count = nns_max_int((high - low) / PART, 1);
        *first = back ? high - count : low;
        *end = *first + count;
        const int64_t rest_first = back ? low : *end, rest_end = back ? *first : high;
        const uint64_t left = (uint64_t)number << 32 | (uint64_t)rest_first << 16 | (uint64_t)rest_end;
        if (atomic_compare_exchange_weak_explicit(slot, &seen, left, memory_order_relaxed, memory_order_relaxed))
            return true;
    }
}

/* The scratch memory of a thread that begins a task. */
static void *fresh_scratch(const nns_pool *pool, int32_t thread) {
    *(uint64_t *)pool->scratch[thread] = 0;
    return pool->scratch[thread];
}

/* Spins until work that began at `began` on a core of that speed has taken 1 / speed times as long. */
static void slow_down(double speed, int64_t began) {
    const int64_t now = nns_now();
    const int64_t end = now + (int64_t)((double)(now - began) * (1 / speed - 1));
    while (nns_now() < end) nns_pause();
}

/* Computes some units of a task on a thread, on a core of that thread's speed. */
static void compute(const nns_pool *pool, const nns_task *task, int64_t first, int64_t end, int32_t me) {
    const bool slow = pool->slowed && pool->speeds[me] < 1;
    const int64_t began = slow ? nns_now() : 0;
    task->kernel->run(task->args, first, end, pool->scratch[me]);
    if (slow) slow_down(pool->speeds[me], began);
}

int64_t nns_pool_call_begins(const nns_pool *pool) { return pool && pool->slowed ? nns_now() : 0; }

void nns_pool_call_ends(const nns_pool *pool, int64_t began) {
    if (!pool || !pool->slowed) return;
    double sum = 0;
    for (int32_t i = 0; i < pool->n_threads; i++) sum += pool->speeds[i];
    slow_down(sum / pool->n_threads, began);
}

/* Computes shares of thread `whose` until none are left. Returns their number. */
static int64_t compute_of(nns_pool *pool, int32_t whose, uint32_t number, int32_t me) {
    const nns_task *task = &pool->tasks[number - 1];
    int64_t first = 0, end = 0, count = 0;
    while (take(pool, whose, number, whose != me, &first, &end)) {
        compute(pool, task, first * task->grain, nns_min_int(end * task->grain, task->units), me);
        count += end - first;
    }
    return count;
}

/* ---- barriers ------------------------------------------------------------------------------------------ */

/* Adds to the computed shares of a task, and records the time of the last. The addition and the read of
 * `sleepers` are sequentially consistent, and so are a sleeper's increment of `sleepers` and its read of
 * `computed`: one of the two sees the other. */
static void report_computed(nns_pool *pool, int64_t shares, int64_t index) {
    const nns_task *task = &pool->tasks[index];
    const int64_t now = pool->times ? nns_now() : 0;
    nns_jitter();
    if (atomic_fetch_add(&pool->computed, shares) + shares < task->before + task->shares) return;
    if (pool->times) pool->times[2 * index + 1] = now;
    if (!atomic_load(&pool->sleepers)) return;
    atomic_fetch_add(&pool->alarm, 1);
    nns_futex_wake(&pool->alarm, INT_MAX);
}

static bool is_computed(const nns_pool *pool, int64_t wanted) {
    return atomic_load_explicit(&pool->computed, memory_order_acquire) >= wanted;
}

static void sleep_until_computed(nns_pool *pool, int64_t wanted) {
    atomic_fetch_add(&pool->sleepers, 1);
    for (;;) {
        const uint32_t seen = atomic_load(&pool->alarm);
        nns_jitter();
        if (atomic_load(&pool->computed) >= wanted) break;
        nns_futex_wait(&pool->alarm, seen, 0);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void await_computed(nns_pool *pool, int64_t wanted) {
    enum { BETWEEN_CLOCKS = 64 };
    for (int i = 0; i < BETWEEN_CLOCKS; i++) {
        if (is_computed(pool, wanted)) return;
        nns_pause();
    }
    const int64_t end = nns_now() + nns_min_int(TASK_SPIN_NS, atomic_load_explicit(&pool->spin_ns, memory_order_relaxed));
    do {
        for (int i = 0; i < BETWEEN_CLOCKS; i++) {
            if (is_computed(pool, wanted)) return;
            nns_pause();
        }
    } while (nns_now() < end);
    sleep_until_computed(pool, wanted);
}

/* ---- lists --------------------------------------------------------------------------------------------- */

/* The first thread of the list records when it began. */
static void record_begin(nns_pool *pool) {
    const int64_t now = nns_now();
    int64_t seen = atomic_load_explicit(&pool->began, memory_order_relaxed);
    while (now < seen && !atomic_compare_exchange_weak_explicit(&pool->began, &seen, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

/* Processes the list on one thread. */
static void process_list(nns_pool *pool, int32_t me) {
    if (pool->times) record_begin(pool);
    for (int64_t i = 0; i < pool->n_tasks; i++) {
        const nns_task *task = &pool->tasks[i];
        const int64_t wanted = task->before + task->shares;
        if (!is_computed(pool, wanted)) {
            int64_t mine = 0;
            fresh_scratch(pool, me);
            for (int32_t k = 0; k < pool->n_threads; k++)
                mine += compute_of(pool, (me + k) % pool->n_threads, (uint32_t)(i + 1), me);
            if (mine) report_computed(pool, mine, i);
            await_computed(pool, wanted);
        }
    }
}

/* Lets a thread run on all cores of its pool; one that may not stays where it is. */
static void leave_core(const nns_pool *pool) {
    cpu_set_t before;
    bool moved;
    nns_report ignored = {0};
    nns_thread_pin(pool->cores, pool->n_cores, &before, &moved, &ignored);
}

static void *work(void *argument) {
    nns_worker *worker = argument;
    nns_pool *pool = worker->pool;
    uint32_t seen = 0;
    nns_flush_denormals();
    if (!pool->tied) leave_core(pool);
    for (;;) {
        seen = nns_signal_await(&worker->go, seen, atomic_load_explicit(&pool->spin_ns, memory_order_relaxed));
        if (pool->stop) return NULL;
        process_list(pool, worker->index);
        nns_signal_send(&worker->done, seen);
    }
}

static void run_alone(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times) {
    for (int64_t i = 0; i < n_tasks; i++) {
        nns_jitter();
        if (times) times[2 * i] = nns_now();
        if (tasks[i].units) {
            fresh_scratch(pool, 0);
            compute(pool, &tasks[i], 0, tasks[i].units, 0);
        }
        if (times) times[2 * i + 1] = nns_now();
    }
}

/* A task begins when the task before it ends, and the first one when the first thread reaches it. A thread
 * cannot measure this by itself: when it is preempted between two tasks, others may complete the next ones. */
static void fill_times(const nns_pool *pool) {
    int64_t end = atomic_load_explicit(&pool->began, memory_order_relaxed);
    for (int64_t i = 0; i < pool->n_tasks; i++) {
        pool->times[2 * i] = end;
        if (pool->tasks[i].shares) end = pool->times[2 * i + 1];
        else pool->times[2 * i + 1] = end;
    }
}

/* Whether each task of the list has at most one share. */
static bool is_serial(const nns_task *tasks, int64_t n_tasks) {
    for (int64_t i = 0; i < n_tasks; i++)
        if (tasks[i].shares > 1) return false;
    return true;
}

/* Computes a list on all threads of the pool. */
static void run_together(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times) {
    pool->tasks = tasks;
    pool->n_tasks = n_tasks;
    pool->times = times;
    atomic_store_explicit(&pool->began, INT64_MAX, memory_order_relaxed);
    for (int32_t i = 0; i < pool->n_threads; i++) atomic_store_explicit(&pool->slots[i].left, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->computed, 0, memory_order_relaxed);
    for (int32_t i = 0; i < pool->n_workers; i++) {
        nns_worker *worker = &pool->workers[i];
        worker->sent += 2;
        nns_signal_send(&worker->go, worker->sent);
    }
    process_list(pool, 0);
    const int64_t spin_ns = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed);
    for (int32_t i = 0; i < pool->n_workers; i++)
        nns_signal_await(&pool->workers[i].done, pool->workers[i].sent - 2, spin_ns);
    if (times) fill_times(pool);
}

void nns_pool_run(nns_pool *pool, const nns_task *tasks, int64_t n_tasks, int64_t *times) {
    const uint64_t before = nns_flush_denormals();
    if (pool->n_threads == 1 || is_serial(tasks, n_tasks)) run_alone(pool, tasks, n_tasks, times);
    else run_together(pool, tasks, n_tasks, times);
    nns_float_mode_set(before);
}

/* ---- locks and scratch --------------------------------------------------------------------------------- */

void nns_pool_enter(nns_pool *pool, int64_t spin_ns) {
    atomic_fetch_add(&pool->runs, 1);
    if (!pool->crowded) atomic_store_explicit(&pool->spin_ns, spin_ns, memory_order_relaxed);
}

void nns_pool_leave(nns_pool *pool) {
    const bool last = atomic_fetch_sub(&pool->runs, 1) == 1;
    if (last && !pool->crowded) atomic_store_explicit(&pool->spin_ns, IDLE_SPIN_NS, memory_order_relaxed);
}

bool nns_pool_contended(const nns_pool *pool) {
    return atomic_load_explicit(&pool->runs, memory_order_relaxed) > 1;
}

void nns_pool_lock(nns_pool *pool) { nns_turn_lock(&pool->turn); }

void nns_pool_unlock(nns_pool *pool) { nns_turn_unlock(&pool->turn); }

bool nns_pool_try_lock(nns_pool *pool, nns_waiter *waiter) { return nns_turn_try_lock(&pool->turn, waiter); }

void nns_pool_withdraw(nns_pool *pool, nns_waiter *waiter) { nns_turn_withdraw(&pool->turn, waiter); }

static void free_scratch(void **scratch, int32_t n_threads) {
    for (int32_t i = 0; scratch && i < n_threads; i++) free(scratch[i]);
    free(scratch);
}

static void **make_scratch(int32_t n_threads, int64_t bytes) {
    void **scratch = calloc((size_t)n_threads, sizeof *scratch);
    for (int32_t i = 0; scratch && i < n_threads; i++) {
        scratch[i] = aligned_alloc(NNS_CACHE_LINE, (size_t)bytes);
        if (scratch[i]) continue;
        free_scratch(scratch, n_threads);
        return NULL;
    }
    return scratch;
}

int32_t nns_pool_reserve(nns_pool *pool, int64_t bytes, nns_report *report) {
    if (bytes > NNS_MOST_BYTES / 2)
        return nns_fail(report, NNS_EMEMORY, "a kernel wants %lld bytes of scratch", (long long)bytes);
    bytes = nns_max_int(nns_ceil_div(bytes, NNS_CACHE_LINE), 1) * NNS_CACHE_LINE;
    nns_turn_lock(&pool->turn);
    void **larger = bytes > pool->scratch_bytes ? make_scratch(pool->n_threads, bytes) : NULL;
    const bool enough = bytes <= pool->scratch_bytes || larger;
    if (larger) {
        free_scratch(pool->scratch, pool->n_threads);
        pool->scratch = larger;
        pool->scratch_bytes = bytes;
    }
    nns_turn_unlock(&pool->turn);
    if (enough) return NNS_OK;
    return nns_fail(report, NNS_EMEMORY, "no memory for %d times %lld bytes of scratch", (int)pool->n_threads,
                    (long long)bytes);
}

/* Whether two threads share a core, so that one must not spin while the other works. */
static bool has_duplicates(const int32_t *cores, int32_t n_cores) {
    for (int32_t i = 0; i < n_cores; i++)
        for (int32_t k = 0; k < i; k++)
            if (cores[i] == cores[k]) return true;
    return false;
}

/* Stops the workers and frees the pool. After a fork the workers do not exist in the child. */
static void destroy(nns_pool *pool) {
    if (pool->process == getpid()) {
        pool->stop = true;
        for (int32_t i = 0; i < pool->n_workers; i++) nns_signal_send(&pool->workers[i].go, pool->workers[i].sent + 2);
        for (int32_t i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    }
    free_scratch(pool->scratch, pool->n_threads);
    nns_turn_destroy(&pool->turn);
    free(pool->workers);
    free(pool->slots);
    free(pool->cores);
    free(pool->speeds);
    free(pool);
}

static int32_t start_workers(nns_pool *pool, nns_report *report) {
    for (int32_t i = 0; i < pool->n_threads - 1; i++) {
        nns_worker *worker = &pool->workers[i];
        worker->index = i + 1;
        worker->pool = pool;
        TRY(nns_thread_start(&worker->thread, "nns-worker", &pool->cores[i + 1], 1, work, worker, report));
        pool->n_workers++;
    }
    return NNS_OK;
}

/* The speed of a core in a text such as "1:0.5,3:0.25"; 1 for other cores, texts and speeds. */
static double speed_in(const char *text, int32_t core) {
    while (text && *text) {
        char *end;
        const long number = strtol(text, &end, 10);
        if (end == text || *end != ':') return 1;
        const double speed = strtod(end + 1, &end);
        if (number == core) return speed >= LEAST_SPEED && speed <= 1 ? speed : 1;
        text = *end == ',' ? end + 1 : NULL;
    }
    return 1;
}

/* The speeds of the pool's threads, each of which stands for its core. */
static void read_speeds(nns_pool *pool) {
    const char *text = getenv("NNSTRETCH_CORE_SPEEDS");
    for (int32_t i = 0; i < pool->n_threads; i++) {
        pool->speeds[i] = i < pool->n_cores ? speed_in(text, pool->cores[i]) : 1;
        pool->slowed |= pool->speeds[i] < 1;
    }
}

static nns_pool *make(const int32_t *cores, int32_t n_cores, bool tied, int32_t ordinal, nns_report *report) {
    nns_pool *pool = aligned_alloc(NNS_CACHE_LINE, sizeof *pool);
    if (!pool) {
        nns_fail(report, NNS_EMEMORY, "no memory for a thread pool");
        return NULL;
    }
    memset(pool, 0, sizeof *pool);
    nns_turn_init(&pool->turn);
    pool->n_threads = (int32_t)nns_max_int(n_cores, 1);
    pool->n_cores = n_cores;
    pool->ordinal = ordinal;
    pool->tied = tied;
    pool->process = getpid();
    pool->crowded = has_duplicates(cores, n_cores);
    pool->spin_ns = pool->crowded ? CROWDED_SPIN_NS : IDLE_SPIN_NS;
    pool->cores = malloc(sizeof *cores * (size_t)pool->n_threads);
    pool->speeds = malloc(sizeof *pool->speeds * (size_t)pool->n_threads);
    const size_t size = sizeof(nns_worker) * (size_t)pool->n_threads;
    pool->workers = aligned_alloc(NNS_CACHE_LINE, size);
    pool->slots = aligned_alloc(NNS_CACHE_LINE, sizeof(nns_slot) * (size_t)pool->n_threads);
    if (!pool->cores || !pool->speeds || !pool->workers || !pool->slots) {
        nns_fail(report, NNS_EMEMORY, "no memory for a pool of %d threads", (int)pool->n_threads);
        destroy(pool);
        return NULL;
    }
    if (n_cores) memcpy(pool->cores, cores, sizeof *cores * (size_t)n_cores);
    read_speeds(pool);
    memset(pool->workers, 0, size);
    memset(pool->slots, 0, sizeof(nns_slot) * (size_t)pool->n_threads);
    if (nns_pool_reserve(pool, 0, report) || start_workers(pool, report)) {
        destroy(pool);
        return NULL;
    }
    return pool;
}

static nns_pool *find(const int32_t *cores, int32_t n_cores, bool tied, int32_t ordinal) {
    const pid_t process = getpid();
    for (nns_pool *pool = pools; pool; pool = pool->next)
        if (pool->process == process && pool->ordinal == ordinal && pool->tied == tied && pool->n_cores == n_cores &&
            n_cores && memcmp(pool->cores, cores, sizeof *cores * (size_t)n_cores) == 0)
            return pool;
    return NULL;
}

nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, bool tied, int32_t ordinal, nns_report *report) {
    pthread_mutex_lock(&pools_lock);
    nns_pool *pool = find(cores, n_cores, tied, ordinal);
    if (!pool) {
        pool = make(cores, n_cores, tied, ordinal, report);
        if (pool) {
            pool->next = pools;
            pools = pool;
        }
    }
    if (pool) pool->references++;
    pthread_mutex_unlock(&pools_lock);
    return pool;
}

void nns_pool_release(nns_pool *pool) {
    pthread_mutex_lock(&pools_lock);
    const bool last = --pool->references == 0;
    if (last && pool->process == getpid()) {
        nns_pool **link = &pools;
        while (*link != pool) link = &(*link)->next;
        *link = pool->next;
    }
    pthread_mutex_unlock(&pools_lock);
    if (last) destroy(pool);
}

void nns_pools_forget(void) {
    pools_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL;
}
