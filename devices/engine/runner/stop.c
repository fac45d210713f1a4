#include "stop.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

#include "threads/threads.h"

static volatile sig_atomic_t came;

static void remember(int number) {
    if (came) {
        signal(number, SIG_DFL);
        raise(number);
    }
    came = number;
}

void nns_stop_on_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = remember};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
}

int nns_stop_signal(void) { return came; }

const char *nns_stop_signal_name(void) {
    return came == SIGINT ? "SIGINT" : came == SIGTERM ? "SIGTERM" : came == SIGHUP ? "SIGHUP" : "";
}

void nns_sleep(double seconds) {
    const int64_t end = nns_now() + (int64_t)(seconds * 1e9);
    for (int64_t left; !came && (left = end - nns_now()) > 0;) {
        /* Short sleeps: a signal that comes just before one is seen soon. */
        enum { SLICE = 50000000 };
        const struct timespec time = {.tv_nsec = left < SLICE ? left : SLICE};
        nanosleep(&time, NULL);
    }
}
