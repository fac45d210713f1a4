#include "turn.h"

#include <limits.h>

#include "threads.h"

enum { HELD = 1, AWAITED = 2 };

void nns_turn_init(nns_turn *turn) {
    *turn = (nns_turn){0};
    pthread_mutex_init(&turn->guard, NULL);
}

void nns_turn_destroy(nns_turn *turn) { pthread_mutex_destroy(&turn->guard); }

/* Takes a lock that is free and that nobody waits for. */
static bool take_unawaited(nns_turn *turn) {
    uint32_t free_and_unawaited = 0;
    return atomic_compare_exchange_strong_explicit(&turn->state, &free_and_unawaited, HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* ---- with the guard held --------------------------------------------------------------------------------- */

static void append(nns_turn *turn, nns_waiter *waiter) {
    waiter->next = NULL;
    waiter->queued = true;
    if (turn->first) turn->last->next = waiter;
    else turn->first = waiter;
    turn->last = waiter;
    atomic_fetch_or_explicit(&turn->state, AWAITED, memory_order_relaxed);
}

static void remove_waiter(nns_turn *turn, nns_waiter *waiter) {
    nns_waiter *before = NULL, *at = turn->first;
    while (at != waiter) before = at, at = at->next;
    if (turn->last == waiter) turn->last = before;
    if (before) before->next = waiter->next;
    else turn->first = waiter->next, turn->passes = 0;
    waiter->queued = false;
    if (!turn->first) atomic_fetch_and_explicit(&turn->state, ~(uint32_t)AWAITED, memory_order_relaxed);
}

/* Takes the lock if it is free and the first waiter was not passed too often. */
static bool acquire(nns_turn *turn, const nns_waiter *waiter) {
    const bool passing = turn->first && turn->first != waiter;
    if (passing && turn->passes >= NNS_MOST_PASSES) return false;
    uint32_t seen = atomic_load_explicit(&turn->state, memory_order_relaxed);
    do {
        if (seen & HELD) return false;
    } while (!atomic_compare_exchange_weak_explicit(&turn->state, &seen, seen | HELD, memory_order_acquire,
                                                    memory_order_relaxed));
    turn->passes += passing;
    return true;
}

/* Changes the word of the first waiter. Returns it for `wake`, which needs no guard: a waiter that is gone by then is
 * woken at worst without a reason. */
static _Atomic uint32_t *notify(nns_waiter *waiter) {
    if (!waiter) return NULL;
    atomic_fetch_add(waiter->word, 1);
    return waiter->word;
}

/* ---- without the guard ----------------------------------------------------------------------------------- */

static void wake(_Atomic uint32_t *word) {
    if (word) nns_futex_wake(word, INT_MAX);
}

bool nns_turn_try_lock(nns_turn *turn, nns_waiter *waiter) {
    nns_jitter();
    if (take_unawaited(turn)) return true;
    pthread_mutex_lock(&turn->guard);
    bool taken = waiter->granted || acquire(turn, waiter);
    if (!taken && !waiter->queued) {
        append(turn, waiter);
        taken = acquire(turn, waiter); /* if it was released before the holder could see a waiter */
    }
    if (taken && waiter->queued) remove_waiter(turn, waiter);
    if (taken) waiter->granted = false;
    pthread_mutex_unlock(&turn->guard);
    return taken;
}

void nns_turn_lock(nns_turn *turn) {
    _Atomic uint32_t word = 0;
    nns_waiter me = {.word = &word};
    for (;;) {
        const uint32_t seen = atomic_load(&word);
        if (nns_turn_try_lock(turn, &me)) return;
        nns_futex_wait(&word, seen, 0);
    }
}

void nns_turn_unlock(nns_turn *turn) {
    nns_jitter();
    uint32_t held = HELD;
    if (atomic_compare_exchange_strong_explicit(&turn->state, &held, 0, memory_order_release, memory_order_relaxed))
        return;
    pthread_mutex_lock(&turn->guard);
    nns_waiter *next = turn->first;
    if (next && turn->passes >= NNS_MOST_PASSES) {
        remove_waiter(turn, next);
        next->granted = true;
    } else {
        atomic_fetch_and_explicit(&turn->state, ~(uint32_t)HELD, memory_order_release);
    }
    _Atomic uint32_t *word = notify(next);
    pthread_mutex_unlock(&turn->guard);
    wake(word);
}

void nns_turn_withdraw(nns_turn *turn, nns_waiter *waiter) {
    _Atomic uint32_t *word = NULL;
    pthread_mutex_lock(&turn->guard);
    const bool granted = waiter->granted;
    waiter->granted = false;
    if (waiter->queued) {
        remove_waiter(turn, waiter);
        if (!(atomic_load_explicit(&turn->state, memory_order_relaxed) & HELD)) word = notify(turn->first);
    }
    pthread_mutex_unlock(&turn->guard);
    wake(word);
    if (granted) nns_turn_unlock(turn);
}
