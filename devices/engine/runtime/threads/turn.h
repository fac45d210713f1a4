/* A lock that no thread awaits for long. A thread that finds it free may take it past those that wait, because waking
 * one of them takes long; after NNS_MOST_PASSES such passes the lock is handed to the one that has waited longest. So
 * with n threads a thread waits for at most (NNS_MOST_PASSES + 1) * (n - 1) turns of the others. */
#ifndef NNS_TURN_H
#define NNS_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { NNS_MOST_PASSES = 2 };

/* A thread that waits. All members but `word` are guarded by the lock's `guard`. */
typedef struct nns_waiter {
    struct nns_waiter *next;
    _Atomic uint32_t *word; /* is changed and woken when the lock may be free or is the waiter's */
    bool queued, granted;
} nns_waiter;

typedef struct {
    _Atomic uint32_t state; /* whether it is held, and whether threads wait */
    pthread_mutex_t guard;  /* of what follows, held for moments only */
    nns_waiter *first, *last;
    int32_t passes; /* past `first` */
} nns_turn;

void nns_turn_init(nns_turn *turn);
void nns_turn_destroy(nns_turn *turn);

void nns_turn_lock(nns_turn *turn);
void nns_turn_unlock(nns_turn *turn);

/* Takes the lock if it is the caller's turn; else queues the caller as `waiter`, whose `word` is set and which is zero
 * otherwise, and returns false. The caller tries again when the word has changed, or withdraws. */
bool nns_turn_try_lock(nns_turn *turn, nns_waiter *waiter);
/* Gives up waiting; no effect on a waiter that is not queued. */
void nns_turn_withdraw(nns_turn *turn, nns_waiter *waiter);

#endif
