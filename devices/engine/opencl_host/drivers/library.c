#include "api.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "static_program.h"

#if UINTPTR_MAX > UINT32_MAX
#define VENDOR_LIBRARIES "/vendor/lib64/"
#define SYSTEM_LIBRARIES "/system/lib64/"
#else
#define VENDOR_LIBRARIES "/vendor/lib/"
#define SYSTEM_LIBRARIES "/system/lib/"
#endif

nns_ocl_functions nns_ocl;

/* Where Linux and Android have an OpenCL library: a loader of drivers, or one driver. */
static const char *const usual[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    VENDOR_LIBRARIES "libOpenCL.so",
    "/system" VENDOR_LIBRARIES "libOpenCL.so",
    SYSTEM_LIBRARIES "libOpenCL.so",
    VENDOR_LIBRARIES "egl/libGLES_mali.so",
    "/system" VENDOR_LIBRARIES "egl/libGLES_mali.so",
    VENDOR_LIBRARIES "libGLES_mali.so",
    VENDOR_LIBRARIES "libPVROCL.so",
    "/system" VENDOR_LIBRARIES "libPVROCL.so",
};

#define ENTRY(result, name, parameters) {"cl" #name, offsetof(nns_ocl_functions, name)},
typedef struct {
    const char *name;
    size_t offset; /* in nns_ocl_functions */
} entry;
static const entry needed[] = {NNS_OCL_FUNCTIONS(ENTRY)};
static const entry optional[] = {NNS_OCL_OPTIONAL_FUNCTIONS(ENTRY)};

static bool set(nns_ocl_functions *functions, void *library, const entry *one) {
    void *found = dlsym(library, one->name);
    memcpy((char *)functions + one->offset, &found, sizeof found);
    return found != NULL;
}

static int32_t take_functions(void *library, const char *path, nns_report *report) {
    nns_ocl_functions functions = {0};
    for (int64_t i = 0; i < NNS_OCL_LENGTH(needed); i++)
        if (!set(&functions, library, &needed[i]))
            return nns_fail(report, NNS_EOPENCL, "the OpenCL library %.120s has no function %s; name another one", path,
                            needed[i].name);
    for (int64_t i = 0; i < NNS_OCL_LENGTH(optional); i++) set(&functions, library, &optional[i]);
    nns_ocl = functions;
    return NNS_OK;
}

static int32_t fail_open(const char *path, const char *why, nns_report *report) {
    if (nns_is_static_program(why))
        return nns_fail(report, NNS_EOPENCL,
                        "this program is linked statically and cannot open OpenCL; use the one for a linux-gnu target, or "
                        "a model for CPU cores alone");
    if (path)
        return nns_fail(report, NNS_EOPENCL, "the OpenCL library %.80s cannot be opened (%.100s); name another one",
                        path, why ? why : "no reason is given");
    return nns_fail(report, NNS_EOPENCL,
                    "no OpenCL library is found (%s and others); install a driver (Debian, Ubuntu: apt-get install "
                    "pocl-opencl-icd), or name the library in NNSTRETCH_OPENCL_LIBRARY",
                    usual[0]);
}

/* Opens one library. `*why` receives dlopen's reason if that fails, which is no report. */
static int32_t try_open(const char *path, bool *opened, const char **why, nns_report *report) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *opened = library != NULL;
    if (!library) {
        *why = dlerror();
        return NNS_OK;
    }
    /* Libraries stay open: drivers leave threads behind. */
    TRY(take_functions(library, path, report));
    char text[NNS_TEXT];
    if (nns_opencl_load(path, text, sizeof text)) return nns_fail(report, NNS_EOPENCL, "%s", text);
    return NNS_OK;
}

int32_t nns_ocl_open_library(const char *path, nns_report *report) {
    bool opened = false;
    const char *why = NULL;
    if (!path || !*path) path = getenv("NNSTRETCH_OPENCL_LIBRARY");
    if (path && *path) {
        TRY(try_open(path, &opened, &why, report));
        return opened ? NNS_OK : fail_open(path, why, report);
    }
    for (int64_t i = 0; i < NNS_OCL_LENGTH(usual); i++) {
        TRY(try_open(usual[i], &opened, &why, report));
        if (opened) return NNS_OK;
        if (nns_is_static_program(why)) break;
    }
    return fail_open(NULL, why, report);
}
