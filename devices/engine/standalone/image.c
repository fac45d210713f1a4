#include "image.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "nns_engine.h"
#include "words.h"

enum { MOST_TENSORS = 4096, MOST_RANK = 16, WORDS_OF_REGION = 3, WORDS_OF_BUFFER = 3, IMAGE_HEADER = 9 };

typedef struct {
    nns_words words;
    const char *text, *text_end;
} reader;

#define DAMAGE "the model file is damaged: "
#define DAMAGED(r, ...) nns_fail((r)->words.report, NNS_EINVALID, DAMAGE __VA_ARGS__)

/* A count of things of which each takes at least `least` of the words that are left. */
static int32_t take_count(reader *r, int64_t *count, const char *what, int64_t least) {
    return nns_take(&r->words, count, what, 0, (r->words.end - r->words.at) / least);
}

static int32_t skip(reader *r, int64_t words, const char *what) {
    if (words < 0 || words > r->words.end - r->words.at) return DAMAGED(r, "it ends within %s", what);
    r->words.at += words;
    return NNS_OK;
}

static int32_t take_text(reader *r, const char **text, const char *what) {
    const char *zero = r->text < r->text_end ? memchr(r->text, 0, (size_t)(r->text_end - r->text)) : NULL;
    if (!zero) return DAMAGED(r, "it lacks %s", what);
    *text = r->text;
    r->text = zero + 1;
    return NNS_OK;
}

static void *make_array(reader *r, int64_t count, size_t size) {
    void *memory = calloc(count ? (size_t)count : 1, size);
    if (!memory) nns_fail(r->words.report, NNS_EMEMORY, "no memory for %lld parts of a model", (long long)count);
    return memory;
}

/* ---- what comes before the program ------------------------------------------------------------------------ */

static int32_t read_target(reader *r, nns_image *image, const nns_file *file) {
    const char *isa = NULL;
    int64_t block = 0, constants = 0;
    TRY(take_text(r, &isa, "its instruction set"));
    TRY(take_text(r, &image->name, "its name"));
    TRY(nns_take(&r->words, &block, "the block", 1, INT64_MAX));
    if (strcmp(isa, nns_library_isa()) || block != nns_block())
        return nns_fail(r->words.report, NNS_EINVALID,
                        "the model is for %.40s, this library is for %s; compile the model with --target %s", isa,
                        nns_library_isa(), nns_library_isa());
    TRY(nns_take(&r->words, &image->arena_bytes, "the size of the arena", 0, INT64_MAX / 2));
    return nns_take(&r->words, &constants, "the size of the constants", file->constant_bytes, file->constant_bytes);
}

static int32_t read_tensor(reader *r, nns_tensor *tensor) {
    int64_t rank = 0;
    TRY(nns_take(&r->words, &rank, "the rank of a tensor", 0, MOST_RANK));
    tensor->rank = (int32_t)rank;
    tensor->shape = r->words.at;
    TRY(skip(r, rank, "a shape"));
    tensor->count = 1;
    for (int64_t i = 0; i < rank; i++)
        if (tensor->shape[i] < 1 || __builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count) ||
            tensor->count > INT64_MAX / (int64_t)sizeof(float))
            return DAMAGED(r, "a tensor has an extent of %lld", (long long)tensor->shape[i]);
    return take_text(r, &tensor->name, "the name of a tensor");
}

static int32_t read_tensors(reader *r, nns_image *image) {
    int64_t n_inputs = 0, n_outputs = 0;
    TRY(nns_take(&r->words, &n_inputs, "the number of inputs", 0, MOST_TENSORS));
    TRY(nns_take(&r->words, &n_outputs, "the number of outputs", 0, MOST_TENSORS));
    image->n_inputs = (int32_t)n_inputs;
    image->n_outputs = (int32_t)n_outputs;
    image->tensors = make_array(r, n_inputs + n_outputs, sizeof *image->tensors);
    if (!image->tensors) return r->words.report->status;
    for (int64_t i = 0; i < n_inputs + n_outputs; i++) TRY(read_tensor(r, &image->tensors[i]));
    return NNS_OK;
}

static int32_t read_queues(reader *r, nns_queues *queues) {
    int64_t count = 0;
    TRY(nns_take(&r->words, &count, "the number of queues", 1, NNS_MAX_QUEUES));
    queues->count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        int64_t threads = 0, core = 0, ratios = 0;
        TRY(nns_take(&r->words, &threads, "the threads of a queue", 1, NNS_MAX_CORES));
        queues->planned[i] = (int32_t)threads;
        queues->planned_cores[i] = r->words.at;
        for (int64_t k = 0; k < threads; k++) TRY(nns_take(&r->words, &core, "a core", 0, NNS_MAX_CORES - 1));
        TRY(nns_take(&r->words, &ratios, "the ratios of a queue", 0, threads));
        queues->ratios[i] = r->words.at;
        queues->n_ratios[i] = (int32_t)ratios;
        TRY(skip(r, ratios, "the ratios of a queue")); /* the engine checks them */
    }
    return NNS_OK;
}

/* The engine's numbers of the kernels that the file names. */
typedef struct {
    int64_t *numbers;
    int64_t count;
} kernel_list;

static int32_t refuse_kernel(reader *r, const char *name) {
    const char *missing = nns_kernel_missing_feature(name);
    if (!missing)
        return nns_fail(r->words.report, NNS_EINVALID,
                        "this library has no kernel %.60s; use the library that came with the model", name);
    return nns_fail(r->words.report, NNS_EINVALID,
                    "this CPU lacks %s, which the kernel %.60s requires; compile the model for another --target", missing,
                    name);
}

static int32_t read_kernels(reader *r, nns_image *image, kernel_list *kernels) {
    TRY(nns_take(&r->words, &kernels->count, "the number of kernels", 0, r->text_end - r->text));
    kernels->numbers = make_array(r, kernels->count, sizeof *kernels->numbers);
    if (!kernels->numbers) return r->words.report->status;
    for (int64_t i = 0; i < kernels->count; i++) {
        const char *name = NULL;
        TRY(take_text(r, &name, "the name of a kernel"));
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

/* A count and so many words, which start at `*list`. */
static int32_t skip_list(reader *r, const int64_t **list, int64_t *count, const char *what) {
    TRY(take_count(r, count, what, 1));
    *list = r->words.at;
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

static int32_t read_buffers(reader *r, buffer_list *buffers) {
    buffers->words = r->words.at;
    for (int64_t i = 0; i < buffers->count; i++) {
        int64_t region = 0, offset = 0, bytes = 0;
        TRY(nns_take(&r->words, &region, "the region of a buffer", 0, buffers->constants));
        TRY(nns_take(&r->words, &offset, "the offset of a buffer", 0, INT64_MAX / 2));
        TRY(nns_take(&r->words, &bytes, "the bytes of a buffer", 0, INT64_MAX / 2));
    }
    return NNS_OK;
}

/* Whether two buffers share bytes without starting at the same one (as those of a layer that works in place do). */
static bool collide(const int64_t *a, const int64_t *b) {
    return a[BUFFER_REGION] == b[BUFFER_REGION] && a[BUFFER_OFFSET] != b[BUFFER_OFFSET] &&
           a[BUFFER_OFFSET] < b[BUFFER_OFFSET] + b[BUFFER_BYTES] &&
           b[BUFFER_OFFSET] < a[BUFFER_OFFSET] + a[BUFFER_BYTES];
}

typedef struct {
    const int64_t *numbers;
    int64_t count;
} operand_list;

static int32_t read_operands(reader *r, operand_list *list, const buffer_list *buffers, int64_t lowest) {
    TRY(skip_list(r, &list->numbers, &list->count, "the operands of a step"));
    for (int64_t i = 0; i < list->count; i++)
        if (list->numbers[i] < lowest || list->numbers[i] >= buffers->count)
            return DAMAGED(r, "a step has buffer %lld", (long long)list->numbers[i]);
    return NNS_OK;
}

/* What the engine leaves to those who make programs. A step that wrote to read-only memory would end the process. */
static int32_t check_writes(reader *r, const operand_list *reads, const operand_list *writes,
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

/* Replaces numbers of kernel names by the engine's numbers in the copy of the steps at `to`; `r` walks the file's. */
static int32_t number_kernels(reader *r, int64_t *to, int64_t n_steps, const kernel_list *kernels,
                              const buffer_list *buffers) {
    const int64_t *start = r->words.at, *parameters = NULL;
    for (int64_t i = 0; i < n_steps; i++) {
        int64_t kind = 0, name = 0, count = 0;
        operand_list reads = {0}, writes = {0};
        TRY(nns_take(&r->words, &kind, "the kind of a step", NNS_STEP_KERNEL, NNS_STEP_KERNEL));
        TRY(nns_take(&r->words, &name, "the kernel of a step", 0, kernels->count - 1));
        to[r->words.at - start - 1] = kernels->numbers[name];
        TRY(read_operands(r, &reads, buffers, -1));
        TRY(read_operands(r, &writes, buffers, 0));
        TRY(check_writes(r, &reads, &writes, buffers));
        TRY(skip_list(r, &parameters, &count, "the parameters of a step"));
    }
    return NNS_OK;
}

static int32_t put_program(reader *r, nns_image *image, const nns_file *file, const nns_queues *queues,
                           const kernel_list *kernels) {
    enum { LEAST_STEP = 5, LEAST_SUBGRAPH = 6 };
    const int64_t n_tensors = image->n_inputs + image->n_outputs, n_regions = n_tensors + 2;
    buffer_list buffers = {.constants = n_regions - 1};
    int64_t n_steps = 0, n_subgraphs = 0;
    TRY(take_count(r, &buffers.count, "the number of buffers", WORDS_OF_BUFFER));
    TRY(take_count(r, &n_steps, "the number of steps", LEAST_STEP));
    TRY(take_count(r, &n_subgraphs, "the number of sub-graphs", LEAST_SUBGRAPH));
    const int64_t body = r->words.end - r->words.at;
    image->words = IMAGE_HEADER + 3 * queues->count + queues->total + WORDS_OF_REGION * n_regions + body;
    for (int32_t i = 0; i < queues->count; i++) image->words += queues->n_ratios[i];
    image->image = make_array(r, image->words, sizeof *image->image);
    if (!image->image) return r->words.report->status;
    const int64_t header[IMAGE_HEADER] = {NNS_MAGIC, NNS_ABI,     queues->count,    n_regions,       buffers.count,
                                          n_steps,   n_subgraphs, image->n_inputs, image->n_outputs};
    memcpy(image->image, header, sizeof header);
    int64_t *to = put_regions(put_queues(image->image + IMAGE_HEADER, queues), image, file);
    if (body) memcpy(to, r->words.at, (size_t)body * sizeof *to);
    TRY(read_buffers(r, &buffers));
    return number_kernels(r, to + buffers.count * WORDS_OF_BUFFER, n_steps, kernels, &buffers);
}

int32_t nns_image_make(const nns_file *file, const nns_model_options *options, nns_image *image, nns_report *report) {
    reader r = {
        .words = {file->words, file->words + file->n_words, .prefix = DAMAGE, .whole = "it", .report = report},
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
