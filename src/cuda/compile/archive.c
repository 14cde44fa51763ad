/* SPDX-License-Identifier: Apache-2.0
 * The kernel cache in one file, to be shipped with a program. All numbers are little-endian:
 *
 *     magic[8]  entries u64  digest[32] of the manifest
 *     manifest: for each entry its bytes u64 and the digest[32] of its file
 *     the files of the entries, one behind the other, and nothing else
 *
 * Digests show damage, not malice: an archive is code, and only worth the trust its source has. */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "cuda/compile/entries.h"
#include "cuda/compile/files.h"
#include "base/memory.h"
#include "base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "mica-p1\n";
enum { HEAD = 8 + 8 + MICA_DIGEST_BYTES, ROW = 8 + MICA_DIGEST_BYTES };

typedef struct archive {
    const char *path;
    int fd, directory; /* of the archive and of the cache; -1: not open */
    uint64_t count;
    unsigned char *manifest;
    int64_t bytes; /* of all entries */
} archive;

static void put_u64(unsigned char *at, uint64_t value)
{
    for (int i = 0; i < 8; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get_u64(const unsigned char *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void digest_of(const void *data, size_t bytes, unsigned char *digest)
{
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, data, bytes);
    mica_blake2b_end(&b, digest);
}

static void end(archive *a)
{
    if (a->fd >= 0) close(a->fd);
    if (a->directory >= 0) close(a->directory);
    mica_release(a->manifest);
}

static mica_status open_cache(archive *a, bool create)
{
    char path[512], reason[160];
    a->directory = mica_cache_open(create, path, reason);
    if (a->directory >= 0) return MICA_OK;
    return mica_fail(MICA_IO, "no kernel cache: %s%s%s", path, *path ? ": " : "", reason);
}

/* ---- packing ---- */

/* A sound entry; NULL if it is damaged or was removed meanwhile. */
static unsigned char *sound_entry(const archive *a, const char *name, size_t *size)
{
    mica_cache_key key;
    const void *blob;
    size_t bytes;
    char own[MICA_CACHE_NAME];
    unsigned char *file = mica_cache_read_file(a->directory, name, size);
    if (!file) return NULL;
    if (mica_cache_parse(file, *size, &key, &blob, &bytes)) {
        mica_cache_name(&key, own);
        if (!strcmp(own, name)) return file;
    }
    mica_release(file);
    return NULL;
}

/* Fills the manifest; entries that are not sound leave the list. */
static mica_status list_sound(archive *a, mica_cache_files *files)
{
    a->manifest = mica_alloc(files->count * ROW + 1);
    if (!a->manifest) return mica_fail_memory(files->count * ROW + 1);
    for (size_t i = 0; i < files->count; i++) {
        size_t size;
        unsigned char *file = sound_entry(a, files->entries[i].name, &size);
        if (!file) continue;
        unsigned char *row = a->manifest + a->count * ROW;
        put_u64(row, size);
        digest_of(file, size, row + 8);
        mica_release(file);
        files->entries[a->count++] = files->entries[i];
    }
    files->count = a->count;
    return MICA_OK;
}

static mica_status write_entry(const archive *a, const char *name, const unsigned char *row)
{
    unsigned char digest[MICA_DIGEST_BYTES];
    size_t size;
    unsigned char *file = sound_entry(a, name, &size);
    bool same = file && size == get_u64(row);
    if (same) digest_of(file, size, digest);
    same = same && !memcmp(digest, row + 8, sizeof digest);
    bool done = same && mica_write_all(a->fd, file, size);
    int error = errno;
    mica_release(file);
    if (done) return MICA_OK;
    if (!same) return mica_fail(MICA_IO, "the cache changed while it was packed; try again");
    return mica_fail(MICA_IO, "%s: %s", a->path, strerror(error));
}

static mica_status write_all(const archive *a, const mica_cache_files *files)
{
    unsigned char head[HEAD];
    memcpy(head, magic, sizeof magic);
    put_u64(head + 8, a->count);
    digest_of(a->manifest, a->count * ROW, head + 16);
    if (!mica_write_all(a->fd, head, sizeof head) ||
        !mica_write_all(a->fd, a->manifest, a->count * ROW))
        return mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
    for (size_t i = 0; i < files->count; i++)
        MICA_TRY(write_entry(a, files->entries[i].name, a->manifest + i * ROW));
    if (mica_sync_fd(a->fd) == 0) return MICA_OK;
    return mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
}

/* Through another name in the same folder, so that a half-written archive never has its own. */
static mica_status write_archive(archive *a, const mica_cache_files *files)
{
    char temporary[4096];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) random = 0;
    int length = snprintf(temporary, sizeof temporary, "%s.tmp-%016" PRIx64, a->path, random);
    if (length >= (int)sizeof temporary)
        return mica_fail(MICA_INVALID, "the archive's name has %zu characters", strlen(a->path));
    a->fd = mica_open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0600);
    if (a->fd < 0) return mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
    mica_status status = write_all(a, files);
    if (status == MICA_OK && mica_rename_at(AT_FDCWD, temporary, a->path) != 0)
        status = mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
    if (status != MICA_OK) unlink(temporary);
    return status;
}

mica_status mica_cuda_cache_pack(const char *path, int64_t *entries)
{
    archive a = {.path = path, .fd = -1, .directory = -1};
    mica_cache_files files = {0};
    mica_status status = open_cache(&a, false);
    if (status == MICA_OK && !mica_cache_list(a.directory, &files))
        status = mica_fail(MICA_IO, "the kernel cache could not be listed");
    if (status == MICA_OK) status = list_sound(&a, &files);
    if (status == MICA_OK && a.count == 0)
        status = mica_fail(MICA_NOT_FOUND, "the kernel cache is empty: there is nothing to pack");
    if (status == MICA_OK) status = write_archive(&a, &files);
    if (status == MICA_OK) *entries = (int64_t)a.count;
    mica_release(files.entries);
    end(&a);
    return status;
}

/* ---- unpacking ---- */

static mica_status damaged(const archive *a, const char *what)
{
    return mica_fail(MICA_IO, "%s is damaged or no archive of kernels: %s", a->path, what);
}

static mica_status read_manifest(archive *a)
{
    unsigned char head[HEAD], digest[MICA_DIGEST_BYTES];
    struct stat st;
    a->fd = mica_open_at(AT_FDCWD, a->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (a->fd < 0 || mica_stat_fd(a->fd, &st) != 0)
        return mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return mica_fail(MICA_IO, "%s is not a file", a->path);
    if (st.st_size < HEAD || !mica_read_all(a->fd, head, sizeof head))
        return damaged(a, "it is too short");
    if (memcmp(head, magic, sizeof magic) != 0) return damaged(a, "it begins otherwise");
    a->count = get_u64(head + 8);
    if (a->count > (uint64_t)(st.st_size - HEAD) / ROW)
        return damaged(a, "it is shorter than its list of entries");
    a->manifest = mica_alloc(a->count * ROW + 1);
    if (!a->manifest) return mica_fail_memory(a->count * ROW + 1);
    if (!mica_read_all(a->fd, a->manifest, a->count * ROW))
        return mica_fail(MICA_IO, "%s could not be read", a->path);
    digest_of(a->manifest, a->count * ROW, digest);
    if (memcmp(digest, head + 16, sizeof digest) != 0)
        return damaged(a, "its list of entries has another digest");
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t bytes = get_u64(a->manifest + i * ROW);
        if (bytes < MICA_CACHE_HEADER || bytes > MICA_CACHE_MOST)
            return damaged(a, "an entry has an impossible length");
        a->bytes += (int64_t)bytes;
    }
    if (a->bytes != st.st_size - HEAD - (int64_t)a->count * ROW)
        return damaged(a, "its length is not that of its entries");
    return MICA_OK;
}

static mica_status take_entry(const archive *a, uint64_t i, bool keep)
{
    unsigned char digest[MICA_DIGEST_BYTES];
    const unsigned char *row = a->manifest + i * ROW;
    size_t size = (size_t)get_u64(row), bytes;
    mica_cache_key key;
    const void *blob;
    unsigned char *file = mica_alloc(size);
    if (!file) return mica_fail_memory(size);
    mica_status status = MICA_OK;
    bool read = mica_read_all(a->fd, file, size);
    if (read) digest_of(file, size, digest);
    if (!read)
        status = mica_fail(MICA_IO, "%s could not be read", a->path);
    else if (memcmp(digest, row + 8, sizeof digest) != 0)
        status = damaged(a, "an entry has another digest");
    else if (!mica_cache_parse(file, size, &key, &blob, &bytes))
        status = damaged(a, "an entry is not sound");
    else if (keep && !mica_cache_store(a->directory, &key, blob, bytes))
        status = mica_fail(MICA_IO, "an entry could not be stored: %s", strerror(errno));
    mica_release(file);
    return status;
}

/* Twice over the entries: nothing is stored unless all of them are sound. */
static mica_status take_all(archive *a)
{
    MICA_TRY(read_manifest(a));
    int64_t limit = mica_cache_limit();
    if (a->bytes > limit)
        return mica_fail(MICA_UNSUPPORTED,
                         "%s holds %lld bytes, the kernel cache at most %lld (MICA_CACHE_BYTES)",
                         a->path, (long long)a->bytes, (long long)limit);
    for (uint64_t i = 0; i < a->count; i++) MICA_TRY(take_entry(a, i, false));
    MICA_TRY(open_cache(a, true));
    if (lseek(a->fd, HEAD + (off_t)a->count * ROW, SEEK_SET) < 0)
        return mica_fail(MICA_IO, "%s: %s", a->path, strerror(errno));
    for (uint64_t i = 0; i < a->count; i++) MICA_TRY(take_entry(a, i, true));
    mica_cache_prune(a->directory, limit, "");
    return MICA_OK;
}

mica_status mica_cuda_cache_unpack(const char *path, int64_t *entries)
{
    archive a = {.path = path, .fd = -1, .directory = -1};
    mica_status status = take_all(&a);
    if (status == MICA_OK) *entries = (int64_t)a.count;
    end(&a);
    return status;
}
