#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "threads.h"

/* How long workers spin for the next turn, and for anything where threads outnumber cores. */
enum { IDLE_SPIN_NS = 30000, CROWDED_SPIN_NS = 1000 };

/* A worker and its two signals; each counts the jobs of this worker in steps of 2. */
typedef struct {
    nns_signal go, done;
    uint32_t sent; /* the pool's user only: last value of `go` */
    int32_t index;
    pthread_t thread;
    nns_pool *pool;
} nns_worker;

struct nns_pool {
    /* The job: written before the `go` signals and read after them. */
    const nns_kernel *kernel;
    const nns_args *args;
    int64_t units;
    int32_t parts;
    bool stop;

    _Atomic int64_t spin_ns;
    bool crowded;
    int32_t n_threads; /* the caller and n - 1 workers */
    int32_t n_workers; /* started */
    nns_worker *workers;
    void **scratch; /* one per thread */
    int64_t scratch_bytes;
    pthread_mutex_t turn;

    /* Key and place in the list of all pools. */
    int32_t *cores;
    int32_t n_cores, ordinal;
    pid_t process;
    int64_t references;
    nns_pool *next;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static nns_pool *pools;

/* Part `part` of the job: the first units % parts parts have one unit more. */
static void run_part(const nns_pool *pool, int32_t part) {
    const int64_t size = pool->units / pool->parts, larger = pool->units % pool->parts;
    const int64_t begin = part * size + nns_min_int(part, larger);
    pool->kernel->run(pool->args, begin, begin + size + (part < larger), pool->scratch[part]);
}

static void *work(void *argument) {
    nns_worker *worker = argument;
    nns_pool *pool = worker->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = nns_signal_await(&worker->go, seen, atomic_load_explicit(&pool->spin_ns, memory_order_relaxed));
        if (pool->stop) return NULL;
        run_part(pool, worker->index);
        nns_signal_send(&worker->done, seen);
    }
}

void nns_pool_run(nns_pool *pool, const nns_kernel *kernel, const nns_args *args, int64_t units) {
    if (units <= 0) return;
    if (units == 1 || pool->n_threads == 1) {
        kernel->run(args, 0, units, pool->scratch[0]);
        return;
    }
    pool->kernel = kernel;
    pool->args = args;
    pool->units = units;
    pool->parts = (int32_t)nns_min_int(units, pool->n_threads);
    for (int32_t i = 0; i < pool->parts - 1; i++) {
        nns_worker *worker = &pool->workers[i];
        worker->sent += 2;
        nns_signal_send(&worker->go, worker->sent);
    }
    run_part(pool, 0);
    const int64_t spin_ns = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed);
    for (int32_t i = 0; i < pool->parts - 1; i++)
        nns_signal_await(&pool->workers[i].done, pool->workers[i].sent - 2, spin_ns);
}

void nns_pool_lock(nns_pool *pool, int64_t spin_ns) {
    pthread_mutex_lock(&pool->turn);
    if (!pool->crowded) atomic_store_explicit(&pool->spin_ns, spin_ns, memory_order_relaxed);
}

void nns_pool_unlock(nns_pool *pool) {
    if (!pool->crowded) atomic_store_explicit(&pool->spin_ns, IDLE_SPIN_NS, memory_order_relaxed);
    pthread_mutex_unlock(&pool->turn);
}

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
    if (bytes > INT64_MAX / 2)
        return nns_fail(report, NNS_EMEMORY, "a kernel wants %lld bytes of scratch", (long long)bytes);
    bytes = nns_max_int(nns_ceil_div(bytes, NNS_CACHE_LINE), 1) * NNS_CACHE_LINE;
    pthread_mutex_lock(&pool->turn);
    void **larger = bytes > pool->scratch_bytes ? make_scratch(pool->n_threads, bytes) : NULL;
    const bool enough = bytes <= pool->scratch_bytes || larger;
    if (larger) {
        free_scratch(pool->scratch, pool->n_threads);
        pool->scratch = larger;
        pool->scratch_bytes = bytes;
    }
    pthread_mutex_unlock(&pool->turn);
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

/* Stops the workers and frees the pool. The threads of a pool that came through a fork do not exist. */
static void destroy(nns_pool *pool) {
    if (pool->process == getpid()) {
        pool->stop = true;
        for (int32_t i = 0; i < pool->n_workers; i++) nns_signal_send(&pool->workers[i].go, pool->workers[i].sent + 2);
        for (int32_t i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    }
    free_scratch(pool->scratch, pool->n_threads);
    pthread_mutex_destroy(&pool->turn);
    free(pool->workers);
    free(pool->cores);
    free(pool);
}

static int32_t start_workers(nns_pool *pool, nns_report *report) {
    for (int32_t i = 0; i < pool->n_threads - 1; i++) {
        nns_worker *worker = &pool->workers[i];
        worker->index = i + 1;
        worker->pool = pool;
        const int32_t status =
            nns_thread_start(&worker->thread, "nns-worker", &pool->cores[i + 1], 1, work, worker, report);
        if (status) return status;
        pool->n_workers++;
    }
    return NNS_OK;
}

static nns_pool *make(const int32_t *cores, int32_t n_cores, int32_t ordinal, nns_report *report) {
    nns_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        nns_fail(report, NNS_EMEMORY, "no memory for a thread pool");
        return NULL;
    }
    pthread_mutex_init(&pool->turn, NULL);
    pool->n_threads = (int32_t)nns_max_int(n_cores, 1);
    pool->n_cores = n_cores;
    pool->ordinal = ordinal;
    pool->process = getpid();
    pool->crowded = has_duplicates(cores, n_cores);
    pool->spin_ns = pool->crowded ? CROWDED_SPIN_NS : IDLE_SPIN_NS;
    pool->cores = malloc(sizeof *cores * (size_t)pool->n_threads);
    const size_t size = sizeof(nns_worker) * (size_t)pool->n_threads;
    pool->workers = aligned_alloc(NNS_CACHE_LINE, size);
    if (!pool->cores || !pool->workers) {
        nns_fail(report, NNS_EMEMORY, "no memory for a pool of %d threads", (int)pool->n_threads);
        destroy(pool);
        return NULL;
    }
    if (n_cores) memcpy(pool->cores, cores, sizeof *cores * (size_t)n_cores);
    memset(pool->workers, 0, size);
    if (nns_pool_reserve(pool, 0, report) || start_workers(pool, report)) {
        destroy(pool);
        return NULL;
    }
    return pool;
}

static nns_pool *find(const int32_t *cores, int32_t n_cores, int32_t ordinal) {
    const pid_t process = getpid();
    for (nns_pool *pool = pools; pool; pool = pool->next)
        if (pool->process == process && pool->ordinal == ordinal && pool->n_cores == n_cores && n_cores &&
            memcmp(pool->cores, cores, sizeof *cores * (size_t)n_cores) == 0)
            return pool;
    return NULL;
}

nns_pool *nns_pool_acquire(const int32_t *cores, int32_t n_cores, int32_t ordinal, nns_report *report) {
    pthread_mutex_lock(&pools_lock);
    nns_pool *pool = find(cores, n_cores, ordinal);
    if (!pool) {
        pool = make(cores, n_cores, ordinal, report);
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
    if (last) {
        nns_pool **link = &pools;
        while (*link != pool) link = &(*link)->next;
        *link = pool->next;
    }
    pthread_mutex_unlock(&pools_lock);
    if (last) destroy(pool);
}
