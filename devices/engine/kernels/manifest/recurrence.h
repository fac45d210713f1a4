/* Kernels of recurrent layers: a part of manifest.h. */

#define FAMILIES_recurrence(F) F(recurrence)

/* ---- recurrence: recurrence/recurrence.c --------------------------------------------------------------------------- */

#define PARAMETERS_recurrence(P, A, G)                                                                      \
    P(images, RANGE(1, MOST_EXTENT), BETWEEN(1, 2))                                                         \
    P(steps, RANGE(1, MOST_EXTENT), BETWEEN(1, 5))                                                          \
    P(sequences, RANGE(1, MOST_EXTENT), BETWEEN(1, 20)) /* per image */                                     \
    P(hidden, RANGE(1, MOST_STEP), BETWEEN(1, 40)) /* units */                                              \
    P(directions, RANGE(1, 2), BETWEEN(1, 2))                                                               \
    P(reverse, RANGE(0, 1), BETWEEN(0, 1)) /* the first direction begins at the last step */                \
    P(steps_inner, RANGE(0, 1), BETWEEN(0, 1)) /* the steps of a sequence are neighbours */                 \
    P(block, ONE_OF(0, 4, 8, 16), ONE_OF(0, 0, 4, 8, 16)) /* of x and the result; 0 or the engine's */      \
    P(chunk, RANGE(1, 64), BETWEEN(1, 20)) /* sequences per unit of work, at most */
#define READS_recurrence(REQUIRED, OPTIONAL) \
    REQUIRED(X) REQUIRED(WEIGHTS) OPTIONAL(BIAS) OPTIONAL(HIDDEN) OPTIONAL(CELL)
#define COLUMNS_recurrence(cell, rows)
#define KERNELS_recurrence(K)                                                                    \
    K(lstm_r6, "recurrence/lstm_r6", REGISTERS_32, LSTM, 6)                                      \
    K(lstm_r3, "recurrence/lstm_r3", REGISTERS_16, LSTM, 3)                                      \
    K(gru_before_r8, "recurrence/gru_reset_before_r8", REGISTERS_32, GRU_RESET_BEFORE, 8)        \
    K(gru_before_r4, "recurrence/gru_reset_before_r4", REGISTERS_16, GRU_RESET_BEFORE, 4)        \
    K(gru_after_r7, "recurrence/gru_reset_after_r7", REGISTERS_32, GRU_RESET_AFTER, 7)           \
    K(gru_after_r3, "recurrence/gru_reset_after_r3", REGISTERS_16, GRU_RESET_AFTER, 3)
#define CONSTRAIN_recurrence(p) if (draw(3) == 0) p->hidden = 16 * between(1, 3);
