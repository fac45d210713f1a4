#include "array.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"

/* A .npy file: magic and version, the header's length, and a header in Python's notation. */
enum { MAGIC_BYTES = 6, PREFIX_BYTES = 8, HEADER_MOST = 4096, PATH_MOST = 4096, NPY_ALIGNMENT = 64 };

static const char npy_magic[MAGIC_BYTES] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* Types in the notation of .npy headers. NumPy has no bfloat16; there are its bits. */
static const char *const npy_types[] = {
    [NNS_FLOAT32] = "'<f4'", [NNS_FLOAT16] = "'<f2'", [NNS_BFLOAT16] = "'<u2'", [NNS_FLOAT64] = "'<f8'",
    [NNS_INT8] = "'|i1'",    [NNS_UINT8] = "'|u1'",   [NNS_INT16] = "'<i2'",    [NNS_UINT16] = "'<u2'",
    [NNS_INT32] = "'<i4'",   [NNS_UINT32] = "'<u4'",  [NNS_INT64] = "'<i8'",    [NNS_UINT64] = "'<u8'",
    [NNS_BOOL] = "'|b1'",
};

const char *nns_shape_text(const nns_tensor *tensor, char *text) {
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 0; i < tensor->rank && used < NNS_SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, NNS_SHAPE_TEXT - used, i ? "x%lld" : "%lld", (long long)tensor->shape[i]);
    return text;
}

static bool is_npy(const char *path) {
    const char *end = strrchr(path, '.');
    return end && strcmp(end, ".npy") == 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static void read_exactly(FILE *file, void *to, size_t bytes, const char *path) {
    if (fread(to, 1, bytes, file) == bytes) return;
    nns_die(ferror(file) ? "cannot read %s" : "%s ends early", path);
}

/* The text after a key of a .npy header; ends the process if there is none. */
static const char *value_of(const char *header, const char *key, const char *path) {
    const char *found = strstr(header, key);
    if (!found) nns_die("%s has no %s in its .npy header", path, key);
    found += strlen(key);
    return found + strspn(found, " :");
}

/* Whether a header has a type. Some programs state an order of bytes where there is one byte. */
static bool same_type(const char *text, const char *wanted) {
    const bool same_order = *text == '\'' && (text[1] == wanted[1] || (text[1] == '<' && wanted[1] == '|'));
    return same_order && !strncmp(text + 2, wanted + 2, strlen(wanted + 2));
}

/* Ends the process if the type of a header, at `text`, is not that of `tensor`. */
static void check_type(const char *text, const nns_tensor *tensor, const char *path) {
    const char *wanted = npy_types[tensor->dtype];
    if (same_type(text, wanted)) return;
    nns_die("%s has numbers of type %.*s, and input %s takes %s, which is %s there; convert them", path,
            (int)strcspn(text, ",}"), text, tensor->name, nns_dtype_name(tensor->dtype), wanted);
}

static bool same_shape(const char *text, const nns_tensor *tensor) {
    if (*text++ != '(') return false;
    for (int32_t i = 0; i < tensor->rank; i++) {
        char *end = NULL;
        errno = 0;
        if (strtoll(text, &end, 10) != tensor->shape[i] || errno || end == text) return false;
        text = end + strspn(end, " ");
        if (*text == ',') text++;
        text += strspn(text, " ");
    }
    return *text == ')';
}

static void read_npy_header(FILE *file, const nns_tensor *tensor, const char *path) {
    unsigned char prefix[PREFIX_BYTES], size[4] = {0};
    char header[HEADER_MOST + 1], shape[NNS_SHAPE_TEXT];
    read_exactly(file, prefix, sizeof prefix, path);
    if (memcmp(prefix, npy_magic, sizeof npy_magic)) nns_die("%s is not a .npy file", path);
    read_exactly(file, size, prefix[MAGIC_BYTES] < 2 ? 2 : 4, path);
    const size_t bytes = size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
    if (bytes > HEADER_MOST) nns_die("%s has a .npy header of %zu bytes; up to %d are read", path, bytes, HEADER_MOST);
    read_exactly(file, header, bytes, path);
    header[bytes] = 0;
    check_type(value_of(header, "'descr'", path), tensor, path);
    if (strncmp(value_of(header, "'fortran_order'", path), "False", 5))
        nns_die("%s is in Fortran order; write it with numpy.ascontiguousarray", path);
    const char *found = value_of(header, "'shape'", path);
    if (!same_shape(found, tensor))
        nns_die("%s has shape %.*s, and input %s takes %s", path, (int)strcspn(found, ")") + 1, found, tensor->name,
                nns_shape_text(tensor, shape));
}

void nns_array_read(const char *path, const nns_tensor *tensor, void *to) {
    FILE *file = fopen(path, "rb");
    if (!file) nns_die("cannot open %s: %s", path, strerror(errno));
    if (is_npy(path)) read_npy_header(file, tensor, path);
    const size_t bytes = (size_t)tensor->bytes, got = fread(to, 1, bytes, file);
    char shape[NNS_SHAPE_TEXT];
    if (ferror(file)) nns_die("cannot read %s: %s", path, strerror(errno));
    if (got != bytes || fgetc(file) != EOF)
        nns_die("%s has %s than the %zu bytes of the %lld %s numbers of input %s (%s); give a .npy file, or raw numbers, "
                "not text",
                path, got == bytes ? "more" : "less", bytes, (long long)tensor->count, nns_dtype_name(tensor->dtype),
                tensor->name, nns_shape_text(tensor, shape));
    fclose(file);
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static void part_path(const char *path, char *part) {
    if (snprintf(part, PATH_MOST, "%s.part", path) >= PATH_MOST) nns_die("the name of the output %s is too long", path);
}

/* Ends the process unless a file can take the place of what is at `path`: a device or a link would be lost. */
static void check_replaceable(const char *path) {
    struct stat found;
    if (lstat(path, &found) == 0 && !S_ISREG(found.st_mode))
        nns_die("cannot write %s: it is no regular file; name another one", path);
}

void nns_array_check_writable(const char *path) {
    char part[PATH_MOST];
    check_replaceable(path);
    part_path(path, part);
    FILE *file = fopen(part, "wb");
    if (!file) nns_die("cannot write %s: %s", path, strerror(errno));
    fclose(file);
    unlink(part);
}

static void write_npy_header(FILE *file, const nns_tensor *tensor) {
    char text[HEADER_MOST];
    size_t used = (size_t)snprintf(text, sizeof text, "{'descr': %s, 'fortran_order': False, 'shape': (",
                                   npy_types[tensor->dtype]);
    for (int32_t i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%lld,", (long long)tensor->shape[i]);
    used += (size_t)snprintf(text + used, sizeof text - used, ")}");
    const size_t prefix = PREFIX_BYTES + 2, whole = (prefix + used) / NPY_ALIGNMENT * NPY_ALIGNMENT + NPY_ALIGNMENT;
    while (prefix + used + 1 < whole) text[used++] = ' ';
    text[used++] = '\n';
    fwrite(npy_magic, 1, sizeof npy_magic, file);
    const unsigned char rest[] = {1, 0, (unsigned char)(used & 0xff), (unsigned char)(used >> 8)};
    fwrite(rest, 1, sizeof rest, file);
    fwrite(text, 1, used, file);
}

void nns_array_write(const char *path, const nns_tensor *tensor, const void *from) {
    char part[PATH_MOST];
    part_path(path, part);
    FILE *file = fopen(part, "wb");
    if (!file) nns_die("cannot write %s: %s", path, strerror(errno));
    if (is_npy(path)) write_npy_header(file, tensor);
    fwrite(from, 1, (size_t)tensor->bytes, file);
    const bool failed = ferror(file) != 0;
    if (fclose(file) || failed || rename(part, path)) {
        const int why = errno;
        unlink(part);
        nns_die("cannot write %s: %s", path, strerror(why));
    }
}
