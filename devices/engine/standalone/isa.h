/* The instruction set that the engine's kernels are built for, and whether this CPU has it.
 *
 * Files of this folder are compiled for the oldest CPU of the architecture, so that they can say what is missing. */
#ifndef NNS_ISA_H
#define NNS_ISA_H

/* What the CPU lacks, in words, or NULL if it has all that is needed. */
const char *nns_isa_missing(void);

#endif
