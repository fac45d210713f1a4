/* The model file (.nnm): a program for one instruction set and its weights, mapped into memory without unpacking.
 * file.c opens it, cores.c assigns the cores of this machine to its queues, image.c translates it to a program image
 * of this engine (nns_engine.h), devices.c reads what its OpenCL queues need (opencl_host.h), calls.c what its call queues need
 * (litert_host.h).
 *
 *   header    NNS_FILE_WORDS int64 words, numbered below
 *   words     the program
 *   text      strings with a zero byte after each, then zero bytes up to a multiple of 8: the instruction set, the
 *             model's name, names of inputs and outputs, names of kernels; then those of the devices' words and of the calls' words, in
 *             their order
 *   padding   up to the constants, which start at a multiple of 4096 bytes
 *   constants prepared weights, and TFLite files
 *
 * All numbers are little-endian. The check covers the whole file (checksum.h). The words of the program:
 *
 *   block, arena bytes, constant bytes
 *   n_inputs, n_outputs, then for each of them { element type (formats with types), rank, extent… }
 *   n_queues, then for each of them { threads, core…, n_ratios, ratio… }
 *   n_kernels
 *   devices                      formats with devices only
 *   calls                        formats with calls only
 *   n_buffers, n_steps, n_subgraphs
 *   buffers, steps, subgraphs    as in a program image, the id of a step being the number of its kernel's name, launch or call
 *
 * Regions are the inputs, the outputs, the arena, the constants and the slots of all devices, in this order. In formats without
 * types all inputs and outputs are float32. In formats without devices and calls all queues are groups of cores. With devices, those
 * that a device names are OpenCL queues; with calls, the call queues are named likewise. With either, queues may have no cores; the
 * constants of host queues come first in the file, then those of devices, then TFLite files. The words of the devices:
 *
 *   n_devices, then for each of them { queue, number of the device, offset in the file's constants, constant bytes, arena bytes,
 *              n_slots, bytes… }
 *   n_sources
 *   n_programs, then for each of them { device, source, n_macros, value… }
 *   n_launches, then for each of them { program, dimensions, global…, local… (all 0: the driver chooses), n_reads, n_writes,
 *              { memory, offset, bytes, element bytes }…, n_integers, integer… }
 *
 * The memory of an operand is -1 (absent), 0 (the device's constants), 1 (its arena), or 2 and more: slots, numbered across all devices.
 * Text: platform and name of each device, name and text of each source, names of the macros of each program, name of each
 * launch's kernel. The words of the calls:
 *
 *   n_call_queues, then for each of them { queue, accelerator (NNS_LITERT_…) }
 *   n_calls, then for each of them { call queue, offset of its TFLite file in the file's constants, bytes,
 *              n_reads, n_writes, { element type, rank, extent… }… }
 *
 * A step of a call reads and writes buffers that have exactly the bytes of these types, and has no parameters. Text: the name of each
 * call's layers. */
#ifndef NNS_MODEL_FILE_H
#define NNS_MODEL_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "litert_host.h"
#include "nnstretch.h"
#include "opencl_host.h"
#include "status.h"

/* ---- the file --------------------------------------------------------------------------------------------- */

#define NNS_FILE_MAGIC INT64_C(0x4c45444f4d534e4e) /* "NNSMODEL" */

/* A format is the first one plus what it has. Files have no more than they need, so that older libraries read them, too. */
enum {
    NNS_FILE_FIRST_FORMAT = 2,
    NNS_FILE_HAS_DEVICES = 1, /* OpenCL queues */
    NNS_FILE_HAS_TYPES = 2,   /* of the elements of inputs and outputs */
    NNS_FILE_HAS_CALLS = 4,   /* of LiteRT */
    NNS_FILE_HAS_IMAGES = 8,  /* OpenCL kernels that read images, which older libraries would give buffers */
    NNS_FILE_HAS_ALL = NNS_FILE_HAS_DEVICES + NNS_FILE_HAS_TYPES + NNS_FILE_HAS_CALLS + NNS_FILE_HAS_IMAGES,
    NNS_FILE_LAST_FORMAT = NNS_FILE_FIRST_FORMAT + NNS_FILE_HAS_ALL,
};

enum {
    NNS_FILE_IS_MODEL,       /* NNS_FILE_MAGIC */
    NNS_FILE_FORMAT,         /* NNS_FILE_FIRST_FORMAT to NNS_FILE_LAST_FORMAT */
    NNS_FILE_BYTES,          /* of the whole file */
    NNS_FILE_N_WORDS,        /* after the header */
    NNS_FILE_N_TEXT,         /* bytes, a multiple of 8 */
    NNS_FILE_CONSTANTS_AT,   /* byte in the file */
    NNS_FILE_CONSTANT_BYTES, /* up to the end of the file */
    NNS_FILE_CHECK,          /* nns_checksum of the file */
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

/* Whether the format of a file has something: NNS_FILE_HAS_…, or one of several. */
static inline bool nns_file_has(const nns_file *file, int64_t what) {
    return (file->head[NNS_FILE_FORMAT] - NNS_FILE_FIRST_FORMAT) & what;
}

/* Opens, verifies and maps a model file. `file` must be zeroed before, and closed with nns_file_close also on failure. */
int32_t nns_file_open(const char *path, nns_file *file, nns_report *report);
void nns_file_close(nns_file *file);

/* ---- cores ------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t count;
    int32_t kinds[NNS_MAX_QUEUES]; /* NNS_QUEUE_… */
    const int64_t *planned_cores[NNS_MAX_QUEUES];
    const int64_t *ratios[NNS_MAX_QUEUES]; /* relative speeds of the planned cores; unused on other cores */
    int32_t n_ratios[NNS_MAX_QUEUES];
    int32_t planned[NNS_MAX_QUEUES]; /* numbers of planned cores, which are threads */
    int32_t first[NNS_MAX_QUEUES];   /* index of each queue's first core in `cores` */
    int32_t n_cores[NNS_MAX_QUEUES];
    int32_t cores[NNS_MAX_CORES + NNS_MAX_QUEUES];
    int32_t total; /* sum of n_cores */
} nns_queues;

/* Gives the queues their planned cores if `options` are defaults and this process may use all of them.
 * Otherwise divides the available cores in proportion to the planned numbers. Each queue with planned
 * cores gets at least one; if there are fewer cores than queues, queues share cores. */
int32_t nns_queues_place(nns_queues *queues, const nns_model_options *options, nns_report *report);

/* ---- the program image ------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    nns_tensor *tensors; /* inputs, then outputs; shapes and names are the file's */
    int32_t n_inputs, n_outputs;
    int64_t arena_bytes;
    int64_t *image;
    int64_t words;
    int32_t threads;
    uint64_t features; /* that its kernels require beyond the instruction set (nns_kernel_features) */
    int64_t constant_bytes; /* of host queues */
    nns_ocl_plan devices;   /* of OpenCL queues */
    nns_litert_plan calls;  /* of call queues */
    nns_queues queues;
} nns_image;

/* Translates a file's program for cores that `options` allow. The engine validates the rest when it receives
 * the image. `image` must be zeroed before, and freed with nns_image_free also on failure. */
int32_t nns_image_make(const nns_file *file, const nns_model_options *options, nns_image *image, nns_report *report);
void nns_image_free(nns_image *image);

#endif
