/* What the C host of OpenCL knows of sources, for tests. */
#include "../../../../devices/engine/opencl_host/kernels/sha256.c"
#include "../../../../devices/engine/opencl_host/kernels/sources.c"

#define EXPORT __attribute__((visibility("default")))

EXPORT int64_t kernel_integers(const char *text, const char *kernel) { return nns_ocl_kernel_integers(text, kernel); }

EXPORT int is_trusted(const char *text) { return nns_ocl_is_trusted(text); }

/* The hash of a text that is given in parts of `part` bytes. */
EXPORT void sha256(const char *data, size_t bytes, size_t part, char *hex) {
    unsigned char digest[NNS_SHA256_BYTES];
    nns_sha256 hash;
    nns_sha256_begin(&hash);
    for (size_t at = 0; at < bytes; at += part) nns_sha256_add(&hash, data + at, bytes - at < part ? bytes - at : part);
    nns_sha256_end(&hash, digest);
    nns_sha256_hex(digest, hex);
}
