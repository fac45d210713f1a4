/* A LiteRT library for tests: its models copy their first input to all outputs, as often as that fits. One call of one function may
 * fail, objects are counted, and misuse ends the process.
 *
 *   STUB_TYPES         inputs, outputs, then { element, rank, extent… } of each, of all models
 *   STUB_ACCELERATORS  the set that there is (1: CPU, 2: GPU, 4: NPU; default: 1)
 *   STUB_TAKES         the set of accelerators that take all layers (default: 1) */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 20, RANK = 8, FAILURE = 3, INVALID_FLATBUFFER = 501, COMPILATION = 504 };

typedef struct {
    int32_t element;
    uint32_t flags;
    int32_t extents[RANK];
    uint32_t strides[RANK];
} type;

typedef enum { ENVIRONMENT = 1, MODEL, OPTIONS, OPAQUE, COMPILED, BUFFER } kind;

typedef struct {
    kind kind;
    int32_t set;             /* of options, and of a compiled model */
    void *data;              /* of a buffer, and of opaque options */
    void (*destroy)(void *); /* of opaque options */
    size_t bytes;            /* of a buffer */
    int32_t locks;
} object;

static _Atomic int64_t objects;

static struct {
    char function[64];
    int64_t number, calls, struck;
} fault;

void stub_set(const char *function, int64_t number) {
    memset(&fault, 0, sizeof fault);
    snprintf(fault.function, sizeof fault.function, "%s", function);
    fault.number = number;
}

/* Ends the fault; the number of calls that failed. */
int64_t stub_clear(void) {
    const int64_t struck = fault.struck;
    memset(&fault, 0, sizeof fault);
    return struck;
}

int64_t stub_left(void) { return atomic_load(&objects); }

static int fails(const char *name) {
    if (strcmp(fault.function, name) || ++fault.calls != fault.number) return 0;
    fault.struck++;
    return 1;
}

#define FAILS(name) if (fails(#name)) return FAILURE

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "misuse of the stub: %s\n", what);
    abort();
}

static object *made(kind kind) {
    object *one = calloc(1, sizeof *one);
    one->kind = kind;
    atomic_fetch_add(&objects, 1);
    return one;
}

static void destroy(object *one, kind kind) {
    require(one && one->kind == kind && !one->locks, "an object is destroyed as another one, or while it is locked");
    atomic_fetch_sub(&objects, 1);
    one->kind = 0;
    free(one);
}

static int32_t number_of(const char *name, int32_t other) {
    const char *text = getenv(name);
    return text ? atoi(text) : other;
}

/* Reads STUB_TYPES. Returns the number of inputs. */
static int32_t read_types(type *types, int32_t *n_outputs) {
    const char *text = getenv("STUB_TYPES");
    char *at = (char *)(text ? text : "0 0");
    const int32_t n_inputs = (int32_t)strtol(at, &at, 10);
    *n_outputs = (int32_t)strtol(at, &at, 10);
    memset(types, 0, MOST * sizeof *types);
    for (int32_t i = 0; i < n_inputs + *n_outputs; i++) {
        types[i].element = (int32_t)strtol(at, &at, 10);
        types[i].flags = (uint32_t)strtol(at, &at, 10);
        for (uint32_t d = 0; d < types[i].flags; d++) types[i].extents[d] = (int32_t)strtol(at, &at, 10);
    }
    return n_inputs;
}

/* ---- environments, accelerators ---------------------------------------------------------------------------- */

int32_t LiteRtCreateEnvironment(int32_t count, const void *options, object **environment) {
    FAILS(LiteRtCreateEnvironment);
    require(count >= 2 && options, "an environment without options");
    *environment = made(ENVIRONMENT);
    return 0;
}

void LiteRtDestroyEnvironment(object *environment) { destroy(environment, ENVIRONMENT); }

int32_t LiteRtGetNumAccelerators(object *environment, size_t *count) {
    FAILS(LiteRtGetNumAccelerators);
    require(environment->kind == ENVIRONMENT, "no environment");
    *count = 3;
    return 0;
}

int32_t LiteRtGetAccelerator(object *environment, size_t index, void **accelerator) {
    static int32_t sets[] = {1, 2, 4};
    FAILS(LiteRtGetAccelerator);
    require(environment->kind == ENVIRONMENT && index < 3, "no accelerator");
    *accelerator = &sets[index];
    return 0;
}

int32_t LiteRtGetAcceleratorHardwareSupport(const int32_t *accelerator, int32_t *set) {
    FAILS(LiteRtGetAcceleratorHardwareSupport);
    *set = *accelerator & number_of("STUB_ACCELERATORS", 1);
    return 0;
}

/* ---- models ------------------------------------------------------------------------------------------------- */

int32_t LiteRtCreateModelFromFd(void) { abort(); }

int32_t LiteRtCreateModelFromBuffer(object *environment, const char *content, size_t bytes, object **model) {
    FAILS(LiteRtCreateModelFromBuffer);
    require(environment->kind == ENVIRONMENT, "a model without an environment");
    uint32_t sum = 0;
    for (size_t i = 0; i < bytes; i++) sum += (unsigned char)content[i]; /* all of it can be read */
    if (bytes < 8 || memcmp(content + 4, "TFL3", 4)) return INVALID_FLATBUFFER + 0 * (int32_t)sum;
    *model = made(MODEL);
    return 0;
}

void LiteRtDestroyModel(object *model) { destroy(model, MODEL); }

int32_t LiteRtGetModelSignature(object *model, size_t index, object **signature) {
    FAILS(LiteRtGetModelSignature);
    require(model->kind == MODEL && !index, "another signature");
    *signature = model;
    return 0;
}

int32_t LiteRtGetNumSignatureInputs(object *signature, size_t *count) {
    type types[MOST];
    int32_t n_outputs;
    FAILS(LiteRtGetNumSignatureInputs);
    (void)signature;
    *count = (size_t)read_types(types, &n_outputs);
    return 0;
}

int32_t LiteRtGetNumSignatureOutputs(object *signature, size_t *count) {
    type types[MOST];
    int32_t n_outputs;
    FAILS(LiteRtGetNumSignatureOutputs);
    (void)signature;
    read_types(types, &n_outputs);
    *count = (size_t)n_outputs;
    return 0;
}

int32_t LiteRtGetSignatureInputTensorByIndex(object *signature, size_t index, void **tensor) {
    FAILS(LiteRtGetSignatureInputTensorByIndex);
    (void)signature;
    *tensor = (void *)(uintptr_t)(index + 1);
    return 0;
}

int32_t LiteRtGetSignatureOutputTensorByIndex(object *signature, size_t index, void **tensor) {
    type types[MOST];
    int32_t n_outputs;
    FAILS(LiteRtGetSignatureOutputTensorByIndex);
    (void)signature;
    *tensor = (void *)(uintptr_t)((size_t)read_types(types, &n_outputs) + index + 1);
    return 0;
}

int32_t LiteRtGetRankedTensorType(void *tensor, type *found) {
    type types[MOST];
    int32_t n_outputs;
    FAILS(LiteRtGetRankedTensorType);
    read_types(types, &n_outputs);
    *found = types[(uintptr_t)tensor - 1];
    return 0;
}

/* ---- compilation -------------------------------------------------------------------------------------------- */

int32_t LiteRtCreateOptions(object **options) {
    FAILS(LiteRtCreateOptions);
    *options = made(OPTIONS);
    return 0;
}

void LiteRtDestroyOpaqueOptions(object *opaque) {
    opaque->destroy(opaque->data);
    destroy(opaque, OPAQUE);
}

void LiteRtDestroyOptions(object *options) {
    if (options->data) LiteRtDestroyOpaqueOptions(options->data);
    destroy(options, OPTIONS);
}

int32_t LiteRtSetOptionsHardwareAccelerators(object *options, int32_t set) {
    FAILS(LiteRtSetOptionsHardwareAccelerators);
    options->set = set;
    return 0;
}

int32_t LiteRtCreateOpaqueOptions(const char *receiver, void *data, void (*free_data)(void *), object **opaque) {
    FAILS(LiteRtCreateOpaqueOptions);
    require(!strcmp(receiver, "xnnpack") && !strncmp(data, "num_threads = ", 14), "unknown settings");
    *opaque = made(OPAQUE);
    (*opaque)->data = data;
    (*opaque)->destroy = free_data;
    return 0;
}

int32_t LiteRtAddOpaqueOptions(object *options, object *opaque) {
    FAILS(LiteRtAddOpaqueOptions);
    options->data = opaque;
    return 0;
}

int32_t LiteRtCreateCompiledModel(object *environment, object *model, object *options, object **compiled) {
    FAILS(LiteRtCreateCompiledModel);
    require(environment->kind == ENVIRONMENT && model->kind == MODEL && options->data, "a compilation of something else");
    if (!(options->set & number_of("STUB_TAKES", 1))) return COMPILATION;
    *compiled = made(COMPILED);
    return 0;
}

void LiteRtDestroyCompiledModel(object *compiled) { destroy(compiled, COMPILED); }

/* ---- buffers, runs ------------------------------------------------------------------------------------------ */

int32_t LiteRtGetCompiledModelInputBufferRequirements(object *compiled, size_t signature, size_t index, object **out) {
    FAILS(LiteRtGetCompiledModelInputBufferRequirements);
    require(!signature && index < MOST, "requirements of another signature");
    *out = compiled;
    return 0;
}

int32_t LiteRtGetCompiledModelOutputBufferRequirements(object *compiled, size_t signature, size_t index, object **out) {
    FAILS(LiteRtGetCompiledModelOutputBufferRequirements);
    require(!signature && index < MOST, "requirements of another signature");
    *out = compiled;
    return 0;
}

int32_t LiteRtCreateManagedTensorBufferFromRequirements(object *environment, const type *wanted, object *requirements,
                                                        object **buffer) {
    FAILS(LiteRtCreateManagedTensorBufferFromRequirements);
    require(environment->kind == ENVIRONMENT && requirements->kind == COMPILED, "a buffer for something else");
    *buffer = made(BUFFER);
    (*buffer)->bytes = wanted->element == 9 ? 1 : 4; /* int8, else float32 */
    for (uint32_t d = 0; d < wanted->flags; d++) (*buffer)->bytes *= (size_t)wanted->extents[d];
    (*buffer)->data = calloc((*buffer)->bytes, 1);
    return (*buffer)->data ? 0 : FAILURE;
}

void LiteRtDestroyTensorBuffer(object *buffer) {
    free(buffer->data);
    destroy(buffer, BUFFER);
}

int32_t LiteRtGetTensorBufferPackedSize(object *buffer, size_t *bytes) {
    FAILS(LiteRtGetTensorBufferPackedSize);
    *bytes = buffer->bytes + (getenv("STUB_PADS") != NULL);
    return 0;
}

int32_t LiteRtLockTensorBuffer(object *buffer, void **memory, int32_t how) {
    FAILS(LiteRtLockTensorBuffer);
    require(!buffer->locks && (how == 0 || how == 1), "a locked buffer is locked");
    buffer->locks++;
    *memory = buffer->data;
    return 0;
}

int32_t LiteRtUnlockTensorBuffer(object *buffer) {
    require(buffer->locks == 1, "an unlocked buffer is unlocked");
    buffer->locks--;
    FAILS(LiteRtUnlockTensorBuffer);
    return 0;
}

int32_t LiteRtRunCompiledModel(object *compiled, size_t signature, size_t n_inputs, object **inputs, size_t n_outputs,
                               object **outputs) {
    FAILS(LiteRtRunCompiledModel);
    require(compiled->kind == COMPILED && !signature && n_inputs, "a run of something else");
    for (size_t i = 0; i < n_outputs; i++)
        for (size_t k = 0; k < outputs[i]->bytes; k++)
            ((char *)outputs[i]->data)[k] = ((char *)inputs[0]->data)[k % inputs[0]->bytes];
    return 0;
}
