/* SPDX-License-Identifier: Apache-2.0
 * What tests of the disk cache share: keys, entries and files, and how they begin. */
#ifndef MICA_TESTS_CUDA_CACHE_H
#define MICA_TESTS_CUDA_CACHE_H

#include "cuda/compile/cache.h"
#include "cuda/cuda.h"
#include "base/memory.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>

/* ---- keys, blobs, files ---- */

static inline mica_cache_key make_key(char *text, size_t size, int number)
{
    mica_blake2b b;
    snprintf(text, size, "target sm_90a\nsource of kernel %d\n", number);
    mica_cache_key key = {.text = text, .bytes = strlen(text)};
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, key.text, key.bytes);
    mica_blake2b_end(&b, key.digest);
    return key;
}

static inline void make_blob(unsigned char *blob, size_t bytes, int number)
{
    for (size_t i = 0; i < bytes; i++) blob[i] = (unsigned char)(i * 31 + (size_t)number * 7);
}

enum { BLOB = 1500 };
static unsigned char blob_0[BLOB];
static char key_text_0[128];
static mica_cache_key key_0;

static inline void cache_directory(char *path, size_t size)
{
    snprintf(path, size, "%s/cache/v1", help_directory);
}

static inline void entry_path(const mica_cache_key *key, char *path, size_t size)
{
    cache_directory(path, size);
    size_t at = strlen(path);
    path[at++] = '/';
    for (int i = 0; i < MICA_DIGEST_BYTES; i++)
        snprintf(path + at + 2 * i, size - at - 2 * (size_t)i, "%02x", (unsigned)key->digest[i]);
}

static inline bool reads_back(const mica_cache_key *key, const unsigned char *blob, size_t bytes)
{
    void *found;
    size_t found_bytes;
    if (!mica_cache_read(key, &found, &found_bytes)) return false;
    assert_int_equal(found_bytes, bytes);
    assert_memory_equal(found, blob, bytes);
    mica_release(found);
    return true;
}

static inline bool zero_reads_back(void)
{
    return reads_back(&key_0, blob_0, BLOB);
}

static inline size_t load(const char *path, unsigned char *data, size_t size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, size, f);
    fclose(f);
    return n;
}

/* In place, so that inode, mode and owner stay. */
static inline void overwrite(const char *path, const unsigned char *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

static inline int count_files(const char *prefix)
{
    char path[512];
    int n = 0;
    cache_directory(path, sizeof path);
    DIR *d = opendir(path);
    if (!d) return -1;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.' || (prefix[0] && !strncmp(e->d_name, prefix, strlen(prefix)));
    closedir(d);
    return n;
}

static inline int fresh(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/cache", help_directory);
    help_remove_tree(path);
    mica_cache_write(&key_0, blob_0, BLOB);
    return zero_reads_back() ? 0 : -1;
}

static inline void assert_rewritten(void)
{
    mica_cache_write(&key_0, blob_0, BLOB);
    assert_true(zero_reads_back());
}

static inline void prepare(void)
{
    key_0 = make_key(key_text_0, sizeof key_text_0, 0);
    make_blob(blob_0, BLOB, 0);
}

#define FRESH(test) cmocka_unit_test_setup(test, fresh)

/* Everything below a directory of this program's, on the fakes. */
static inline void begin(const char *file)
{
    prepare();
    help_begin(file);
    help_fakes();
    setenv("MICA_CACHE_BYTES", "20000", 1);
}

#endif
