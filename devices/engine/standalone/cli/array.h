/* Arrays in files: .npy (NumPy), and raw little-endian numbers under any other name. */
#ifndef NNS_ARRAY_H
#define NNS_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "nnstretch.h"

/* Reads an array that must have the type and shape of `tensor` (a raw file: its size) to `to`. */
void nns_array_read(const char *path, const nns_tensor *tensor, void *to);

/* Writes an array; the file appears whole or not at all. */
void nns_array_write(const char *path, const nns_tensor *tensor, const void *from);

/* Ends the process if nns_array_write could not write there. */
void nns_array_check_writable(const char *path);

/* "1x3x224x224"; `text` has NNS_SHAPE_TEXT bytes. */
#define NNS_SHAPE_TEXT 400
const char *nns_shape_text(const nns_tensor *tensor, char *text);

#endif
