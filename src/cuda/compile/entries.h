/* SPDX-License-Identifier: Apache-2.0
 * The files of the disk cache, as its archives see them. */
#ifndef MICA_CUDA_COMPILE_ENTRIES_H
#define MICA_CUDA_COMPILE_ENTRIES_H

#include "cuda/compile/cache.h"

#include <time.h>

enum {
    MICA_CACHE_HEADER = 8 + 8 + 8 + MICA_DIGEST_BYTES,
    MICA_CACHE_NAME = 2 * MICA_DIGEST_BYTES + 1, /* of a file, with its \0 */
    MICA_CACHE_MOST = 64 << 20                   /* bytes of a file */
};

typedef struct mica_cache_file {
    char name[MICA_CACHE_NAME];
    int64_t bytes;
    struct timespec used;
} mica_cache_file;

typedef struct mica_cache_files {
    mica_cache_file *entries; /* to be mica_release'd */
    size_t count, capacity;
    int64_t bytes;
} mica_cache_files;

/* Bytes that the cache may hold; 0: there is none. */
int64_t mica_cache_limit(void);
/* A descriptor of the directory if nobody else can write to it; else -1 and the reason. */
int mica_cache_open(bool create, char path[512], char reason[160]);
void mica_cache_name(const mica_cache_key *key, char name[MICA_CACHE_NAME]);
/* The entries, least recently used first. Leaves `directory` open. */
bool mica_cache_list(int directory, mica_cache_files *files);
/* The whole file, if it is one that only this user can have written. */
unsigned char *mica_cache_read_file(int directory, const char *name, size_t *size);
/* Takes a file apart; false if it is not sound. key and blob point into it. */
bool mica_cache_parse(const unsigned char *file, size_t size, mica_cache_key *key,
                      const void **blob, size_t *bytes);
/* Writes an entry under its name; readers see all of it or nothing. */
bool mica_cache_store(int directory, const mica_cache_key *key, const void *blob, size_t bytes);
/* Removes the least recently used until at most `keep` bytes remain. spare: the entry that was just
 * written, which the clock's grain may make as old as others; or "". */
bool mica_cache_prune(int directory, int64_t keep, const char *spare);

#endif
