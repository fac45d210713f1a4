/* Ends of a measurement from outside: SIGINT, SIGTERM and SIGHUP. */
#ifndef NNS_STOP_H
#define NNS_STOP_H

/* From now on the first of these signals is remembered, and a second one ends the process. */
void nns_stop_on_signals(void);

/* The signal that came, or 0. */
int nns_stop_signal(void);

/* Its name. */
const char *nns_stop_signal_name(void);

/* Sleeps, but not beyond such a signal. */
void nns_sleep(double seconds);

#endif
