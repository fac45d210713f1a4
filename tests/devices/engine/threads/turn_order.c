/* The lock of devices/engine/runtime/threads/turn.c, for test_turns.py: threads that wait are counted in its queue,
 * so that what happens after that does not depend on time. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "../../../../devices/engine/runtime/threads/turn.c"

enum { MOST_WAITERS = 8 };

static nns_turn turn;
static _Atomic int32_t n_taken;
static int32_t order[MOST_WAITERS], passes_before[MOST_WAITERS];
static _Atomic int32_t passes;

static int32_t n_queued(void) {
    int32_t count = 0;
    pthread_mutex_lock(&turn.guard);
    for (nns_waiter *at = turn.first; at; at = at->next) count++;
    pthread_mutex_unlock(&turn.guard);
    return count;
}

static void *wait_once(void *argument) {
    nns_turn_lock(&turn);
    const int32_t at = atomic_fetch_add(&n_taken, 1);
    order[at] = (int32_t)(intptr_t)argument;
    passes_before[at] = atomic_load(&passes);
    nns_turn_unlock(&turn);
    return NULL;
}

/* Queues `n` threads one after the other and takes the lock again and again until all had it. `got` receives their order and
 * `past` how often the lock was taken before each of them. 0 if it worked. */
int32_t turn_order(int32_t n, int32_t *got, int32_t *past) {
    pthread_t threads[MOST_WAITERS];
    atomic_store(&n_taken, 0);
    atomic_store(&passes, 0);
    nns_turn_init(&turn);
    nns_turn_lock(&turn);
    for (int32_t i = 0; i < n; i++) {
        if (pthread_create(&threads[i], NULL, wait_once, (void *)(intptr_t)i)) return 1;
        while (n_queued() <= i) usleep(100);
    }
    nns_turn_unlock(&turn);
    while (atomic_load(&n_taken) < n) {
        nns_turn_lock(&turn);
        atomic_fetch_add(&passes, 1);
        nns_turn_unlock(&turn);
    }
    for (int32_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        got[i] = order[i];
        past[i] = passes_before[i];
    }
    const int32_t left = (int32_t)atomic_load(&turn.state);
    nns_turn_destroy(&turn);
    return left;
}

/* A waiter that does not block, between two threads that do. 0 if nobody is left behind. */
int32_t turn_withdrawn(int32_t granted) {
    pthread_t threads[2];
    _Atomic uint32_t word = 0;
    nns_waiter waiter = {.word = &word};
    atomic_store(&n_taken, 0);
    nns_turn_init(&turn);
    nns_turn_lock(&turn);
    if (!granted && pthread_create(&threads[0], NULL, wait_once, (void *)0)) return 1;
    while (!granted && n_queued() < 1) usleep(100);
    if (nns_turn_try_lock(&turn, &waiter) || nns_turn_try_lock(&turn, &waiter)) return 2; /* it is queued once */
    if (granted && pthread_create(&threads[0], NULL, wait_once, (void *)0)) return 1;
    if (pthread_create(&threads[1], NULL, wait_once, (void *)1)) return 1;
    while (n_queued() < 3) usleep(100);
    if (granted) turn.passes = NNS_MOST_PASSES;
    const uint32_t seen = atomic_load(&word);
    if (granted) nns_turn_unlock(&turn);
    if (granted && (atomic_load(&word) == seen || n_queued() != 2)) return 3; /* the lock is the waiter's */
    nns_turn_withdraw(&turn, &waiter);
    nns_turn_withdraw(&turn, &waiter); /* has no effect */
    if (!granted) nns_turn_unlock(&turn);
    for (int32_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return atomic_load(&n_taken) == 2 && !atomic_load(&turn.state) ? 0 : 4;
}
