/* SPDX-License-Identifier: Apache-2.0
 * BLAKE2b with a digest of 256 bits and no key (RFC 7693): names and checks cache entries. */
#ifndef MICA_BASE_BLAKE2B_H
#define MICA_BASE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define MICA_DIGEST_BYTES 32

typedef struct mica_blake2b {
    uint64_t h[8], total;
    size_t fill, digest_bytes;
    unsigned char block[128];
} mica_blake2b;

/* digest_bytes: 1 to 64; the library uses MICA_DIGEST_BYTES. */
void mica_blake2b_start(mica_blake2b *b, size_t digest_bytes);
void mica_blake2b_add(mica_blake2b *b, const void *data, size_t bytes);
void mica_blake2b_end(mica_blake2b *b, unsigned char *digest);

#endif
