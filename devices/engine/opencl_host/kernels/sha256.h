/* SHA-256 (FIPS 180-4). */
#ifndef NNS_SHA256_H
#define NNS_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { NNS_SHA256_BYTES = 32, NNS_SHA256_BLOCK = 64, NNS_SHA256_HEX = 2 * NNS_SHA256_BYTES + 1 };

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[NNS_SHA256_BLOCK];
} nns_sha256;

void nns_sha256_begin(nns_sha256 *hash);
void nns_sha256_add(nns_sha256 *hash, const void *data, size_t bytes);
void nns_sha256_end(nns_sha256 *hash, unsigned char digest[NNS_SHA256_BYTES]);

/* The digest in hexadecimal digits and a zero byte. */
void nns_sha256_hex(const unsigned char digest[NNS_SHA256_BYTES], char text[NNS_SHA256_HEX]);

#endif
