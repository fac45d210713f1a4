#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "static_program.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define LIBRARY "libLiteRt.so"

/* A function that is not called: libraries without it are older than 2.1.6, where LiteRtCreateModelFromBuffer has other
 * parameters. */
#define MARK "LiteRtCreateModelFromFd"

#define ENTRY(name, parameters) {"LiteRt" #name, offsetof(litert_functions, name)},
#define DESTROYER(name) {"LiteRt" #name, offsetof(litert_functions, name)},
static const struct {
    const char *name;
    size_t offset; /* in litert_functions */
} entries[] = {NNS_LITERT_FUNCTIONS(ENTRY) NNS_LITERT_DESTROYERS(DESTROYER)};

static int32_t fail_missing(const char *path, const char *name, nns_report *report) {
    return nns_fail(report, NNS_EINVALID,
                    "the LiteRT library %.100s has no function %s; name a " LIBRARY " of version 2.1.6 or later", path,
                    name);
}

static int32_t take_functions(void *library, const char *path, litert_functions *functions, nns_report *report) {
    if (!dlsym(library, MARK)) return fail_missing(path, MARK, report);
    for (size_t i = 0; i < LENGTH(entries); i++) {
        void *found = dlsym(library, entries[i].name);
        if (!found) return fail_missing(path, entries[i].name, report);
        memcpy((char *)functions + entries[i].offset, &found, sizeof found);
    }
    return NNS_OK;
}

static int32_t fail_open(const char *path, const char *why, nns_report *report) {
    if (nns_is_static_program(why))
        return nns_fail(report, NNS_EINVALID,
                        "this program is linked statically and cannot open LiteRT; use the one for a linux-gnu target, or a "
                        "model for CPU cores alone");
    return nns_fail(report, NNS_EINVALID,
                    "the LiteRT library %.80s cannot be opened (%.90s); name it in NNSTRETCH_LITERT", path,
                    why ? why : "no reason is given");
}

int32_t nns_litert_open_library(const char *path, litert_functions *functions, const char **found, nns_report *report) {
    if (!path || !*path) path = getenv("NNSTRETCH_LITERT");
    if (!path || !*path) path = LIBRARY;
    *found = path;
    /* It stays open: accelerators leave threads behind. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail_open(path, dlerror(), report);
    return take_functions(library, path, functions, report);
}

static const char *meaning(int32_t status) {
    switch (status) {
    case LITERT_INVALID_ARGUMENT: return " (an argument is not valid)";
    case LITERT_NO_MEMORY: return " (no memory)";
    case LITERT_RUNTIME_FAILURE: return " (it failed at run time)";
    case LITERT_UNSUPPORTED: return " (not supported)";
    case LITERT_NOT_FOUND: return " (not found)";
    case LITERT_WRONG_VERSION: return " (wrong version)";
    case LITERT_INVALID_FLATBUFFER: return " (no valid TFLite file)";
    case LITERT_DYNAMIC_LOADING: return " (a library cannot be opened)";
    case LITERT_COMPILATION: return " (the accelerator does not take all layers; gpu+cpu leaves the others to the CPU)";
    default: return "";
    }
}

int32_t nns_litert_fail(const char *verb, const char *layers, const char *function, int32_t status, nns_report *report) {
    return nns_fail(report, status == LITERT_NO_MEMORY ? NNS_EMEMORY : NNS_ECALL,
                    "LiteRT cannot %s%s%.50s: %s failed with status %d%s; name another accelerator or LiteRT library", verb,
                    layers ? " " : "", layers ? layers : "", function, (int)status, meaning(status));
}
