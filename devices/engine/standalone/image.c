#include "image.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "nns_engine.h"
#include "reader.h"

enum { MOST_TENSORS = 4096, MOST_RANK = 16, WORDS_OF_REGION = 3, WORDS_OF_BUFFER = 3, IMAGE_HEADER = 9 };

typedef struct {
    nns_reader input;
    const char *text, *text_end;
} parser;

#define DAMAGE "the model file is damaged: "
#define DAMAGED(r, ...) nns_fail((r)->input.report, NNS_EINVALID, DAMAGE __VA_ARGS__)

/* Reads the number of items that take at least `least` words each. */
static int32_t read_count(parser *r, int64_t *count, const char *what, int64_t least) {
    return nns_read(&r->input, count, what, 0, (r->input.end - r->input.at) / least);
}

static int32_t skip(parser *r, int64_t words, const char *what) {
    if (words < 0 || words > r->input.end - r->input.at) return DAMAGED(r, "it ends within %s", what);
    r->input.at += words;
    return NNS_OK;
}

static int32_t read_text(parser *r, const char **text, const char *what) {
    const char *zero = r->text < r->text_end ? memchr(r->text, 0, (size_t)(r->text_end - r->text)) : NULL;
    if (!zero) return DAMAGED(r, "it lacks %s", what);
    *text = r->text;
    r->text = zero + 1;
    return NNS_OK;
}

static void *make_array(parser *r, int64_t count, size_t size) {
    void *memory = calloc(count ? (size_t)count : 1, size);
    if (!memory) nns_fail(r->input.report, NNS_EMEMORY, "no memory for %lld parts of a model", (long long)count);
    return memory;
}

/* ---- target, tensors, queues, kernels --------------------------------------------------------------------- */

static int32_t read_target(parser *r, nns_image *image, const nns_file *file) {
    const char *isa = NULL;
    int64_t block = 0, constants = 0;
    TRY(read_text(r, &isa, "its instruction set"));
    TRY(read_text(r, &image->name, "its name"));
    TRY(nns_read(&r->input, &block, "the block", 1, INT64_MAX));
    if (strcmp(isa, nns_library_isa()) || block != nns_block())
        return nns_fail(r->input.report, NNS_EINVALID,
                        "the model is for %.40s, this library is for %s; compile the model with --target %s", isa,
                        nns_library_isa(), nns_library_isa());
    TRY(nns_read(&r->input, &image->arena_bytes, "the size of the arena", 0, INT64_MAX / 2));
    return nns_read(&r->input, &constants, "the size of the constants", file->constant_bytes, file->constant_bytes);
}

static int32_t read_tensor(parser *r, nns_tensor *tensor) {
    int64_t rank = 0;
    TRY(nns_read(&r->input, &rank, "the rank of a tensor", 0, MOST_RANK));
    tensor->rank = (int32_t)rank;
    tensor->shape = r->input.at;
    TRY(skip(r, rank, "a shape"));
    tensor->count = 1;
    for (int64_t i = 0; i < rank; i++)
        if (tensor->shape[i] < 1 || __builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count) ||
            tensor->count > INT64_MAX / (int64_t)sizeof(float))
            return DAMAGED(r, "a tensor has an extent of %lld", (long long)tensor->shape[i]);
    return read_text(r, &tensor->name, "the name of a tensor");
}

static int32_t read_tensors(parser *r, nns_image *image) {
    int64_t n_inputs = 0, n_outputs = 0;
    TRY(nns_read(&r->input, &n_inputs, "the number of inputs", 0, MOST_TENSORS));
    TRY(nns_read(&r->input, &n_outputs, "the number of outputs", 0, MOST_TENSORS));
    image->n_inputs = (int32_t)n_inputs;
    image->n_outputs = (int32_t)n_outputs;
    image->tensors = make_array(r, n_inputs + n_outputs, sizeof *image->tensors);
    if (!image->tensors) return r->input.report->status;
    for (int64_t i = 0; i < n_inputs + n_outputs; i++) TRY(read_tensor(r, &image->tensors[i]));
    return NNS_OK;
}

static int32_t read_queues(parser *r, nns_queues *queues) {
    int64_t count = 0;
    TRY(nns_read(&r->input, &count, "the number of queues", 1, NNS_MAX_QUEUES));
    queues->count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        int64_t threads = 0, core = 0, ratios = 0;
        TRY(nns_read(&r->input, &threads, "the threads of a queue", 1, NNS_MAX_CORES));
        queues->planned[i] = (int32_t)threads;
        queues->planned_cores[i] = r->input.at;
        for (int64_t k = 0; k < threads; k++) TRY(nns_read(&r->input, &core, "a core", 0, NNS_MAX_CORES - 1));
        TRY(nns_read(&r->input, &ratios, "the ratios of a queue", 0, threads));
        queues->ratios[i] = r->input.at;
        queues->n_ratios[i] = (int32_t)ratios;
        TRY(skip(r, ratios, "the ratios of a queue")); /* the engine checks them */
    }
    return NNS_OK;
}

/* The engine's numbers of the file's kernels. */
typedef struct {
    int64_t *numbers;
    int64_t count;
} kernel_list;

static int32_t refuse_kernel(parser *r, const char *name) {
    const char *missing = nns_kernel_missing_feature(name);
    if (!missing)
        return nns_fail(r->input.report, NNS_EINVALID,
                        "this library has no kernel %.60s; use the library that came with the model", name);
    return nns_fail(r->input.report, NNS_EINVALID,
                    "this CPU lacks %s, which the kernel %.60s requires; compile the model for another --target",
                    missing, name);
}

static int32_t read_kernels(parser *r, nns_image *image, kernel_list *kernels) {
    TRY(nns_read(&r->input, &kernels->count, "the number of kernels", 0, r->text_end - r->text));
    kernels->numbers = make_array(r, kernels->count, sizeof *kernels->numbers);
    if (!kernels->numbers) return r->input.report->status;
    for (int64_t i = 0; i < kernels->count; i++) {
        const char *name = NULL;
        TRY(read_text(r, &name, "the name of a kernel"));
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
        *to++ = NNS_QUEUE_HOST;
        *to++ = queues->n_cores[i];
        for (int32_t k = 0; k < queues->n_cores[i]; k++) *to++ = queues->cores[queues->first[i] + k];
        *to++ = queues->n_ratios[i];
        for (int32_t k = 0; k < queues->n_ratios[i]; k++) *to++ = queues->ratios[i][k];
    }
    return to;
}

static int64_t *put_regions(int64_t *to, const nns_image *image, const nns_file *file) {
    for (int32_t i = 0; i < image->n_inputs + image->n_outputs; i++) {
        const bool input = i < image->n_inputs;
        to = put_region(to, input ? NNS_REGION_INPUT : NNS_REGION_OUTPUT, input ? i : i - image->n_inputs,
                        image->tensors[i].count * (int64_t)sizeof(float));
    }
    to = put_region(to, NNS_REGION_FIXED, 0, image->arena_bytes);
    return put_region(to, NNS_REGION_FIXED, 0, file->constant_bytes);
}

/* Reads a list: a count, then that many words. `list` points into the file. */
static int32_t skip_list(parser *r, const int64_t **list, int64_t *count, const char *what) {
    TRY(read_count(r, count, what, 1));
    *list = r->input.at;
    return skip(r, *count, what);
}

/* Parts of regions by number, as the file lists them. */
typedef struct {
    const int64_t *words;
    int64_t count;
    int64_t constants; /* the region that is mapped read-only */
} buffer_list;

enum { BUFFER_REGION, BUFFER_OFFSET, BUFFER_BYTES };

static const int64_t *buffer_at(const buffer_list *buffers, int64_t number) {
    return buffers->words + number * WORDS_OF_BUFFER;
}

static int32_t read_buffers(parser *r, buffer_list *buffers) {
    buffers->words = r->input.at;
    for (int64_t i = 0; i < buffers->count; i++) {
        int64_t region = 0, offset = 0, bytes = 0;
        TRY(nns_read(&r->input, &region, "the region of a buffer", 0, buffers->constants));
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

static int32_t read_operands(parser *r, operand_list *list, const buffer_list *buffers, int64_t lowest) {
    TRY(skip_list(r, &list->numbers, &list->count, "the operands of a step"));
    for (int64_t i = 0; i < list->count; i++)
        if (list->numbers[i] < lowest || list->numbers[i] >= buffers->count)
            return DAMAGED(r, "a step has buffer %lld", (long long)list->numbers[i]);
    return NNS_OK;
}

/* Checks what the engine does not: a step that writes to read-only memory would end the process. */
static int32_t check_writes(parser *r, const operand_list *reads, const operand_list *writes,
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

/* Replaces the file's kernel numbers by the engine's in the copy of the steps at `to`. `r` reads the file's steps. */
static int32_t number_kernels(parser *r, int64_t *to, int64_t n_steps, const kernel_list *kernels,
                              const buffer_list *buffers) {
    const int64_t *start = r->input.at, *parameters = NULL;
    for (int64_t i = 0; i < n_steps; i++) {
        int64_t kind = 0, name = 0, count = 0;
        operand_list reads = {0}, writes = {0};
        TRY(nns_read(&r->input, &kind, "the kind of a step", NNS_STEP_KERNEL, NNS_STEP_KERNEL));
        TRY(nns_read(&r->input, &name, "the kernel of a step", 0, kernels->count - 1));
        to[r->input.at - start - 1] = kernels->numbers[name];
        TRY(read_operands(r, &reads, buffers, -1));
        TRY(read_operands(r, &writes, buffers, 0));
        TRY(check_writes(r, &reads, &writes, buffers));
        TRY(skip_list(r, &parameters, &count, "the parameters of a step"));
    }
    return NNS_OK;
}

static int32_t put_program(parser *r, nns_image *image, const nns_file *file, const nns_queues *queues,
                           const kernel_list *kernels) {
    enum { LEAST_STEP = 5, LEAST_SUBGRAPH = 6 };
    const int64_t n_tensors = image->n_inputs + image->n_outputs, n_regions = n_tensors + 2;
    buffer_list buffers = {.constants = n_regions - 1};
    int64_t n_steps = 0, n_subgraphs = 0;
    TRY(read_count(r, &buffers.count, "the number of buffers", WORDS_OF_BUFFER));
    TRY(read_count(r, &n_steps, "the number of steps", LEAST_STEP));
    TRY(read_count(r, &n_subgraphs, "the number of sub-graphs", LEAST_SUBGRAPH));
    const int64_t body = r->input.end - r->input.at;
    image->words = IMAGE_HEADER + 3 * queues->count + queues->total + WORDS_OF_REGION * n_regions + body;
    for (int32_t i = 0; i < queues->count; i++) image->words += queues->n_ratios[i];
    image->image = make_array(r, image->words, sizeof *image->image);
    if (!image->image) return r->input.report->status;
    const int64_t header[IMAGE_HEADER] = {NNS_MAGIC, NNS_ABI,     queues->count,    n_regions,       buffers.count,
                                          n_steps,   n_subgraphs, image->n_inputs, image->n_outputs};
    memcpy(image->image, header, sizeof header);
    int64_t *to = put_regions(put_queues(image->image + IMAGE_HEADER, queues), image, file);
    if (body) memcpy(to, r->input.at, (size_t)body * sizeof *to);
    TRY(read_buffers(r, &buffers));
    return number_kernels(r, to + buffers.count * WORDS_OF_BUFFER, n_steps, kernels, &buffers);
}

int32_t nns_image_make(const nns_file *file, const nns_model_options *options, nns_image *image, nns_report *report) {
    parser r = {
        .input = {file->words, file->words + file->n_words, .prefix = DAMAGE, .source = "it", .report = report},
        .text = file->text,
        .text_end = file->text + file->text_bytes,
    };
    nns_queues queues = {0};
    kernel_list kernels = {0};
    TRY(read_target(&r, image, file));
    TRY(read_tensors(&r, image));
    TRY(read_queues(&r, &queues));
    TRY(nns_queues_place(&queues, options, report));
    image->threads = queues.total;
    if (read_kernels(&r, image, &kernels) == NNS_OK) put_program(&r, image, file, &queues, &kernels);
    free(kernels.numbers);
    return report->status;
}

void nns_image_free(nns_image *image) {
    free(image->tensors);
    free(image->image);
    *image = (nns_image){0};
}
