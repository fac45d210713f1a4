/* Reads the words and the text of a model file, which come from outside. */
#ifndef NNS_FILE_READER_H
#define NNS_FILE_READER_H

#include <string.h>

#include "model_file.h"
#include "program/reader.h"

typedef struct {
    nns_reader input;
    const char *text, *text_end; /* that is left to read */
} nns_file_reader;

#define NNS_DAMAGE "the model file is damaged: "
#define DAMAGED(r, ...) nns_fail((r)->input.report, NNS_EINVALID, NNS_DAMAGE __VA_ARGS__)

/* Reads the number of items that take at least `least` words each. */
static inline int32_t nns_read_count(nns_file_reader *r, int64_t *count, const char *what, int64_t least) {
    return nns_read(&r->input, count, what, 0, (r->input.end - r->input.at) / least);
}

/* Reads the next string. */
static inline int32_t nns_read_text(nns_file_reader *r, const char **text, const char *what) {
    const char *zero = r->text < r->text_end ? memchr(r->text, 0, (size_t)(r->text_end - r->text)) : NULL;
    if (!zero) return DAMAGED(r, "it lacks %s", what);
    *text = r->text;
    r->text = zero + 1;
    return NNS_OK;
}

/* Reads what the OpenCL queues of a file need into `image->devices`, and checks it: nothing in it reaches beyond its memory
 * or names what does not exist. Cores of the queues are missing yet. */
int32_t nns_devices_read(nns_file_reader *r, const nns_file *file, nns_image *image);

/* Reads what the call queues of a file need into `image->calls`, and checks it likewise. Cores of the queues are missing yet. */
int32_t nns_calls_read(nns_file_reader *r, const nns_file *file, nns_image *image);

/* Reads the type of an array: its element type, float32 if `has_type` is false, and its shape. */
int32_t nns_read_type(nns_file_reader *r, bool has_type, nns_tensor *tensor);

#endif
