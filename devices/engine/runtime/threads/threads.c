#include "threads.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static int32_t fail_start(const int32_t *cores, int32_t n_cores, int error, nns_report *report) {
    if (n_cores && error == EINVAL)
        return nns_fail(report, NNS_ETHREAD, "a thread cannot be pinned to core %d%s; this process may not use it",
                        (int)cores[0], n_cores > 1 ? " and others" : "");
    return nns_fail(report, NNS_ETHREAD, "a thread cannot be started: %s", strerror(error));
}

static cpu_set_t set_of(const int32_t *cores, int32_t n_cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int32_t i = 0; i < n_cores; i++) CPU_SET((size_t)cores[i], &set);
    return set;
}

/* A new thread inherits the affinity of the thread that starts it. So the calling thread moves to the cores and
 * back: not every C library has affinity attributes. */
static int create_on(pthread_t *thread, const int32_t *cores, int32_t n_cores, void *(*body)(void *), void *argument) {
    if (!n_cores) return pthread_create(thread, NULL, body, argument);
    const cpu_set_t wanted = set_of(cores, n_cores);
    cpu_set_t before;
    if (sched_getaffinity(0, sizeof before, &before) || sched_setaffinity(0, sizeof wanted, &wanted)) return errno;
    const int error = pthread_create(thread, NULL, body, argument);
    nns_thread_restore(&before);
    return error;
}

/* All signals but those that a thread's own instructions raise. The system ends a process that blocks one of these
 * without a call of its handler. */
static void fill_foreign(sigset_t *signals) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigfillset(signals);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(signals, own[i]);
}

int32_t nns_thread_start(pthread_t *thread, const char *name, const int32_t *cores, int32_t n_cores,
                         void *(*body)(void *), void *argument, nns_report *report) {
    sigset_t foreign, before;
    fill_foreign(&foreign);
    pthread_sigmask(SIG_SETMASK, &foreign, &before);
    const int error = create_on(thread, cores, n_cores, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return fail_start(cores, n_cores, error, report);
    pthread_setname_np(*thread, name);
    return NNS_OK;
}

int32_t nns_thread_pin(const int32_t *cores, int32_t n_cores, cpu_set_t *before, bool *moved, nns_report *report) {
    const cpu_set_t wanted = set_of(cores, n_cores);
    *moved = false;
    if (sched_getaffinity(0, sizeof *before, before))
        return nns_fail(report, NNS_ETHREAD, "the cores of this thread cannot be read: %s", strerror(errno));
    if (CPU_EQUAL(before, &wanted)) return NNS_OK;
    if (sched_setaffinity(0, sizeof wanted, &wanted))
        return nns_fail(report, NNS_ETHREAD, "core %d%s cannot be used by this process: %s", (int)cores[0],
                        n_cores > 1 ? " and others" : "", strerror(errno));
    *moved = true;
    return NNS_OK;
}

void nns_thread_restore(const cpu_set_t *before) { sched_setaffinity(0, sizeof *before, before); }
