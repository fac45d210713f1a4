#include "sysfs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer/json.h"
#include "ranges.h"

static FILE *open_file(const nns_sysfs *fs, const char *format, va_list arguments) {
    char path[NNS_SYSFS_PATH];
    const int root = snprintf(path, sizeof path, "%s", fs->root);
    if (root < 0 || (size_t)root >= sizeof path) return NULL;
    const int rest = vsnprintf(path + root, sizeof path - (size_t)root, format, arguments);
    if (rest < 0 || (size_t)rest >= sizeof path - (size_t)root) return NULL;
    return fopen(path, "re");
}

/* Reads the first line of an open file and closes it. */
static bool read_line(FILE *file, char *text, size_t size) {
    if (!file) return false;
    const bool found = fgets(text, (int)size, file);
    fclose(file);
    if (!found) return false;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1])) text[--length] = 0;
    return length > 0;
}

bool nns_sysfs_line(const nns_sysfs *fs, char *text, size_t size, const char *path, ...) {
    va_list arguments;
    va_start(arguments, path);
    FILE *file = open_file(fs, path, arguments);
    va_end(arguments);
    return read_line(file, text, size);
}

int64_t nns_sysfs_number(const nns_sysfs *fs, const char *path, ...) {
    char text[NNS_SYSFS_TEXT], *end = NULL;
    va_list arguments;
    va_start(arguments, path);
    FILE *file = open_file(fs, path, arguments);
    va_end(arguments);
    if (!read_line(file, text, sizeof text)) return NNS_UNKNOWN;
    errno = 0;
    const long long value = strtoll(text, &end, 0);
    return errno || end == text || *end ? NNS_UNKNOWN : value;
}

int32_t nns_sysfs_list(const nns_sysfs *fs, int32_t *numbers, int32_t most, const char *path, ...) {
    enum { LIST_BYTES = 8192, MOST_NUMBER = 1 << 20 };
    char text[LIST_BYTES];
    va_list arguments;
    va_start(arguments, path);
    FILE *file = open_file(fs, path, arguments);
    va_end(arguments);
    if (!read_line(file, text, sizeof text)) return -1;
    return nns_parse_ranges(text, ",", MOST_NUMBER, numbers, most);
}

static int compare_names(const void *a, const void *b) {
    const size_t x = strlen(a), y = strlen(b);
    return x != y ? (x > y) - (x < y) : strcmp(a, b);
}

int32_t nns_sysfs_entries(const nns_sysfs *fs, const char *folder, const char *prefix, nns_sysfs_name *names,
                          int32_t most) {
    char path[NNS_SYSFS_PATH];
    if (snprintf(path, sizeof path, "%s%s", fs->root, folder) >= (int)sizeof path) return 0;
    DIR *opened = opendir(path);
    int32_t count = 0;
    for (struct dirent *entry; opened && count < most && (entry = readdir(opened));) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        if (strlen(entry->d_name) < NNS_SYSFS_NAME) strcpy(names[count++], entry->d_name);
    }
    if (opened) closedir(opened);
    qsort(names, (size_t)count, sizeof *names, compare_names);
    return count;
}

int64_t nns_sysfs_keyed_number(const nns_sysfs *fs, const char *path, const char *key) {
    char line[NNS_SYSFS_TEXT], full[NNS_SYSFS_PATH];
    if (snprintf(full, sizeof full, "%s%s", fs->root, path) >= (int)sizeof full) return NNS_UNKNOWN;
    FILE *file = fopen(full, "re");
    int64_t value = NNS_UNKNOWN;
    while (file && value == NNS_UNKNOWN && fgets(line, sizeof line, file)) {
        char *end = NULL;
        if (strncmp(line, key, strlen(key))) continue;
        const long long found = strtoll(line + strlen(key), &end, 10);
        if (end != line + strlen(key)) value = found;
    }
    if (file) fclose(file);
    return value;
}
