/* LiteRT's C interface as far as models need it: names, parameters and numbers of versions 2.1.6 to 2.3.0, whose library exports
 * them. Handles are opaque pointers, so that no headers of LiteRT are needed to build. All functions with a result return a status,
 * 0 on success. */
#ifndef NNS_LITERT_API_H
#define NNS_LITERT_API_H

#include <stddef.h>
#include <stdint.h>

#include "litert_host.h"

typedef void *litert_handle;

enum {
    LITERT_INVALID_ARGUMENT = 1,
    LITERT_NO_MEMORY = 2,
    LITERT_RUNTIME_FAILURE = 3,
    LITERT_UNSUPPORTED = 5,
    LITERT_NOT_FOUND = 6,
    LITERT_WRONG_VERSION = 8,
    LITERT_INVALID_FLATBUFFER = 501,
    LITERT_DYNAMIC_LOADING = 502,
    LITERT_COMPILATION = 504, /* an accelerator leaves layers over, and the CPU may not take them */
};

/* Sets of accelerators. */
enum { LITERT_CPU = 1, LITERT_GPU = 2, LITERT_NPU = 4 };

/* Options of an environment. */
enum {
    LITERT_COMPILER_PLUGIN_FOLDER = 0,
    LITERT_DISPATCH_FOLDER = 1,
    LITERT_RUNTIME_FOLDER = 22,      /* where libraries of accelerators lie */
    LITERT_LOADED_ACCELERATORS = 24, /* a set */
    LITERT_LEAST_SEVERITY = 25,      /* of what is logged */
};
enum { LITERT_INTEGER = 2, LITERT_TEXT = 8 }; /* types of their values */
enum { LITERT_SILENT = 4 };                   /* a severity */

typedef struct {
    int32_t option;
    struct {
        int32_t type;
        union {
            int64_t integer;
            const char *text;
        };
    } value;
} litert_option;

/* The type of a tensor. Bits of `flags`: 0 to 6 are the rank, 7 says that there are strides. */
typedef struct {
    int32_t element;
    uint32_t flags;
    int32_t extents[NNS_LITERT_MOST_RANK];
    uint32_t strides[NNS_LITERT_MOST_RANK];
} litert_type;

_Static_assert(sizeof(litert_type) == 72, "LiteRT's types of tensors have 72 bytes");
#if UINTPTR_MAX > UINT32_MAX
_Static_assert(sizeof(litert_option) == 24 && offsetof(litert_option, value) == 8, "LiteRT's options have 24 bytes");
#endif

enum { LITERT_RANK_BITS = 0x7f };

/* How a buffer is locked. */
enum { LITERT_READ = 0, LITERT_WRITE = 1 };

/* F(name without "LiteRt", parameters) of functions with a status. */
#define NNS_LITERT_FUNCTIONS(F)                                                                                         \
    F(CreateEnvironment, (int32_t count, const litert_option *options, litert_handle *environment))                     \
    F(GetNumAccelerators, (litert_handle environment, size_t *count))                                                   \
    F(GetAccelerator, (litert_handle environment, size_t index, litert_handle *accelerator))                            \
    F(GetAcceleratorHardwareSupport, (litert_handle accelerator, int32_t *set))                                         \
    F(CreateModelFromBuffer, (litert_handle environment, const void *content, size_t bytes, litert_handle *model))      \
    F(GetModelSignature, (litert_handle model, size_t index, litert_handle *signature))                                 \
    F(GetNumSignatureInputs, (litert_handle signature, size_t *count))                                                  \
    F(GetNumSignatureOutputs, (litert_handle signature, size_t *count))                                                 \
    F(GetSignatureInputTensorByIndex, (litert_handle signature, size_t index, litert_handle *tensor))                   \
    F(GetSignatureOutputTensorByIndex, (litert_handle signature, size_t index, litert_handle *tensor))                  \
    F(GetRankedTensorType, (litert_handle tensor, litert_type *type))                                                   \
    F(CreateOptions, (litert_handle * options))                                                                         \
    F(SetOptionsHardwareAccelerators, (litert_handle options, int32_t set))                                             \
    F(CreateOpaqueOptions,                                                                                              \
      (const char *receiver, void *text, void (*destroy)(void *), litert_handle *opaque))                               \
    F(AddOpaqueOptions, (litert_handle options, litert_handle opaque))                                                  \
    F(CreateCompiledModel,                                                                                              \
      (litert_handle environment, litert_handle model, litert_handle options, litert_handle *compiled))                 \
    F(GetCompiledModelInputBufferRequirements,                                                                          \
      (litert_handle compiled, size_t signature, size_t index, litert_handle *requirements))                            \
    F(GetCompiledModelOutputBufferRequirements,                                                                         \
      (litert_handle compiled, size_t signature, size_t index, litert_handle *requirements))                            \
    F(CreateManagedTensorBufferFromRequirements,                                                                        \
      (litert_handle environment, const litert_type *type, litert_handle requirements, litert_handle *buffer))          \
    F(GetTensorBufferPackedSize, (litert_handle buffer, size_t *bytes))                                                 \
    F(LockTensorBuffer, (litert_handle buffer, void **memory, int32_t how))                                             \
    F(UnlockTensorBuffer, (litert_handle buffer))                                                                       \
    F(RunCompiledModel,                                                                                                 \
      (litert_handle compiled, size_t signature, size_t n_inputs, litert_handle *inputs, size_t n_outputs,              \
       litert_handle *outputs))

/* F(name) of functions that free a handle, which is not NULL. */
#define NNS_LITERT_DESTROYERS(F)                                                                                        \
    F(DestroyEnvironment)                                                                                               \
    F(DestroyModel)                                                                                                     \
    F(DestroyOptions)                                                                                                   \
    F(DestroyOpaqueOptions)                                                                                             \
    F(DestroyCompiledModel)                                                                                             \
    F(DestroyTensorBuffer)

#define NNS_LITERT_POINTER(name, parameters) int32_t(*name) parameters;
#define NNS_LITERT_DESTROYER(name) void (*name)(litert_handle handle);
typedef struct {
    NNS_LITERT_FUNCTIONS(NNS_LITERT_POINTER)
    NNS_LITERT_DESTROYERS(NNS_LITERT_DESTROYER)
} litert_functions;

/* Opens a LiteRT library and finds its functions. `path` is taken if it is not NULL; otherwise that of the environment variable
 * NNSTRETCH_LITERT; otherwise libLiteRt.so on the system's library path. `*found` receives the path. */
int32_t nns_litert_open_library(const char *path, litert_functions *functions, const char **found, nns_report *report);

/* Reports that a function failed: "LiteRT cannot VERB LAYERS: FUNCTION failed with status STATUS (meaning); what to do". `layers` is
 * the name of a call, or NULL. */
int32_t nns_litert_fail(const char *verb, const char *layers, const char *function, int32_t status, nns_report *report);

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* What all calls of a host share. */
typedef struct {
    litert_functions functions;
    litert_handle environment;
} nns_litert;

/* A compiled file. */
typedef struct {
    const nns_litert_call *plan;
    litert_handle model, compiled;
    litert_handle *buffers; /* of the inputs, then of the outputs */
} nns_litert_work;

/* Makes a call ready for a set of accelerators. `cpu` is the text of the CPU accelerator's settings. `work` is zeroed before but
 * for its plan, and freed by nns_litert_free_work, also on failure. */
int32_t nns_litert_make_work(const nns_litert *litert, nns_litert_work *work, int32_t set, const char *cpu,
                             nns_report *report);
void nns_litert_free_work(const nns_litert *litert, nns_litert_work *work);

/* Runs a call. */
int32_t nns_litert_run_work(const nns_litert *litert, const nns_litert_work *work, const void *const *reads,
                            void *const *writes, nns_report *report);

#endif
