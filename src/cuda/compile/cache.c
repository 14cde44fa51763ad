/* SPDX-License-Identifier: Apache-2.0
 * The disk cache. One file per entry, named by the digest of its key:
 *
 *     magic[8]  key bytes u64  blob bytes u64  digest[32]  key  blob
 *
 * the digest being over everything else in the file. Files appear complete under their final name
 * or not at all, so readers and writers of any number of processes need no lock; that they do not
 * all compile the same is claim.h's. */
#define _GNU_SOURCE
#include "cuda/compile/cache.h"
#include "cuda/cuda.h"
#include "cuda/compile/entries.h"
#include "cuda/compile/files.h"
#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/why.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The number is the schema; a new layout gets a new one, and a new directory. */
static const char magic[8] = "mica-k1\n";
enum { SCHEMA = 1, DAY = 86400 };
static const int64_t largest_entry = MICA_CACHE_MOST;

/* ---- where ---- */

static _Atomic int64_t own_limit = -1; /* none */

void mica_cuda_cache_limit(int64_t bytes)
{
    atomic_store(&own_limit, bytes);
}

int64_t mica_cache_limit(void)
{
    int64_t own = atomic_load(&own_limit);
    if (own >= 0) return own;
    return mica_env_number(MICA_ENV_CACHE_BYTES, (int64_t)1 << 30);
}

/* The directory's path, or the reason why there is none. */
static bool find_path(char path[512], char reason[160])
{
    const char *own = mica_env(MICA_ENV_CACHE_DIR);
    const char *xdg = mica_env_place(MICA_ENV_PLACE_XDG_CACHE_HOME);
    const char *home = mica_env_place(MICA_ENV_PLACE_HOME);
    int length = -1;
    path[0] = reason[0] = 0;
    if (mica_cache_limit() == 0) {
        snprintf(reason, 160, "the cache may hold 0 bytes (MICA_CACHE_BYTES)");
        return false;
    }
    if (own)
        length = snprintf(path, 512, "%s/v%d", own, SCHEMA);
    else if (xdg && *xdg == '/')
        length = snprintf(path, 512, "%s/mica/v%d", xdg, SCHEMA);
    else if (home && *home == '/')
        length = snprintf(path, 512, "%s/.cache/mica/v%d", home, SCHEMA);
    if (length > 0 && length < 512 && path[0] == '/') return true;
    path[0] = 0;
    snprintf(reason, 160, "%s",
             length < 0 ? "neither MICA_CACHE_DIR nor XDG_CACHE_HOME nor HOME can be used"
                        : "the cache directory must be an absolute path of at most 511 bytes");
    return false;
}

static void make_directories(const char *path)
{
    char part[512];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        mica_mkdir(part);
    }
    mica_mkdir(path);
}

/* Who may write a directory above the cache may put another one in its place, unless it is sticky
 * as /tmp. */
static bool is_safe(const char *folder, char reason[160])
{
    struct stat st;
    if (stat(folder, &st) < 0) return true; /* opening it will say so */
    bool all = (st.st_mode & S_IWOTH) != 0;
    bool group = (st.st_mode & S_IWGRP) != 0 && st.st_gid != getegid() && st.st_gid != 0;
    if ((st.st_mode & S_ISVTX) || !(all || group)) return true;
    snprintf(reason, 160, "its directory %.80s can be written by %s (mode %04o)", folder,
             all ? "everybody" : "another group", st.st_mode & 07777u);
    return false;
}

static bool is_safe_path(const char *path, char reason[160])
{
    char whole[PATH_MAX];
    if (!realpath(path, whole)) return true;
    for (char *slash = strrchr(whole, '/'); slash; slash = strrchr(whole, '/')) {
        if (slash == whole) return is_safe("/", reason);
        *slash = 0;
        if (!is_safe(whole, reason)) return false;
    }
    return true;
}

int mica_cache_open(bool create, char path[512], char reason[160])
{
    if (!find_path(path, reason)) return -1;
    if (create) make_directories(path);
    int fd = mica_open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    struct stat st;
    if (fd < 0 || mica_stat_fd(fd, &st) < 0)
        snprintf(reason, 160, "the cache directory cannot be opened: %s", strerror(errno));
    else if (st.st_uid != geteuid())
        snprintf(reason, 160, "the cache directory belongs to user %ld", (long)st.st_uid);
    else if (st.st_mode & 022)
        snprintf(reason, 160, "the cache directory can be written by others (mode %03o)",
                 st.st_mode & 0777u);
    else if (is_safe_path(path, reason))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void note_once(const char *path, const char *reason)
{
    static atomic_bool noted;
    if (!atomic_exchange(&noted, true))
        mica_log(MICA_LOG_WARN, "kernels are not stored on disk: %s %s", path, reason);
}

/* ---- entries ---- */

void mica_cache_name(const mica_cache_key *key, char name[MICA_CACHE_NAME])
{
    for (int i = 0; i < MICA_DIGEST_BYTES; i++)
        snprintf(name + 2 * i, 3, "%02x", (unsigned)key->digest[i]);
}

static void put_u64(unsigned char *at, uint64_t value)
{
    for (int i = 0; i < 8; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static void entry_digest(const unsigned char *header, const void *key, size_t key_bytes,
                         const void *blob, size_t blob_bytes, unsigned char *digest)
{
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, header, MICA_CACHE_HEADER - MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, key, key_bytes);
    mica_blake2b_add(&b, blob, blob_bytes);
    mica_blake2b_end(&b, digest);
}

static void make_header(const mica_cache_key *key, const void *blob, size_t bytes,
                        unsigned char header[MICA_CACHE_HEADER])
{
    memcpy(header, magic, sizeof magic);
    put_u64(header + 8, key->bytes);
    put_u64(header + 16, bytes);
    entry_digest(header, key->text, key->bytes, blob, bytes, header + 24);
}

/* Compares the whole file with what a sound entry of that key and length has to be. */
static bool is_sound(const unsigned char *file, size_t size, const mica_cache_key *key)
{
    unsigned char expected[MICA_CACHE_HEADER];
    if (size < MICA_CACHE_HEADER + key->bytes) return false;
    if (memcmp(file + MICA_CACHE_HEADER, key->text, key->bytes) != 0) return false;
    size_t bytes = size - MICA_CACHE_HEADER - key->bytes;
    make_header(key, file + MICA_CACHE_HEADER + key->bytes, bytes, expected);
    return memcmp(file, expected, MICA_CACHE_HEADER) == 0;
}

bool mica_cache_parse(const unsigned char *file, size_t size, mica_cache_key *key,
                      const void **blob, size_t *bytes)
{
    uint64_t key_bytes = 0;
    if (size < MICA_CACHE_HEADER) return false;
    for (int i = 0; i < 8; i++) key_bytes |= (uint64_t)file[8 + i] << (8 * i);
    if (key_bytes > size - MICA_CACHE_HEADER) return false;
    key->text = (const char *)file + MICA_CACHE_HEADER;
    key->bytes = (size_t)key_bytes;
    mica_blake2b b;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, key->text, key->bytes);
    mica_blake2b_end(&b, key->digest);
    *blob = file + MICA_CACHE_HEADER + key->bytes;
    *bytes = size - MICA_CACHE_HEADER - key->bytes;
    return is_sound(file, size, key);
}

/* The clock may have gone back: a time in the future is renewed as well. */
static void touch_daily(int fd, const struct stat *st)
{
    time_t now = time(NULL);
    if (st->st_mtime > now || now - st->st_mtime > DAY) futimens(fd, NULL);
}

unsigned char *mica_cache_read_file(int directory, const char *name, size_t *size)
{
    unsigned char *file = NULL;
    struct stat st;
    /* O_NONBLOCK: a FIFO in the entry's place must not stop us. */
    int fd = mica_open_at(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return NULL;
    if (mica_stat_fd(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        st.st_nlink == 1 && !(st.st_mode & 022) && st.st_size >= MICA_CACHE_HEADER &&
        st.st_size <= largest_entry) {
        *size = (size_t)st.st_size;
        file = mica_alloc(*size);
        if (file && !mica_read_all(fd, file, *size)) {
            mica_release(file);
            file = NULL;
        }
        if (file) touch_daily(fd, &st);
    }
    close(fd);
    return file;
}

static bool read_entry(const mica_cache_key *key, bool again, void **blob, size_t *bytes)
{
    char path[512], reason[160], name[MICA_CACHE_NAME];
    int directory = mica_cache_open(false, path, reason);
    if (directory < 0) return false;
    mica_cache_name(key, name);
    size_t size;
    unsigned char *file = mica_cache_read_file(directory, name, &size);
    close(directory);
    if (!file) return false;
    bool sound = is_sound(file, size, key);
    if (sound) {
        *bytes = size - MICA_CACHE_HEADER - key->bytes;
        memmove(file, file + MICA_CACHE_HEADER + key->bytes, *bytes);
        *blob = file;
        return true;
    }
    if (!again)
        mica_log(MICA_LOG_WARN, "cache entry %s is damaged; the kernel is compiled again", name);
    mica_release(file);
    return false;
}

bool mica_cache_read(const mica_cache_key *key, void **blob, size_t *bytes)
{
    return read_entry(key, false, blob, bytes);
}

bool mica_cache_read_again(const mica_cache_key *key, void **blob, size_t *bytes)
{
    return read_entry(key, true, blob, bytes);
}

static bool write_entry(int fd, const mica_cache_key *key, const void *blob, size_t bytes)
{
    unsigned char header[MICA_CACHE_HEADER];
    make_header(key, blob, bytes, header);
    return mica_write_all(fd, header, sizeof header) && mica_write_all(fd, key->text, key->bytes) &&
           mica_write_all(fd, blob, bytes) && mica_sync_fd(fd) == 0;
}

/* Names that nobody can foresee, in a directory where nobody else can write anyway. */
static bool temporary_name(char name[32])
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    snprintf(name, 32, ".tmp-%016" PRIx64, random);
    return true;
}

/* Gives a complete nameless file its name. If the name is taken, by an equal entry of another
 * process or by something that was found unsound, it is replaced, atomically for readers. */
static bool publish(int directory, int fd, const char *temporary, const char *name)
{
    if (mica_link_fd(fd, directory, name) == 0) return true;
    if (errno != EEXIST || mica_link_fd(fd, directory, temporary) < 0) return false;
    if (mica_rename_at(directory, temporary, name) == 0) return true;
    unlinkat(directory, temporary, 0);
    return false;
}

/* Through a file without a name, which vanishes by itself if this process is killed; or, where the
 * file system has no such thing, through a temporary name that pruning removes. */
static bool store(int directory, const char *name, const mica_cache_key *key, const void *blob,
                  size_t bytes, bool nameless)
{
    char temporary[32];
    if (!temporary_name(temporary)) return false;
    int flags = O_WRONLY | O_CLOEXEC | (nameless ? O_TMPFILE : O_CREAT | O_EXCL | O_NOFOLLOW);
    int fd = mica_open_at(directory, nameless ? "." : temporary, flags, 0600);
    if (fd < 0) return false;
    bool done = write_entry(fd, key, blob, bytes);
    if (done && nameless) done = publish(directory, fd, temporary, name);
    if (done && !nameless) done = mica_rename_at(directory, temporary, name) == 0;
    if (!done && !nameless) unlinkat(directory, temporary, 0);
    close(fd);
    if (done) mica_sync_fd(directory); /* the entry is whole either way; this makes it last */
    return done;
}

bool mica_cache_store(int directory, const mica_cache_key *key, const void *blob, size_t bytes)
{
    char name[MICA_CACHE_NAME];
    mica_cache_name(key, name);
    return store(directory, name, key, blob, bytes, true) ||
           store(directory, name, key, blob, bytes, false);
}

/* ---- the bound ---- */

static int older_first(const void *a, const void *b)
{
    const mica_cache_file *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool list_one(int directory, const char *name, mica_cache_files *list)
{
    struct stat st;
    size_t length = strlen(name);
    bool temporary = !strncmp(name, ".tmp-", 5);
    bool ours = length == 2 * MICA_DIGEST_BYTES && strspn(name, "0123456789abcdef") == length;
    if (!temporary && !ours) return true;
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return true;
    if (temporary) {
        if (time(NULL) - st.st_mtime > 3600) unlinkat(directory, name, 0);
        return true;
    }
    if (list->count == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        mica_cache_file *grown = mica_grow(list->entries, capacity * sizeof *grown);
        if (!grown) return false;
        list->entries = grown;
        list->capacity = capacity;
    }
    mica_cache_file *e = &list->entries[list->count++];
    *e = (mica_cache_file){.bytes = st.st_size, .used = st.st_mtim};
    memcpy(e->name, name, length + 1);
    list->bytes += st.st_size;
    return true;
}

bool mica_cache_list(int directory, mica_cache_files *list)
{
    *list = (mica_cache_files){0};
    int fd = mica_open_at(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return false;
    }
    bool sound = true;
    for (struct dirent *e = readdir(d); e && sound; e = readdir(d))
        sound = list_one(directory, e->d_name, list);
    closedir(d);
    if (list->count) qsort(list->entries, list->count, sizeof *list->entries, older_first);
    return sound;
}

/* Removing a file that another process has open is harmless. */
bool mica_cache_prune(int directory, int64_t keep, const char *spare)
{
    mica_cache_files list;
    bool done = mica_cache_list(directory, &list);
    for (size_t i = 0; done && i < list.count && list.bytes > keep; i++) {
        if (!strcmp(list.entries[i].name, spare)) continue;
        if (mica_unlink_at(directory, list.entries[i].name) != 0 && errno != ENOENT)
            done = false;
        else
            list.bytes -= list.entries[i].bytes;
    }
    mica_release(list.entries);
    return done;
}

void mica_cache_write(const mica_cache_key *key, const void *blob, size_t bytes)
{
    char path[512], reason[160], name[MICA_CACHE_NAME];
    int64_t size = (int64_t)(MICA_CACHE_HEADER + key->bytes + bytes), limit = mica_cache_limit();
    if (size > largest_entry || (limit > 0 && size > limit)) return;
    int directory = mica_cache_open(true, path, reason);
    if (directory < 0) {
        if (limit > 0) note_once(path, reason);
        return;
    }
    mica_cache_name(key, name);
    if (mica_cache_store(directory, key, blob, bytes))
        mica_cache_prune(directory, limit, name);
    else
        note_once(path, strerror(errno));
    close(directory);
}

mica_status mica_cuda_cache_info(mica_disk_cache_info *info)
{
    *info = (mica_disk_cache_info){.limit_bytes = mica_cache_limit()};
    int directory = mica_cache_open(false, info->path, info->reason);
    if (directory < 0) {
        /* Not there yet is no reason: the first kernel makes it. */
        struct stat st;
        if (info->path[0] && stat(info->path, &st) != 0 && errno == ENOENT)
            info->reason[0] = 0;
        else
            info->path[0] = 0;
        return MICA_OK;
    }
    mica_cache_files list;
    bool done = mica_cache_list(directory, &list);
    info->entries = (int64_t)list.count;
    info->bytes = list.bytes;
    mica_release(list.entries);
    close(directory);
    return done ? MICA_OK : mica_fail(MICA_IO, "%s could not be read", info->path);
}

mica_status mica_cuda_cache_prune(int64_t keep_bytes)
{
    char path[512], reason[160];
    if (keep_bytes < 0)
        return mica_fail(MICA_INVALID, "keep_bytes is %lld: it must not be negative",
                         (long long)keep_bytes);
    int directory = mica_cache_open(false, path, reason);
    if (directory < 0) {
        struct stat st;
        if (!path[0] || (stat(path, &st) != 0 && errno == ENOENT)) return MICA_OK;
        return mica_fail(MICA_IO, "%s: %s", path, reason);
    }
    bool done = mica_cache_prune(directory, keep_bytes, "");
    int error = errno;
    close(directory);
    return done ? MICA_OK : mica_fail(MICA_IO, "%s: %s", path, strerror(error));
}
