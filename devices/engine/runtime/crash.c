/* A line on the standard error when a signal that the process's own instructions raise ends it. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nns_engine.h"

enum { LINE_BYTES = 512 };

static const struct {
    int number;
    const char *name;
} SIGNALS[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGILL, "SIGILL"}, {SIGFPE, "SIGFPE"}, {SIGABRT, "SIGABRT"}};
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

/* One whole line per signal, so that the handler makes a single call. A new text goes to the set that is not in use. */
static char lines[2][N_SIGNALS][LINE_BYTES];
static _Atomic int in_use;
static struct sigaction before[N_SIGNALS];
static atomic_flag entered = ATOMIC_FLAG_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Compilers inside drivers have handlers that remove their temporary files. An instruction that faults is executed again
 * when a handler returns, and reaches that handler; a signal that was sent does not come again. Calls only what a signal
 * handler may. The second entry ends the process: a handler may have put this one back. */
static void on_crash(int number, siginfo_t *info, void *context) {
    int i = 0;
    while (i < N_SIGNALS - 1 && SIGNALS[i].number != number) i++;
    if (!atomic_flag_test_and_set(&entered)) {
        const char *line = lines[atomic_load(&in_use)][i];
        const bool is_written = write(STDERR_FILENO, line, strlen(line)) > 0, is_sent = info->si_code <= 0;
        if (is_written && !is_sent && !sigaction(number, &before[i], NULL)) return;
        if (before[i].sa_flags & SA_SIGINFO) before[i].sa_sigaction(number, info, context);
        else if (before[i].sa_handler != SIG_DFL && before[i].sa_handler != SIG_IGN) before[i].sa_handler(number);
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* A driver's handler of SIGFPE lets divisions by zero in kernels go on, so it stays. */
static void install(int i) {
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK}, found;
    if (sigaction(SIGNALS[i].number, NULL, &found) || found.sa_sigaction == on_crash) return;
    if (SIGNALS[i].number == SIGFPE && found.sa_handler != SIG_DFL) return;
    before[i] = found;
    sigaction(SIGNALS[i].number, &action, NULL);
}

void nns_crash_line(const char *text) {
    pthread_mutex_lock(&lock);
    const int next = !atomic_load(&in_use);
    for (int i = 0; i < N_SIGNALS; i++) {
        snprintf(lines[next][i], LINE_BYTES - 1, "error: %s %s", SIGNALS[i].name, text);
        strcat(lines[next][i], "\n");
    }
    atomic_store(&in_use, next);
    for (int i = 0; i < N_SIGNALS; i++) install(i);
    pthread_mutex_unlock(&lock);
}
