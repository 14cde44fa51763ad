/* SPDX-License-Identifier: Apache-2.0
 * The disk cache: blobs by key. An entry is code that will run on the GPU, so nothing is trusted
 * that another user could have written, and any doubt is a miss. */
#ifndef MICA_CUDA_COMPILE_CACHE_H
#define MICA_CUDA_COMPILE_CACHE_H

#include "base/blake2b.h"

#include <stdbool.h>

typedef struct mica_cache_key {
    const char *text; /* everything that decides the blob; compared in full */
    size_t bytes;
    unsigned char digest[MICA_DIGEST_BYTES]; /* of the text; names the file */
} mica_cache_key;

/* True: *blob (to be mica_release'd) is what was stored under the key. */
bool mica_cache_read(const mica_cache_key *key, void **blob, size_t *bytes);
/* The same for who has read in vain before: damage is in the log already. */
bool mica_cache_read_again(const mica_cache_key *key, void **blob, size_t *bytes);
/* Stores it if that is possible; a failure is one line of the log and nothing else. */
void mica_cache_write(const mica_cache_key *key, const void *blob, size_t bytes);

#endif
