/* Reads files of /sys and /proc. What is not there is unknown, never an error. */
#ifndef NNS_SYSFS_H
#define NNS_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NNS_SYSFS_NAME = 64, NNS_SYSFS_TEXT = 256, NNS_SYSFS_PATH = 512 };

/* The folder that holds `sys` and `proc`: "" stands for /. Only descriptions of the machine are read below it; files of
 * this process (/proc/self) are its own. */
typedef struct {
    const char *root;
} nns_sysfs;

typedef char nns_sysfs_name[NNS_SYSFS_NAME];

/* Reads the first line of a file without white space at its end. Returns whether there is a line that is not empty. */
bool nns_sysfs_line(const nns_sysfs *fs, char *text, size_t size, const char *path, ...)
    __attribute__((format(printf, 4, 5)));

/* Reads a whole number; NNS_UNKNOWN if there is none. */
int64_t nns_sysfs_number(const nns_sysfs *fs, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* Reads a list such as 0-3,6. Returns how many numbers there are, or -1 if there is no list of at most `most`. */
int32_t nns_sysfs_list(const nns_sysfs *fs, int32_t *numbers, int32_t most, const char *path, ...)
    __attribute__((format(printf, 4, 5)));

/* Lists the entries of a folder that begin with `prefix`, at most `most`: shorter names first, then by their bytes, so that
 * numbered entries are in order. Longer names are left out. Returns their number. */
int32_t nns_sysfs_entries(const nns_sysfs *fs, const char *folder, const char *prefix, nns_sysfs_name *names,
                          int32_t most);

/* Reads the number after `key`, as in "MemTotal:  16318752 kB", in a file of such lines; NNS_UNKNOWN if there is none. */
int64_t nns_sysfs_keyed_number(const nns_sysfs *fs, const char *path, const char *key);

#endif
