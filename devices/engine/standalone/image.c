#include <stdlib.h>

#include "file_reader.h"
#include "nns_engine.h"

enum { MOST_TENSORS = 4096, MOST_RANK = 16, WORDS_OF_REGION = 3, WORDS_OF_BUFFER = 3, IMAGE_HEADER = 9 };

/* ---- target, tensors, queues, kernels --------------------------------------------------------------------- */

static int32_t read_target(nns_file_reader *r, nns_image *image, const nns_file *file) {
    const char *isa = NULL;
    int64_t block = 0;
    TRY(nns_read_text(r, &isa, "its instruction set"));
    TRY(nns_read_text(r, &image->name, "its name"));
    TRY(nns_read(&r->input, &block, "the block", 1, INT64_MAX));
    if (strcmp(isa, nns_library_isa()) || block != nns_block())
        return nns_fail(r->input.report, NNS_EINVALID,
                        "the model is for %.40s, this library is for %s; compile the model with --target %s", isa,
                        nns_library_isa(), nns_library_isa());
    TRY(nns_read(&r->input, &image->arena_bytes, "the size of the arena", 0, NNS_MOST_BYTES / 2));
    const int64_t least = nns_file_has(file, NNS_FILE_HAS_DEVICES | NNS_FILE_HAS_CALLS) ? 0 : file->constant_bytes;
    return nns_read(&r->input, &image->constant_bytes, "the size of the constants", least, file->constant_bytes);
}

int32_t nns_read_type(nns_file_reader *r, bool has_type, nns_tensor *tensor) {
    int64_t rank = 0, dtype = NNS_FLOAT32;
    if (has_type) TRY(nns_read(&r->input, &dtype, "the type of a tensor", NNS_FLOAT32, NNS_BOOL));
    tensor->dtype = (int32_t)dtype;
    TRY(nns_read_list(&r->input, &tensor->shape, &rank, MOST_RANK, "the shape of a tensor", 1, INT64_MAX));
    tensor->rank = (int32_t)rank;
    tensor->count = 1;
    for (int64_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count) ||
            tensor->count > NNS_MOST_BYTES / nns_dtype_bytes(tensor->dtype))
            return DAMAGED(r, "a tensor has an extent of %lld", (long long)tensor->shape[i]);
    tensor->bytes = tensor->count * nns_dtype_bytes(tensor->dtype);
    return NNS_OK;
}

static int32_t read_tensor(nns_file_reader *r, bool has_type, nns_tensor *tensor) {
    TRY(nns_read_type(r, has_type, tensor));
    return nns_read_text(r, &tensor->name, "the name of a tensor");
}

static int32_t read_tensors(nns_file_reader *r, const nns_file *file, nns_image *image) {
    const bool has_types = nns_file_has(file, NNS_FILE_HAS_TYPES);
    int64_t n_inputs = 0, n_outputs = 0;
    TRY(nns_read(&r->input, &n_inputs, "the number of inputs", 0, MOST_TENSORS));
    TRY(nns_read(&r->input, &n_outputs, "the number of outputs", 0, MOST_TENSORS));
    image->n_inputs = (int32_t)n_inputs;
    image->n_outputs = (int32_t)n_outputs;
    image->tensors = nns_new_array(r->input.report, n_inputs + n_outputs, sizeof *image->tensors);
    if (!image->tensors) return r->input.report->status;
    for (int64_t i = 0; i < n_inputs + n_outputs; i++) TRY(read_tensor(r, has_types, &image->tensors[i]));
    return NNS_OK;
}

static int32_t read_queues(nns_file_reader *r, const nns_file *file, nns_queues *queues) {
    int64_t count = 0;
    TRY(nns_read(&r->input, &count, "the number of queues", 1, NNS_MAX_QUEUES));
    queues->count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        int64_t threads = 0, ratios = 0;
        TRY(nns_read_list(&r->input, &queues->planned_cores[i], &threads, NNS_MAX_CORES, "the cores of a queue", 0,
                          NNS_MAX_CORES - 1));
        if (!threads && !nns_file_has(file, NNS_FILE_HAS_DEVICES | NNS_FILE_HAS_CALLS))
            return DAMAGED(r, "a queue has no cores");
        queues->planned[i] = (int32_t)threads;
        TRY(nns_read_list(&r->input, &queues->ratios[i], &ratios, threads, "the ratios of a queue", INT64_MIN,
                          INT64_MAX)); /* the engine checks them */
        queues->n_ratios[i] = (int32_t)ratios;
    }
    return NNS_OK;
}

/* The engine's numbers of the file's kernels. */
typedef struct {
    int64_t *numbers;
    int64_t count;
} kernel_list;

static int32_t refuse_kernel(nns_file_reader *r, const char *name) {
    const char *missing = nns_kernel_missing_feature(name);
    if (!missing)
        return nns_fail(r->input.report, NNS_EINVALID,
                        "this library has no kernel %.60s; use the library that came with the model", name);
    return nns_fail(r->input.report, NNS_EINVALID,
                    "this CPU lacks %s, which the kernel %.60s requires; compile the model for another --target",
                    missing, name);
}

static int32_t read_kernels(nns_file_reader *r, nns_image *image, kernel_list *kernels) {
    TRY(nns_read(&r->input, &kernels->count, "the number of kernels", 0, r->text_end - r->text));
    kernels->numbers = nns_new_array(r->input.report, kernels->count, sizeof *kernels->numbers);
    if (!kernels->numbers) return r->input.report->status;
    for (int64_t i = 0; i < kernels->count; i++) {
        const char *name = NULL;
        TRY(nns_read_text(r, &name, "the name of a kernel"));
        kernels->numbers[i] = nns_kernel_find(name);
        if (kernels->numbers[i] < 0) return refuse_kernel(r, name);
        image->features |= nns_kernel_features(kernels->numbers[i]);
    }
    return NNS_OK;
}

/* ---- the program ------------------------------------------------------------------------------------------ */

static int64_t *put_region(int64_t *to, int64_t kind, int64_t index, int64_t bytes) {
    to[0] = kind;
    to[1] = index;
    to[2] = bytes;
    return to + WORDS_OF_REGION;
}

static int64_t *put_queues(int64_t *to, const nns_queues *queues) {
    for (int32_t i = 0; i < queues->count; i++) {
        *to++ = queues->kinds[i];
        *to++ = queues->n_cores[i];
        for (int32_t k = 0; k < queues->n_cores[i]; k++) *to++ = queues->cores[queues->first[i] + k];
        *to++ = queues->n_ratios[i];
        for (int32_t k = 0; k < queues->n_ratios[i]; k++) *to++ = queues->ratios[i][k];
    }
    return to;
}

static int64_t *put_regions(int64_t *to, const nns_image *image) {
    for (int32_t i = 0; i < image->n_inputs + image->n_outputs; i++) {
        const bool input = i < image->n_inputs;
        to = put_region(to, input ? NNS_REGION_INPUT : NNS_REGION_OUTPUT, input ? i : i - image->n_inputs,
                        image->tensors[i].bytes);
    }
    to = put_region(to, NNS_REGION_FIXED, 0, image->arena_bytes);
    to = put_region(to, NNS_REGION_FIXED, 0, image->constant_bytes);
    for (int64_t i = 0; i < image->devices.n_queues; i++) {
        const nns_ocl_queue *device = &image->devices.queues[i];
        for (int64_t k = 0; k < device->n_slots; k++) to = put_region(to, NNS_REGION_SHARED, 0, device->slots[k]);
    }
    return to;
}

/* Parts of regions by number, as the file lists them. */
typedef struct {
    const int64_t *words;
    int64_t count;
    int64_t constants; /* the region that is mapped read-only */
    int64_t n_regions;
} buffer_list;

enum { BUFFER_REGION, BUFFER_OFFSET, BUFFER_BYTES };

static const int64_t *buffer_at(const buffer_list *buffers, int64_t number) {
    return buffers->words + number * WORDS_OF_BUFFER;
}

static int32_t read_buffers(nns_file_reader *r, buffer_list *buffers) {
    buffers->words = r->input.at;
    for (int64_t i = 0; i < buffers->count; i++) {
        int64_t region = 0, offset = 0, bytes = 0;
        TRY(nns_read(&r->input, &region, "the region of a buffer", 0, buffers->n_regions - 1));
        TRY(nns_read(&r->input, &offset, "the offset of a buffer", 0, INT64_MAX / 2));
        TRY(nns_read(&r->input, &bytes, "the bytes of a buffer", 0, INT64_MAX / 2));
    }
    return NNS_OK;
}

/* Whether two buffers overlap but start at different bytes. Buffers of a layer that works in place start at the
 * same byte. */
static bool collide(const int64_t *a, const int64_t *b) {
    return a[BUFFER_REGION] == b[BUFFER_REGION] && a[BUFFER_OFFSET] != b[BUFFER_OFFSET] &&
           a[BUFFER_OFFSET] < b[BUFFER_OFFSET] + b[BUFFER_BYTES] &&
           b[BUFFER_OFFSET] < a[BUFFER_OFFSET] + a[BUFFER_BYTES];
}

typedef struct {
    const int64_t *numbers;
    int64_t count;
} operand_list;

static int32_t read_operands(nns_file_reader *r, operand_list *list, const buffer_list *buffers, int64_t lowest) {
    return nns_read_list(&r->input, &list->numbers, &list->count, INT64_MAX, "the operands of a step", lowest,
                         buffers->count - 1);
}

/* Checks what the engine does not: a step that writes to read-only memory would end the process. */
static int32_t check_writes(nns_file_reader *r, const operand_list *reads, const operand_list *writes,
                            const buffer_list *buffers) {
    for (int64_t i = 0; i < writes->count; i++) {
        const int64_t *written = buffer_at(buffers, writes->numbers[i]);
        if (written[BUFFER_REGION] == buffers->constants) return DAMAGED(r, "a step writes to its constants");
        for (int64_t k = 0; k < reads->count; k++)
            if (reads->numbers[k] >= 0 && collide(written, buffer_at(buffers, reads->numbers[k])))
                return DAMAGED(r, "a step writes over what it reads");
        for (int64_t k = 0; k < i; k++)
            if (collide(written, buffer_at(buffers, writes->numbers[k])))
                return DAMAGED(r, "a step writes twice to the same bytes");
    }
    return NNS_OK;
}

/* What a step is. */
typedef struct {
    int64_t kind; /* NNS_STEP_… */
    int64_t id;   /* the engine's number of its kernel, or the number of its launch or call */
} step_target;

/* The steps of a file. */
typedef struct {
    int64_t count;
    step_target *targets;
} step_list;

static int64_t highest_kind(const nns_image *image) {
    if (image->calls.n_calls) return NNS_STEP_CALL;
    return image->devices.n_launches ? NNS_STEP_OPENCL : NNS_STEP_KERNEL;
}

static int32_t read_target_of_step(nns_file_reader *r, const kernel_list *kernels, const nns_image *image,
                                   step_target *target) {
    TRY(nns_read(&r->input, &target->kind, "the kind of a step", NNS_STEP_KERNEL, highest_kind(image)));
    if (target->kind == NNS_STEP_OPENCL)
        return nns_read(&r->input, &target->id, "the launch of a step", 0, image->devices.n_launches - 1);
    if (target->kind == NNS_STEP_CALL)
        return nns_read(&r->input, &target->id, "the call of a step", 0, image->calls.n_calls - 1);
    TRY(nns_read(&r->input, &target->id, "the kernel of a step", 0, kernels->count - 1));
    target->id = kernels->numbers[target->id];
    return NNS_OK;
}

/* Checks that buffers have the bytes of a call's tensors. */
static int32_t check_tensors(nns_file_reader *r, const operand_list *list, const nns_tensor *tensors, int32_t count,
                             const buffer_list *buffers) {
    bool fits = list->count == count;
    for (int64_t i = 0; fits && i < count; i++)
        fits = list->numbers[i] >= 0 && buffer_at(buffers, list->numbers[i])[BUFFER_BYTES] == tensors[i].bytes;
    return fits ? NNS_OK : DAMAGED(r, "the operands of a step do not fit its call");
}

static int32_t check_call_operands(nns_file_reader *r, const nns_image *image, const step_target *target,
                                   const operand_list *reads, const operand_list *writes, const buffer_list *buffers) {
    if (target->kind != NNS_STEP_CALL) return NNS_OK;
    const nns_litert_call *call = &image->calls.calls[target->id];
    TRY(check_tensors(r, reads, call->tensors, call->n_reads, buffers));
    return check_tensors(r, writes, call->tensors + call->n_reads, call->n_writes, buffers);
}

/* Replaces the file's kernel numbers by the engine's in the copy of the steps at `to`. `r` reads the file's steps. */
static int32_t number_kernels(nns_file_reader *r, int64_t *to, const step_list *steps, const kernel_list *kernels,
                              const nns_image *image, const buffer_list *buffers) {
    const int64_t *start = r->input.at, *parameters = NULL;
    for (int64_t i = 0; i < steps->count; i++) {
        int64_t count = 0;
        operand_list reads = {0}, writes = {0};
        TRY(read_target_of_step(r, kernels, image, &steps->targets[i]));
        to[r->input.at - start - 1] = steps->targets[i].id;
        TRY(read_operands(r, &reads, buffers, -1));
        TRY(read_operands(r, &writes, buffers, 0));
        TRY(check_writes(r, &reads, &writes, buffers));
        TRY(check_call_operands(r, image, &steps->targets[i], &reads, &writes, buffers));
        TRY(nns_read_list(&r->input, &parameters, &count, INT64_MAX, "the parameters of a step", INT64_MIN, INT64_MAX));
    }
    return NNS_OK;
}

/* The shared regions that a sub-graph takes from the host and returns to it. */
typedef struct {
    operand_list acquires, releases;
} transfer_lists;

static bool contains(const operand_list *list, int64_t number) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->numbers[i] == number) return true;
    return false;
}

/* Checks that a launch is made for the device of the queue that it is on, and that its sub-graph acquires or releases the slots that it
 * reads and releases those that it writes. */
static int32_t check_launch(nns_file_reader *r, const nns_image *image, int64_t number, int64_t queue,
                            const transfer_lists *transfers) {
    const nns_ocl_plan *devices = &image->devices;
    const nns_ocl_launch *launch = &devices->launches[number];
    if (devices->queues[devices->programs[launch->program].queue].queue != queue)
        return DAMAGED(r, "launch %lld is for another queue than %lld", (long long)number, (long long)queue);
    for (int64_t i = 0; i < launch->n_operands; i++) {
        const int64_t slot = launch->operands[i * NNS_OCL_OPERAND_WORDS] - NNS_OCL_FIRST_SLOT;
        const int64_t region = image->n_inputs + image->n_outputs + 2 + slot;
        if (slot < 0 || contains(&transfers->releases, region)) continue;
        if (i >= launch->n_reads || !contains(&transfers->acquires, region))
            return DAMAGED(r, "launch %lld uses a slot that its sub-graph does not transfer", (long long)number);
    }
    return NNS_OK;
}

/* Checks that a step is made for the queue that it is on, as far as the engine does not. */
static int32_t check_queue(nns_file_reader *r, const nns_image *image, const step_target *target, int64_t queue,
                           const transfer_lists *transfers) {
    if (target->kind == NNS_STEP_OPENCL) return check_launch(r, image, target->id, queue, transfers);
    if (target->kind != NNS_STEP_CALL || image->calls.queues[image->calls.calls[target->id].queue].queue == queue)
        return NNS_OK;
    return DAMAGED(r, "call %lld is for another queue than %lld", (long long)target->id, (long long)queue);
}

static int32_t read_subgraph(nns_file_reader *r, nns_image *image, const step_list *steps, int64_t index) {
    const int64_t *waits = NULL;
    int64_t queue = 0, first = 0, n_steps = 0, n_waits = 0;
    transfer_lists transfers = {0};
    TRY(nns_read(&r->input, &queue, "the queue of a sub-graph", 0, image->queues.count - 1));
    TRY(nns_read(&r->input, &first, "the first step of a sub-graph", 0, steps->count));
    TRY(nns_read(&r->input, &n_steps, "the number of steps of a sub-graph", 0, steps->count - first));
    TRY(nns_read_list(&r->input, &waits, &n_waits, INT64_MAX, "the waits of a sub-graph", 0, index - 1));
    for (int side = 0; side < 2; side++) {
        operand_list *list = side ? &transfers.releases : &transfers.acquires;
        TRY(nns_read_list(&r->input, &list->numbers, &list->count, INT64_MAX, "the transfers of a sub-graph", 0, INT64_MAX));
    }
    for (int64_t i = first; i < first + n_steps; i++)
        TRY(check_queue(r, image, &steps->targets[i], queue, &transfers));
    if (image->queues.kinds[queue] == NNS_QUEUE_OPENCL) image->devices.subgraphs[index] = (nns_ocl_subgraph){waits, n_waits};
    return NNS_OK;
}

/* Reads what devices and calls need of the sub-graphs: the engine checks all else. */
static int32_t read_subgraphs(nns_file_reader *r, nns_image *image, const step_list *steps, int64_t count) {
    nns_ocl_plan *devices = &image->devices;
    devices->subgraphs = nns_new_array(r->input.report, count, sizeof *devices->subgraphs);
    if (!devices->subgraphs) return r->input.report->status;
    devices->n_subgraphs = count;
    for (int64_t i = 0; i < count; i++) TRY(read_subgraph(r, image, steps, i));
    return NNS_OK;
}

static int32_t put_program(nns_file_reader *r, nns_image *image, const kernel_list *kernels, step_list *steps) {
    enum { LEAST_STEP = 5, LEAST_SUBGRAPH = 6 };
    const nns_queues *queues = &image->queues;
    const int64_t n_tensors = image->n_inputs + image->n_outputs, n_regions = n_tensors + 2 + image->devices.n_slots;
    buffer_list buffers = {.constants = n_tensors + 1, .n_regions = n_regions};
    int64_t n_subgraphs = 0;
    TRY(nns_read_count(r, &buffers.count, "the number of buffers", WORDS_OF_BUFFER));
    TRY(nns_read_count(r, &steps->count, "the number of steps", LEAST_STEP));
    TRY(nns_read_count(r, &n_subgraphs, "the number of sub-graphs", LEAST_SUBGRAPH));
    const int64_t body = r->input.end - r->input.at;
    image->words = IMAGE_HEADER + 3 * queues->count + queues->total + WORDS_OF_REGION * n_regions + body;
    for (int32_t i = 0; i < queues->count; i++) image->words += queues->n_ratios[i];
    image->image = nns_new_array(r->input.report, image->words, sizeof *image->image);
    steps->targets = nns_new_array(r->input.report, steps->count, sizeof *steps->targets);
    if (!image->image || !steps->targets) return r->input.report->status;
    const int64_t header[IMAGE_HEADER] = {NNS_MAGIC,    NNS_ABI,     queues->count,    n_regions,       buffers.count,
                                          steps->count, n_subgraphs, image->n_inputs, image->n_outputs};
    memcpy(image->image, header, sizeof header);
    int64_t *to = put_regions(put_queues(image->image + IMAGE_HEADER, queues), image);
    if (body) memcpy(to, r->input.at, (size_t)body * sizeof *to);
    TRY(read_buffers(r, &buffers));
    TRY(number_kernels(r, to + buffers.count * WORDS_OF_BUFFER, steps, kernels, image, &buffers));
    const bool is_host_only = !image->devices.n_queues && !image->calls.n_queues;
    return is_host_only ? NNS_OK : read_subgraphs(r, image, steps, n_subgraphs);
}

/* Tells devices and LiteRT the cores of their queues. */
static void name_cores(nns_image *image) {
    const nns_queues *queues = &image->queues;
    for (int64_t i = 0; i < image->devices.n_queues; i++) {
        nns_ocl_queue *device = &image->devices.queues[i];
        device->cores = queues->cores + queues->first[device->queue];
        device->n_cores = queues->n_cores[device->queue];
    }
    for (int64_t i = 0; i < image->calls.n_queues; i++) {
        nns_litert_queue *queue = &image->calls.queues[i];
        queue->cores = queues->cores + queues->first[queue->queue];
        queue->n_cores = queues->n_cores[queue->queue];
    }
}

static int32_t read_all(nns_file_reader *r, const nns_file *file, const nns_model_options *options, nns_image *image,
                        kernel_list *kernels, step_list *steps) {
    TRY(read_target(r, image, file));
    TRY(read_tensors(r, file, image));
    TRY(read_queues(r, file, &image->queues));
    TRY(nns_queues_place(&image->queues, options, r->input.report));
    image->threads = image->queues.total;
    TRY(read_kernels(r, image, kernels));
    if (nns_file_has(file, NNS_FILE_HAS_DEVICES)) TRY(nns_devices_read(r, file, image));
    if (nns_file_has(file, NNS_FILE_HAS_CALLS)) TRY(nns_calls_read(r, file, image));
    name_cores(image);
    return put_program(r, image, kernels, steps);
}

int32_t nns_image_make(const nns_file *file, const nns_model_options *options, nns_image *image, nns_report *report) {
    nns_file_reader r = {
        .input = {file->words, file->words + file->n_words, .prefix = NNS_DAMAGE, .source = "it", .report = report},
        .text = file->text,
        .text_end = file->text + file->text_bytes,
    };
    kernel_list kernels = {0};
    step_list steps = {0};
    read_all(&r, file, options, image, &kernels, &steps);
    free(kernels.numbers);
    free(steps.targets);
    return report->status;
}

void nns_image_free(nns_image *image) {
    nns_ocl_plan_free(&image->devices);
    nns_litert_plan_free(&image->calls);
    free(image->tensors);
    free(image->image);
    *image = (nns_image){0};
}
