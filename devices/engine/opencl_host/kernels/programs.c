#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "host.h"

enum { PATH_BYTES = 4096, OPTION_BYTES = 16384, MOST_BINARY = 64 << 20, LOG_LINE = 100 };

/* As devices/opencl/runtime.py has them: equal options give equal results. */
static const char common_options[] = "-cl-mad-enable -cl-no-signed-zeros";

/* The version of OpenCL C for a source: 3.0 for dot products of packed int8 on devices that have them. */
static const char *standard_of(const nns_ocl_port *port, const nns_ocl_source *source) {
    const bool asks = strstr(source->text, "__opencl_c_integer_dot_product_input_4x8bit_packed");
    return asks && port->device->dot_products ? "CL3.0" : "CL1.2";
}

static int32_t write_options(const char *standard, const nns_ocl_program *macros, char options[OPTION_BYTES],
                             nns_report *report) {
    size_t used = (size_t)snprintf(options, OPTION_BYTES, "-cl-std=%s %s", standard, common_options);
    for (int64_t i = 0; macros && i < macros->n_macros && used < OPTION_BYTES; i++)
        used += (size_t)snprintf(options + used, OPTION_BYTES - used, " -D%s=%lld", macros->names[i],
                                 (long long)macros->values[i]);
    return used < OPTION_BYTES ? NNS_OK : nns_fail(report, NNS_EINVALID, "a kernel has too many macros");
}

/* ---- build logs ------------------------------------------------------------------------------------------- */

static bool names_error(const char *line, size_t length) {
    static const char word[] = "error";
    const size_t n = sizeof word - 1;
    for (size_t i = 0; i + n <= length; i++)
        if (!strncasecmp(line + i, word, n) && (!i || !isalnum((unsigned char)line[i - 1])) &&
            (i + n == length || !isalnum((unsigned char)line[i + n])))
            return true;
    return false;
}

/* Copies the first line of a log that names an error, else its first line. */
static void pick_line(const char *log, char line[LOG_LINE]) {
    const char *best = NULL;
    for (const char *at = log; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        while (*at == ' ' || *at == '\t') at++;
        const size_t length = strcspn(at, "\n");
        const bool error = names_error(at, length);
        if (length && (error || !best)) best = at;
        if (error) break;
    }
    snprintf(line, LOG_LINE, "%.*s", best ? (int)strcspn(best, "\n") : 0, best ? best : "");
}

static int32_t fail_build(const nns_ocl_port *port, const nns_ocl_source *source, ocl_handle program, ocl_int code,
                          nns_report *report) {
    char log[8192] = "", line[LOG_LINE];
    size_t size = 0;
    if (nns_ocl.GetProgramBuildInfo(program, port->device->id, OCL_PROGRAM_BUILD_LOG, sizeof log - 1, log, &size)) *log = 0;
    log[sizeof log - 1] = 0;
    pick_line(log, line);
    return nns_fail(report, NNS_EOPENCL,
                    "OpenCL source %.40s does not compile on device %d (%.40s): error %d%s%.90s; update the driver",
                    source->name, (int)port->device->index, port->device->name, (int)code, *line ? ", " : "", line);
}

/* ---- building --------------------------------------------------------------------------------------------- */

static int32_t build_source(const nns_ocl_port *port, const nns_ocl_source *source, const char *options,
                            ocl_handle *program, nns_report *report) {
    ocl_int code = 0;
    const char *text = source->text;
    const size_t length = strlen(text);
    *program = nns_ocl.CreateProgramWithSource(port->context, 1, &text, &length, &code);
    if (!*program) return nns_ocl_fail(port->device, code, report, "takes no source %.40s", source->name);
    code = nns_ocl.BuildProgram(*program, 1, &port->device->id, options, NULL, NULL);
    return code ? fail_build(port, source, *program, code, report) : NNS_OK;
}

/* The program of a stored binary; NULL if there is none or the driver rejects it. */
static ocl_handle build_binary(const nns_ocl_port *port, const char *path, const char *options) {
    nns_ocl_binary binary = nns_ocl_binary_read(path);
    if (!binary.bytes) return NULL;
    ocl_int code = 0, status = 0;
    const unsigned char *bytes = binary.bytes;
    ocl_handle program = nns_ocl.CreateProgramWithBinary(port->context, 1, &port->device->id, &binary.count, &bytes,
                                                         &status, &code);
    if (program && (status || nns_ocl.BuildProgram(program, 1, &port->device->id, options, NULL, NULL))) {
        nns_ocl.ReleaseProgram(program);
        program = NULL;
    }
    free(binary.bytes);
    return program;
}

static void store_binary(ocl_handle program, const char *path) {
    nns_ocl_binary binary = {0};
    if (nns_ocl.GetProgramInfo(program, OCL_PROGRAM_BINARY_SIZES, sizeof binary.count, &binary.count, NULL)) return;
    if (!binary.count || binary.count > MOST_BINARY || !(binary.bytes = malloc(binary.count))) return;
    unsigned char *bytes = binary.bytes;
    if (!nns_ocl.GetProgramInfo(program, OCL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL))
        nns_ocl_binary_write(path, &binary);
    free(binary.bytes);
}

int32_t nns_ocl_build(const nns_ocl_port *port, const nns_ocl_source *source, const nns_ocl_program *macros,
                      const char *cache, ocl_handle *program, nns_report *report) {
    char options[OPTION_BYTES], path[PATH_BYTES];
    TRY(write_options(standard_of(port, source), macros, options, report));
    /* PoCL's own cache also covers work group sizes, which its binaries do not. */
    const bool kept = cache && !nns_ocl_is_pocl(port->device) &&
                      nns_ocl_binary_path(cache, port->device, source->text, options, path, sizeof path);
    *program = kept ? build_binary(port, path, options) : NULL;
    if (*program) return NNS_OK;
    TRY(build_source(port, source, options, program, report));
    if (kept) store_binary(*program, path);
    return NNS_OK;
}
