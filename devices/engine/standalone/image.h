/* Translates a model file to a program image of this engine (nns_engine.h).
 *
 * The words of a file:
 *
 *   block, arena bytes, constant bytes
 *   n_inputs, n_outputs, then for each of them { rank, extent… }
 *   n_queues, then for each of them { threads, core… }
 *   n_kernels
 *   n_buffers, n_steps, n_subgraphs
 *   buffers, steps, subgraphs    as in a program image, the id of a step being the number of its kernel's name
 *
 * Regions are the inputs, the outputs, the arena and the constants, in this order; all steps are kernels on
 * host queues.
 */
#ifndef NNS_IMAGE_H
#define NNS_IMAGE_H

#include "cores.h"
#include "file.h"
#include "nnstretch.h"

typedef struct {
    const char *name;
    nns_tensor *tensors; /* inputs, then outputs; shapes and names are the file's */
    int32_t n_inputs, n_outputs;
    int64_t arena_bytes;
    int64_t *image;
    int64_t words;
    int32_t threads;
    uint64_t features; /* that its kernels require beyond the instruction set (nns_kernel_features) */
} nns_image;

/* Translates a file's program for cores that `options` allow. The engine validates the rest when it receives
 * the image. `image` must be zeroed before, and freed with nns_image_free also on failure. */
int32_t nns_image_make(const nns_file *file, const nns_model_options *options, nns_image *image, nns_report *report);
void nns_image_free(nns_image *image);

#endif
