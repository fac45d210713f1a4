#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "sha256.h"

/* A file is the SHA-256 of a binary, then the binary: drivers may crash on a damaged one. */
enum { MOST_BINARY = 64 << 20, PATH_BYTES = 4096 };

bool nns_ocl_binary_path(const char *folder, const nns_ocl_device *device, const char *text, const char *options,
                         char *path, size_t size) {
    const char *const parts[] = {text, options, device->platform, device->name, device->driver};
    unsigned char digest[NNS_SHA256_BYTES];
    char hex[NNS_SHA256_HEX];
    nns_sha256 hash;
    nns_sha256_begin(&hash);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (i) nns_sha256_add(&hash, "", 1);
        for (const char *at = parts[i]; *at; at++) nns_sha256_add(&hash, i == 1 && *at == ' ' ? "" : at, 1);
    }
    nns_sha256_end(&hash, digest);
    nns_sha256_hex(digest, hex);
    return snprintf(path, size, "%s/%s.bin", folder, hex) < (int)size;
}

static void hash_binary(const unsigned char *bytes, size_t count, unsigned char digest[NNS_SHA256_BYTES]) {
    nns_sha256 hash;
    nns_sha256_begin(&hash);
    nns_sha256_add(&hash, bytes, count);
    nns_sha256_end(&hash, digest);
}

static bool read_file(FILE *file, nns_ocl_binary *binary) {
    unsigned char stored[NNS_SHA256_BYTES], digest[NNS_SHA256_BYTES];
    if (fseek(file, 0, SEEK_END)) return false;
    const long size = ftell(file) - NNS_SHA256_BYTES;
    if (size < 1 || size > MOST_BINARY || fseek(file, 0, SEEK_SET)) return false;
    binary->count = (size_t)size;
    binary->bytes = malloc(binary->count);
    if (!binary->bytes || fread(stored, sizeof stored, 1, file) != 1 || fread(binary->bytes, binary->count, 1, file) != 1)
        return false;
    hash_binary(binary->bytes, binary->count, digest);
    return !memcmp(stored, digest, sizeof digest);
}

nns_ocl_binary nns_ocl_binary_read(const char *path) {
    nns_ocl_binary binary = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return binary;
    if (!read_file(file, &binary)) {
        free(binary.bytes);
        binary = (nns_ocl_binary){0};
    }
    fclose(file);
    return binary;
}

void nns_ocl_binary_write(const char *path, const nns_ocl_binary *binary) {
    unsigned char digest[NNS_SHA256_BYTES];
    char part[PATH_BYTES];
    if (snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid()) >= (int)sizeof part) return;
    FILE *file = fopen(part, "wb");
    if (!file) return;
    hash_binary(binary->bytes, binary->count, digest);
    bool good = fwrite(digest, sizeof digest, 1, file) == 1 && fwrite(binary->bytes, binary->count, 1, file) == 1;
    good = !fclose(file) && good;
    if (!good || rename(part, path)) unlink(part);
}
