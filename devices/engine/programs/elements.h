/* Elements of arrays as numbers, whatever their type. */
#ifndef NNS_ELEMENTS_H
#define NNS_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "nnstretch.h"

/* Whether the elements of a tensor are floating-point numbers. */
bool nns_is_floating(const nns_tensor *tensor);

/* Element `index` of an array like `tensor`. Integers beyond 2^53 are rounded. */
double nns_element(const nns_tensor *tensor, const void *array, int64_t index);

/* Writes element `index` of an array like `tensor`: a finite number, rounded to the nearest one of a floating-point type, ties
 * to even, or an integer in the range of an integer type. */
void nns_set_element(const nns_tensor *tensor, void *array, int64_t index, double value);

/* A random number for an input: `value` for floating-point types; for integers of a byte one by the lowest byte of `bits`, so that
 * all are equally likely, for bool the lowest bit; 0 for wider integers, which may be indices. */
double nns_random_number(const nns_tensor *tensor, double value, uint64_t bits);

#endif
