/* The model file (.nnm): a program for one instruction set and its weights, mapped into memory without unpacking.
 *
 *   header    NNS_FILE_WORDS int64 words, numbered below
 *   words     the program, as image.h describes it; kernels are named, never numbered
 *   text      strings with a zero byte behind each, then zero bytes up to a multiple of 8: the instruction set, the
 *             model's name, names of inputs and outputs, names of kernels
 *   padding   up to the constants, which start at a multiple of 4096 bytes
 *   constants prepared weights
 *
 * All numbers are little-endian. The check covers header, words and text.
 */
#ifndef NNS_FILE_H
#define NNS_FILE_H

#include <stddef.h>

#include "status.h"

#define NNS_FILE_MAGIC INT64_C(0x4c45444f4d534e4e) /* "NNSMODEL" */
#define NNS_FILE_VERSION 1

enum {
    NNS_FILE_IS_MODEL,       /* NNS_FILE_MAGIC */
    NNS_FILE_FORMAT,         /* NNS_FILE_VERSION */
    NNS_FILE_BYTES,          /* of the whole file */
    NNS_FILE_N_WORDS,        /* behind the header */
    NNS_FILE_N_TEXT,         /* bytes, a multiple of 8 */
    NNS_FILE_CONSTANTS_AT,   /* byte in the file */
    NNS_FILE_CONSTANT_BYTES, /* up to the end of the file */
    NNS_FILE_CHECK,          /* nns_file_check of the words before this one, the words and the text */
    NNS_FILE_WORDS,
};

typedef struct {
    int64_t *head; /* a copy of header, words and text, which other processes cannot change after validation */
    const int64_t *words;
    int64_t n_words;
    const char *text;
    int64_t text_bytes;
    void *map; /* the whole file, read-only */
    size_t map_bytes;
    const char *constants;
    int64_t constant_bytes;
} nns_file;

/* Opens and maps a model file. `file` must be zeroed before, and closed with nns_file_close also on failure. */
int32_t nns_file_open(const char *path, nns_file *file, nns_report *report);
void nns_file_close(nns_file *file);

#endif
