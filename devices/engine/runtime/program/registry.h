/* The kernels that this CPU can run, by number, and their families. */
#ifndef NNS_REGISTRY_H
#define NNS_REGISTRY_H

#include "cpu/cpu_features.h"
#include "vectors/kernel.h"

/* A parameter of a family, or an array of `count`; count 0: one element per operand that is read. */
typedef struct {
    const char *name;
    int64_t count;
    int64_t low, high;
    uint64_t among; /* if not 0: bit i says whether i is legal */
} nns_parameter;

/* Kernels that share a parameter list and operands; every family writes one. */
typedef struct {
    const char *name;
    const nns_parameter *parameters;
    int64_t n_parameters; /* entries of `parameters` */
    int32_t n_in;         /* operands that are read; with one parameter per read: the least */
    const nns_kernel *kernels;
    int64_t n_kernels;
    uint64_t requires; /* mask of NNS_CPU(…): features that the kernels use beyond the library's instruction set */
} nns_family;

/* The kernel of that number, or NULL if there is none, and its family. */
const nns_kernel *nns_kernel_at(int64_t id);
const nns_family *nns_family_of(int64_t id);

/* Whether the numbers of operands and parameters are those of the family. */
bool nns_counts_fit(const nns_family *family, const nns_args *args);

typedef struct {
    int32_t parameters, reads;
} nns_counts;

/* How many parameters and reads at their ends a step of an earlier version lacks: those that the family got since; else 0. */
nns_counts nns_lacking(const nns_family *family, const nns_args *args);

/* The index of the first of the parameters, whose number fits, that is not legal, and what it should be; or -1. */
int64_t nns_illegal_parameter(const nns_family *family, const nns_args *args, const nns_parameter **found);

#endif
