#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "file_reader.h"

enum {
    MOST_NAME = 64,
    MOST_MACROS = 64,
    MOST_ELEMENT = 64, /* bytes */
    MOST_INDEX = 1 << 16,
    MOST_INTEGERS = 4096,
    LEAST_PROGRAM = 3, /* words */
    LEAST_LAUNCH = 7,
};

/* Of any memory. */
#define MOST_BYTES (NNS_MOST_BYTES / 2 < INT64_C(1) << 40 ? NNS_MOST_BYTES / 2 : INT64_C(1) << 40)
#define LEAST_INTEGER INT64_C(-0x80000000)
#define MOST_INTEGER INT64_C(0xffffffff)

/* Reads a name of at most MOST_NAME letters, digits, underscores, and characters of `others`. */
static int32_t read_name(nns_file_reader *r, const char **name, const char *what, const char *others) {
    TRY(nns_read_text(r, name, what));
    size_t length = 0;
    for (const char *at = *name; *at && length <= MOST_NAME; at++, length++)
        if (!isalnum((unsigned char)*at) && *at != '_' && !strchr(others, *at)) return DAMAGED(r, "%s is no name", what);
    return length && length <= MOST_NAME ? NNS_OK : DAMAGED(r, "%s is empty or too long", what);
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

static int32_t read_device(nns_file_reader *r, const nns_file *file, nns_image *image, nns_ocl_queue *device) {
    int64_t queue = 0, index = 0, offset = 0;
    TRY(nns_read(&r->input, &queue, "the queue of a device", 1, image->queues.count - 1));
    if (image->queues.kinds[queue] != NNS_QUEUE_HOST) return DAMAGED(r, "queue %lld has two devices", (long long)queue);
    image->queues.kinds[queue] = NNS_QUEUE_OPENCL;
    TRY(nns_read(&r->input, &index, "the number of a device", 0, MOST_INDEX));
    TRY(nns_read(&r->input, &offset, "the place of constants", image->constant_bytes, file->constant_bytes));
    TRY(nns_read(&r->input, &device->constant_bytes, "the size of constants", 0, file->constant_bytes - offset));
    TRY(nns_read(&r->input, &device->arena_bytes, "the size of an arena", 0, MOST_BYTES));
    TRY(nns_read_list(&r->input, &device->slots, &device->n_slots, INT64_MAX, "the slots of a device", 0, MOST_BYTES));
    TRY(nns_read_text(r, &device->platform, "the platform of a device"));
    TRY(nns_read_text(r, &device->name, "the name of a device"));
    device->queue = (int32_t)queue;
    device->index = (int32_t)index;
    device->constants = file->constants + offset;
    device->first_slot = image->devices.n_slots;
    image->devices.n_slots += device->n_slots;
    return NNS_OK;
}

static int32_t read_devices(nns_file_reader *r, const nns_file *file, nns_image *image) {
    TRY(nns_read(&r->input, &image->devices.n_queues, "the number of devices", 0, image->queues.count - 1));
    for (int64_t i = 0; i < image->devices.n_queues; i++)
        TRY(read_device(r, file, image, &image->devices.queues[i]));
    return NNS_OK;
}

/* ---- sources and programs --------------------------------------------------------------------------------- */

static int32_t read_sources(nns_file_reader *r, nns_ocl_plan *plan) {
    TRY(nns_read(&r->input, &plan->n_sources, "the number of sources", 0, r->text_end - r->text));
    plan->sources = nns_new_array(r->input.report, plan->n_sources, sizeof *plan->sources);
    if (!plan->sources) return r->input.report->status;
    for (int64_t i = 0; i < plan->n_sources; i++) {
        TRY(read_name(r, &plan->sources[i].name, "the name of a source", ".-"));
        TRY(nns_read_text(r, &plan->sources[i].text, "the text of a source"));
    }
    return NNS_OK;
}

/* The value of the macro NNS_IMAGES, 0 without it. */
static int64_t images_of(const nns_ocl_program *program) {
    int64_t images = 0;
    for (int64_t i = 0; i < program->n_macros; i++)
        if (!strcmp(program->names[i], "NNS_IMAGES")) images = program->values[i];
    return images;
}

static int32_t read_program(nns_file_reader *r, nns_ocl_plan *plan, nns_ocl_program *program, const char **names) {
    TRY(nns_read(&r->input, &program->queue, "the device of a program", 0, plan->n_queues - 1));
    TRY(nns_read(&r->input, &program->source, "the source of a program", 0, plan->n_sources - 1));
    TRY(nns_read_list(&r->input, &program->values, &program->n_macros, MOST_MACROS, "the macros of a program",
                      LEAST_INTEGER, MOST_INTEGER));
    program->names = names;
    for (int64_t i = 0; i < program->n_macros; i++) TRY(read_name(r, &names[i], "the name of a macro", ""));
    program->images = images_of(program);
    return NNS_OK;
}

static int32_t read_programs(nns_file_reader *r, nns_ocl_plan *plan) {
    TRY(nns_read_count(r, &plan->n_programs, "the number of programs", LEAST_PROGRAM));
    plan->programs = nns_new_array(r->input.report, plan->n_programs, sizeof *plan->programs);
    plan->names = nns_new_array(r->input.report, r->input.end - r->input.at, sizeof *plan->names);
    if (!plan->programs || !plan->names) return r->input.report->status;
    const char **names = plan->names;
    for (int64_t i = 0; i < plan->n_programs; i++) {
        TRY(read_program(r, plan, &plan->programs[i], names));
        names += plan->programs[i].n_macros;
    }
    return NNS_OK;
}

/* ---- launches --------------------------------------------------------------------------------------------- */

/* The bytes of an operand's memory, or -1 if the device has no such memory or may not write there. */
static int64_t bytes_of_memory(const nns_ocl_queue *device, int64_t memory, bool written) {
    if (memory == NNS_OCL_ABSENT) return written ? -1 : 0;
    if (memory == NNS_OCL_CONSTANTS) return written ? -1 : device->constant_bytes;
    if (memory == NNS_OCL_ARENA) return device->arena_bytes;
    const int64_t slot = memory - NNS_OCL_FIRST_SLOT - device->first_slot;
    return slot >= 0 && slot < device->n_slots ? device->slots[slot] : -1;
}

/* Checks that a kernel may read an operand as an image: constants of whole pixels of float32 or float16. */
static int32_t check_image(nns_file_reader *r, int64_t memory, int64_t offset, int64_t bytes, int64_t element) {
    const int64_t pixel = NNS_OCL_PIXEL_NUMBERS * element;
    const bool is_float = element == sizeof(float) || element == sizeof(uint16_t);
    if (memory == NNS_OCL_CONSTANTS && is_float && bytes && !(offset % pixel) && !(bytes % pixel)) return NNS_OK;
    return DAMAGED(r, "an image is made of what is no constant of whole pixels");
}

static int32_t read_operand(nns_file_reader *r, const nns_ocl_plan *plan, const nns_ocl_queue *device, bool written,
                            bool image) {
    int64_t memory = 0, offset = 0, bytes = 0, element = 0;
    TRY(nns_read(&r->input, &memory, "the memory of an operand", NNS_OCL_ABSENT, NNS_OCL_FIRST_SLOT + plan->n_slots - 1));
    const int64_t size = bytes_of_memory(device, memory, written);
    if (size < 0) return DAMAGED(r, "an operand lies in memory that its device may not use so");
    TRY(nns_read(&r->input, &offset, "the place of an operand", 0, size));
    TRY(nns_read(&r->input, &bytes, "the bytes of an operand", 0, size - offset));
    TRY(nns_read(&r->input, &element, "the element of an operand", 1, MOST_ELEMENT));
    if (offset % element || offset / element > INT32_MAX)
        return DAMAGED(r, "an operand lies at byte %lld, which is no whole element", (long long)offset);
    return image ? check_image(r, memory, offset, bytes, element) : NNS_OK;
}

/* Reads the sizes of a launch along its dimensions: all 0 if `least` is 0, or in 1..INT32_MAX. */
static int32_t read_sizes(nns_file_reader *r, int32_t dimensions, const int64_t **sizes, int64_t least) {
    int64_t size = 0, zeros = 0;
    *sizes = r->input.at;
    for (int32_t d = 0; d < dimensions; d++) {
        TRY(nns_read(&r->input, &size, "the size of a launch", least, INT32_MAX));
        zeros += !size;
    }
    return zeros && zeros != dimensions ? DAMAGED(r, "a launch has work groups of size 0") : NNS_OK;
}

static int32_t read_launch(nns_file_reader *r, const nns_ocl_plan *plan, nns_ocl_launch *launch) {
    int64_t dimensions = 0, n_reads = 0, n_writes = 0;
    TRY(nns_read(&r->input, &launch->program, "the program of a launch", 0, plan->n_programs - 1));
    const nns_ocl_queue *device = &plan->queues[plan->programs[launch->program].queue];
    TRY(nns_read(&r->input, &dimensions, "the dimensions of a launch", 1, 3));
    launch->dimensions = (int32_t)dimensions;
    TRY(read_sizes(r, launch->dimensions, &launch->global, 1));
    TRY(read_sizes(r, launch->dimensions, &launch->local, 0));
    TRY(nns_read(&r->input, &n_reads, "the reads of a launch", 0, NNS_MAX_READS));
    TRY(nns_read(&r->input, &n_writes, "the writes of a launch", 0, NNS_MAX_WRITES));
    launch->operands = r->input.at;
    launch->n_reads = n_reads;
    launch->n_operands = n_reads + n_writes;
    const int64_t images = plan->programs[launch->program].images;
    if (images < 0 || images >> n_reads) return DAMAGED(r, "a launch reads other images than its operands");
    for (int64_t i = 0; i < launch->n_operands; i++)
        TRY(read_operand(r, plan, device, i >= n_reads, images >> i & 1));
    TRY(nns_read_list(&r->input, &launch->integers, &launch->n_integers, MOST_INTEGERS, "the integers of a launch",
                      LEAST_INTEGER, MOST_INTEGER));
    return read_name(r, &launch->kernel, "the name of a launch's kernel", "");
}

static int32_t read_launches(nns_file_reader *r, nns_ocl_plan *plan) {
    TRY(nns_read_count(r, &plan->n_launches, "the number of launches", LEAST_LAUNCH));
    plan->launches = nns_new_array(r->input.report, plan->n_launches, sizeof *plan->launches);
    if (!plan->launches) return r->input.report->status;
    for (int64_t i = 0; i < plan->n_launches; i++) TRY(read_launch(r, plan, &plan->launches[i]));
    return NNS_OK;
}

int32_t nns_devices_read(nns_file_reader *r, const nns_file *file, nns_image *image) {
    TRY(read_devices(r, file, image));
    TRY(read_sources(r, &image->devices));
    TRY(read_programs(r, &image->devices));
    return read_launches(r, &image->devices);
}
