/* SPDX-License-Identifier: Apache-2.0
 * The disk cache under everything that can happen to a file: an entry is read back exactly, or not
 * at all, and a call never fails because of it. */
#define _GNU_SOURCE
#include "cuda/cache.h"
#include "cuda/cuda.h"
#include "base/memory.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

/* ---- keys, blobs, files ---- */

static mica_cache_key make_key(char *text, size_t size, int number)
{
    mica_blake2b b;
    snprintf(text, size, "target sm_90a\nsource of kernel %d\n", number);
    mica_cache_key key = {.text = text, .bytes = strlen(text)};
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, key.text, key.bytes);
    mica_blake2b_end(&b, key.digest);
    return key;
}

static void make_blob(unsigned char *blob, size_t bytes, int number)
{
    for (size_t i = 0; i < bytes; i++) blob[i] = (unsigned char)(i * 31 + (size_t)number * 7);
}

enum { BLOB = 1500 };
static unsigned char blob_0[BLOB];
static char key_text_0[128];
static mica_cache_key key_0;

static void cache_directory(char *path, size_t size)
{
    snprintf(path, size, "%s/cache/v1", help_directory);
}

static void entry_path(const mica_cache_key *key, char *path, size_t size)
{
    cache_directory(path, size);
    size_t at = strlen(path);
    path[at++] = '/';
    for (int i = 0; i < MICA_DIGEST_BYTES; i++)
        snprintf(path + at + 2 * i, size - at - 2 * (size_t)i, "%02x", (unsigned)key->digest[i]);
}

static bool reads_back(const mica_cache_key *key, const unsigned char *blob, size_t bytes)
{
    void *found;
    size_t found_bytes;
    if (!mica_cache_read(key, &found, &found_bytes)) return false;
    assert_int_equal(found_bytes, bytes);
    assert_memory_equal(found, blob, bytes);
    mica_release(found);
    return true;
}

static bool zero_reads_back(void)
{
    return reads_back(&key_0, blob_0, BLOB);
}

static size_t load(const char *path, unsigned char *data, size_t size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, size, f);
    fclose(f);
    return n;
}

/* In place, so that inode, mode and owner stay. */
static void overwrite(const char *path, const unsigned char *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

static int count_files(const char *prefix)
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

static int fresh(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/cache", help_directory);
    help_remove_tree(path);
    mica_cache_write(&key_0, blob_0, BLOB);
    return zero_reads_back() ? 0 : -1;
}

static void assert_rewritten(void)
{
    mica_cache_write(&key_0, blob_0, BLOB);
    assert_true(zero_reads_back());
}

/* ---- damage ---- */

static void an_entry_is_private_and_alone(void **state)
{
    (void)state;
    char path[512];
    struct stat st;
    cache_directory(path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    entry_path(&key_0, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(count_files(".tmp-"), 1);
    /* blobs may be empty */
    char text[128];
    mica_cache_key key = make_key(text, sizeof text, 5);
    mica_cache_write(&key, "", 0);
    assert_true(reads_back(&key, (const unsigned char *)"", 0));
}

static void truncated_at_any_length(void **state)
{
    (void)state;
    char path[512];
    unsigned char file[4096];
    entry_path(&key_0, path, sizeof path);
    size_t bytes = load(path, file, sizeof file);
    assert_true(bytes > BLOB && bytes < sizeof file);
    for (size_t length = 0; length < bytes; length++) {
        overwrite(path, file, length);
        if (zero_reads_back()) fail_msg("%zu of %zu bytes were taken", length, bytes);
    }
    /* and too long */
    unsigned char more = 0;
    overwrite(path, file, bytes);
    assert_true(zero_reads_back());
    FILE *f = fopen(path, "ab");
    fwrite(&more, 1, 1, f);
    fclose(f);
    assert_false(zero_reads_back());
    assert_rewritten();
}

static void any_bit_flipped(void **state)
{
    (void)state;
    char path[512];
    unsigned char file[4096];
    entry_path(&key_0, path, sizeof path);
    size_t bytes = load(path, file, sizeof file);
    for (size_t i = 0; i < bytes; i++) {
        file[i] ^= (unsigned char)(1u << i % 8);
        overwrite(path, file, bytes);
        if (zero_reads_back()) fail_msg("byte %zu of %zu may be wrong", i, bytes);
        file[i] ^= (unsigned char)(1u << i % 8);
    }
    overwrite(path, file, bytes);
    assert_true(zero_reads_back());
}

/* A sound entry of another key under this key's name: the name alone proves nothing. */
static void swapped_files(void **state)
{
    (void)state;
    char text[128], path[512], other_path[512];
    unsigned char blob[BLOB];
    mica_cache_key other = make_key(text, sizeof text, 1);
    make_blob(blob, BLOB, 1);
    mica_cache_write(&other, blob, BLOB);
    assert_true(reads_back(&other, blob, BLOB));
    entry_path(&key_0, path, sizeof path);
    entry_path(&other, other_path, sizeof other_path);
    assert_int_equal(rename(other_path, path), 0);
    assert_false(zero_reads_back());
    assert_false(reads_back(&other, blob, BLOB));
    assert_rewritten();
}

static void wrong_modes_and_owners(void **state)
{
    (void)state;
    static const mode_t bad[] = {0666, 0620, 0602}, good[] = {0600, 0400, 0644};
    char path[512];
    entry_path(&key_0, path, sizeof path);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(chmod(path, good[i]), 0);
        assert_true(zero_reads_back());
        assert_int_equal(chmod(path, bad[i]), 0);
        assert_false(zero_reads_back());
    }
    assert_rewritten();
    if (geteuid() != 0) {
        printf("SKIPPED: wrong owners, which only root can make\n");
        return;
    }
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    assert_false(zero_reads_back());
    assert_rewritten();
}

static void things_in_the_place_of_an_entry(void **state)
{
    (void)state;
    char path[512], aside[512];
    entry_path(&key_0, path, sizeof path);
    snprintf(aside, sizeof aside, "%s/aside", help_directory);

    /* a symbolic link to a perfect copy */
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    assert_false(zero_reads_back());
    assert_rewritten();
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode)); /* the link was replaced, not followed */

    /* a hard link, through which another might still write */
    unlink(aside);
    assert_int_equal(link(path, aside), 0);
    assert_false(zero_reads_back());
    assert_rewritten();
    unlink(aside);

    /* a FIFO: neither reading nor writing waits */
    alarm(20);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(zero_reads_back());
    assert_rewritten();
    alarm(0);

    /* a directory cannot be replaced; that is no error either */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(zero_reads_back());
    mica_cache_write(&key_0, blob_0, BLOB);
    assert_false(zero_reads_back());
    assert_int_equal(count_files(".tmp-"), 1);
    assert_int_equal(rmdir(path), 0);
    assert_rewritten();
}

/* Whoever may write a directory above it can put another cache in its place. */
static void a_directory_above_that_others_can_write(void **state)
{
    (void)state;
    static const mode_t bad[] = {0777, 0707}, good[] = {01777, 0770, 0755, 0700};
    char path[512];
    mica_disk_cache_info info;
    cache_directory(path, sizeof path);
    *strrchr(path, '/') = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chmod(path, bad[i]), 0);
        assert_false(zero_reads_back());
        assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
        assert_string_equal(info.path, "");
        assert_non_null(strstr(info.reason, path));
        assert_non_null(strstr(info.reason, "written by everybody"));
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chmod(path, good[i]), 0);
        assert_true(zero_reads_back());
    }
    if (geteuid() != 0) {
        printf("SKIPPED: another group, which only root can give it\n");
        return;
    }
    assert_int_equal(chown(path, (uid_t)-1, 12345) | chmod(path, 0770), 0);
    assert_false(zero_reads_back());
    assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
    assert_non_null(strstr(info.reason, "written by another group"));
    assert_int_equal(chmod(path, 0700), 0);
    assert_true(zero_reads_back());
}

static void a_directory_that_others_can_write(void **state)
{
    (void)state;
    static const mode_t bad[] = {0777, 0720, 0702, 01777};
    char path[512], aside[512];
    mica_disk_cache_info info;
    cache_directory(path, sizeof path);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chmod(path, bad[i]), 0);
        assert_false(zero_reads_back());
        mica_cache_write(&key_0, blob_0, BLOB);
        assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
        assert_string_equal(info.path, "");
        assert_non_null(strstr(info.reason, "written by others"));
        assert_int_equal(mica_cuda_cache_prune(0), MICA_IO);
    }
    assert_int_equal(chmod(path, 0700), 0);
    assert_true(zero_reads_back()); /* nothing was touched meanwhile */

    /* a link to a sound directory, which could be pointed elsewhere at any time */
    snprintf(aside, sizeof aside, "%s/aside", help_directory);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    assert_false(zero_reads_back());
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(aside, path), 0);
    assert_true(zero_reads_back());

    /* a file in the directory's place */
    assert_int_equal(rename(path, aside), 0);
    help_write(path, "x", 1);
    assert_false(zero_reads_back());
    mica_cache_write(&key_0, blob_0, BLOB);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(aside, path), 0);

    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_false(zero_reads_back());
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    assert_true(zero_reads_back());
}

static void a_directory_that_cannot_be_written(void **state)
{
    (void)state;
    enum { NOBODY = 65534 };
    char path[512], entry[512], parent[512], text[128];
    unsigned char blob[BLOB];
    bool root = geteuid() == 0; /* who writes everywhere: be somebody else for a while */
    mica_cache_key other = make_key(text, sizeof text, 1);
    make_blob(blob, BLOB, 1);
    cache_directory(path, sizeof path);
    assert_int_equal(chmod(path, 0500), 0);
    if (root) {
        entry_path(&key_0, entry, sizeof entry);
        snprintf(parent, sizeof parent, "%s/cache", help_directory);
        assert_int_equal(chmod(help_directory, 0711) | chmod(parent, 0711), 0);
        assert_int_equal(chown(path, NOBODY, NOBODY) | chown(entry, NOBODY, NOBODY), 0);
        assert_int_equal(seteuid(NOBODY), 0);
    }
    mica_cache_write(&other, blob, BLOB);
    bool kept = zero_reads_back(), written = reads_back(&other, blob, BLOB);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(path, 0700), 0);
    assert_true(kept); /* what is there is used */
    assert_false(written);
}

static void a_directory_that_vanishes(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/cache", help_directory);
    help_remove_tree(path);
    assert_false(zero_reads_back());
    mica_disk_cache_info info;
    assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
    assert_string_equal(info.reason, ""); /* it will be made */
    assert_int_equal(info.entries, 0);
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    assert_rewritten();
}

/* Every system call fails once, and then for good, while writing and while reading. */
static void failing_system_calls(void **state)
{
    (void)state;
    char path[512], cache[512];
    snprintf(cache, sizeof cache, "%s/cache", help_directory);
    entry_path(&key_0, path, sizeof path);
    for (int persistent = 0; persistent < 2; persistent++)
        for (int again = 0; again < 2; again++) { /* again: over an unsound entry */
            long n = 0, seen;
            do {
                n++;
                help_remove_tree(cache);
                if (again) {
                    mica_cache_write(&key_0, blob_0, BLOB);
                    overwrite(path, (const unsigned char *)"unsound", 7);
                }
                mica_fault_set(MICA_FAULT_FILE, n, persistent);
                mica_cache_write(&key_0, blob_0, BLOB);
                seen = mica_fault_count(MICA_FAULT_FILE);
                mica_fault_set(MICA_FAULT_FILE, 0, false);
                /* exact or absent, and no half of it */
                bool read = zero_reads_back();
                if (!again && !read && access(path, F_OK) == 0) fail_msg("n = %ld: half", n);
                if (count_files(".tmp-") > 1) fail_msg("n = %ld leaves a temporary file", n);
                assert_rewritten();
            } while (seen >= n);
            assert_true(n > 8);
        }
    for (int persistent = 0; persistent < 2; persistent++)
        for (long n = 1, seen = 1; seen >= n; n++) {
            mica_fault_set(MICA_FAULT_FILE, n, persistent);
            bool read = zero_reads_back();
            seen = mica_fault_count(MICA_FAULT_FILE);
            mica_fault_set(MICA_FAULT_FILE, 0, false);
            if (seen >= n) assert_false(read);
            assert_true(zero_reads_back());
        }
}

/* ---- the bound ---- */

static void set_age(const mica_cache_key *key, time_t seconds)
{
    char path[512];
    entry_path(key, path, sizeof path);
    struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static time_t age(const mica_cache_key *key)
{
    char path[512];
    struct stat st;
    entry_path(key, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    return time(NULL) - st.st_mtime;
}

/* Marked just now. Files are stamped by another clock than time()'s, which may be a second ahead. */
static void assert_new(const mica_cache_key *key)
{
    assert_in_range(age(key) + 1, 0, 61);
}

static void the_least_recently_used_go_first(void **state)
{
    (void)state;
    enum { N = 6 };
    char text[N][128], path[512];
    mica_cache_key keys[N];
    unsigned char blob[N][BLOB];
    mica_disk_cache_info info;
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    for (int i = 0; i < N; i++) {
        keys[i] = make_key(text[i], sizeof text[i], 100 + i);
        make_blob(blob[i], BLOB, i);
        mica_cache_write(&keys[i], blob[i], BLOB);
        set_age(&keys[i], 3600 * (i + 1));
    }
    cache_directory(path, sizeof path);
    strcat(path, "/notes.txt"); /* not ours: not counted, not removed */
    help_write(path, "x", 1);
    assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
    assert_int_equal(info.entries, N);
    assert_int_equal(info.limit_bytes, 20000);
    int64_t each = info.bytes / N;
    assert_true(each > BLOB && info.bytes % N == 0);
    mica_cuda_cache_limit(0);
    assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
    assert_string_equal(info.path, "");
    assert_non_null(strstr(info.reason, "0 bytes"));
    for (int i = 0; i < N; i++) assert_false(reads_back(&keys[i], blob[i], BLOB));
    mica_cuda_cache_limit(20000);
    assert_int_equal(mica_cuda_cache_prune(4 * each), MICA_OK);
    for (int i = 0; i < N; i++) assert_int_equal(reads_back(&keys[i], blob[i], BLOB), i < 4);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    assert_int_equal(mica_cuda_cache_prune(-1), MICA_INVALID);
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    assert_int_equal(count_files(""), 0);
}

/* MICA_CACHE_BYTES of this test is 20000. */
static void writing_keeps_the_bound(void **state)
{
    (void)state;
    char text[128];
    unsigned char blob[BLOB], large[21000];
    mica_disk_cache_info info;
    for (int i = 0; i < 40; i++) {
        mica_cache_key key = make_key(text, sizeof text, 200 + i);
        make_blob(blob, BLOB, i);
        mica_cache_write(&key, blob, BLOB);
        assert_true(reads_back(&key, blob, BLOB));
        assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
        assert_true(info.bytes <= 20000);
    }
    assert_true(info.entries >= 10);
    /* what alone exceeds the bound drives nothing out */
    make_blob(large, sizeof large, 1);
    mica_cache_key key = make_key(text, sizeof text, 300);
    mica_cache_write(&key, large, sizeof large);
    assert_false(reads_back(&key, large, sizeof large));
    int64_t before = info.entries;
    assert_int_equal(mica_cuda_cache_info(&info), MICA_OK);
    assert_int_equal(info.entries, before);
}

static void use_is_marked_daily_whatever_the_clock(void **state)
{
    (void)state;
    set_age(&key_0, 3600);
    assert_true(zero_reads_back());
    assert_in_range(age(&key_0), 3590, 3700);
    set_age(&key_0, 2 * 86400);
    assert_true(zero_reads_back());
    assert_new(&key_0);
    set_age(&key_0, -30 * 86400); /* the clock went back */
    assert_true(zero_reads_back());
    assert_new(&key_0);
}

static void old_temporary_files_are_removed(void **state)
{
    (void)state;
    char path[512];
    cache_directory(path, sizeof path);
    strcat(path, "/.tmp-0123456789abcdef");
    help_write(path, "half an entry", 13);
    assert_int_equal(mica_cuda_cache_prune(1 << 20), MICA_OK);
    assert_int_equal(access(path, F_OK), 0); /* its writer may be alive */
    struct timespec times[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(mica_cuda_cache_prune(1 << 20), MICA_OK);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* ---- processes ---- */

enum { KILLED_KEYS = 4 };

/* The child: writes the same few entries until it is killed, and says so before each. */
static void write_for_ever(int said)
{
    char text[128];
    unsigned char blob[BLOB];
    for (int i = 0; write(said, "x", 1) == 1; i = (i + 1) % KILLED_KEYS) {
        mica_cache_key key = make_key(text, sizeof text, i);
        make_blob(blob, BLOB, i);
        mica_cache_write(&key, blob, BLOB);
    }
}

static pid_t spawn_self(const char *task, int fd)
{
    pid_t pid;
    char name[] = "self", task_copy[16], number[16];
    snprintf(task_copy, sizeof task_copy, "%s", task);
    snprintf(number, sizeof number, "%d", fd);
    char *const argv[] = {name, task_copy, number, NULL};
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static void a_writer_killed_at_any_point(void **state)
{
    (void)state;
    char text[128];
    unsigned char blob[BLOB];
    int present = 0;
    for (unsigned round = 0; round < 200; round++) {
        char said;
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t pid = spawn_self("write", ends[1]);
        for (unsigned i = 0; i <= round % 5; i++) assert_int_equal(read(ends[0], &said, 1), 1);
        usleep(round * 7919 % 1000);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        close(ends[0]);
        close(ends[1]);
        for (int i = 0; i < KILLED_KEYS; i++) {
            mica_cache_key key = make_key(text, sizeof text, i);
            make_blob(blob, BLOB, i);
            char path[512];
            struct stat st;
            entry_path(&key, path, sizeof path);
            bool exists = lstat(path, &st) == 0, read = reads_back(&key, blob, BLOB);
            if (exists && !read) fail_msg("round %u leaves half an entry", round);
            present += read && i > 0; /* entry 0 was there before */
        }
        if (round % 20 == 19) fresh(NULL);
    }
    printf("          %d of %d entries were there\n", present, 200 * (KILLED_KEYS - 1));
    assert_true(present > 0);
}

/* A child of the cold start: gets one kernel on an offline device and prints nothing. */
static int get_one_kernel(void)
{
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_info info;
    const mica_kernel_spec spec = {"test/one.cu", "one", "", 0};
    if (mica_cuda_open("sm_90a", &cuda) || mica_kernel_get(cuda, &spec, &kernel)) {
        fprintf(stderr, "%s\n", mica_error());
        return 1;
    }
    mica_kernel_describe(kernel, &info);
    bool sound = info.registers == 24 && info.spill_bytes == 48 && info.shared_bytes == 1024;
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
    return sound ? 0 : 2;
}

static off_t compiles_of_all_processes(void)
{
    struct stat st;
    return stat(getenv("FAKE_NVRTC_COUNT"), &st) == 0 ? st.st_size : 0;
}

/* The path of the one kernel that is there. */
static void largest_entry(char *path, size_t size)
{
    char directory[400], file[512];
    off_t most = -1;
    struct stat info;
    cache_directory(directory, sizeof directory);
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%.100s", directory, e->d_name);
        assert_int_equal(stat(file, &info), 0);
        if (info.st_size <= most) continue;
        most = info.st_size;
        snprintf(path, size, "%s", file);
    }
    closedir(d);
    assert_true(most > 0);
}

static void many_processes_start_cold_at_once(void **state)
{
    (void)state;
    enum { N = 32 };
    pid_t pid[N];
    int code;
    setenv("MICA_CACHE_BYTES", "1000000", 1); /* of the children */
    assert_int_equal(mica_cuda_cache_prune(0), MICA_OK);
    for (int i = 0; i < N; i++) pid[i] = spawn_self("kernel", -1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(waitpid(pid[i], &code, 0), pid[i]);
        assert_int_equal(code, 0);
    }
    assert_in_range(compiles_of_all_processes(), 1, N);
    assert_int_equal(count_files(".tmp-"), 2); /* the kernel and the compiler's identity, no more */

    /* the next process compiles nothing */
    off_t before = compiles_of_all_processes();
    assert_int_equal(waitpid(spawn_self("kernel", -1), &code, 0) > 0 && code == 0, 1);
    assert_int_equal(compiles_of_all_processes(), before);

    /* and a damaged entry costs one compilation */
    unsigned char file[65536];
    char path[512];
    largest_entry(path, sizeof path);
    size_t bytes = load(path, file, sizeof file);
    file[bytes - 1] ^= 1;
    overwrite(path, file, bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(spawn_self("kernel", -1), &code, 0) > 0 && code == 0, 1);
        assert_int_equal(compiles_of_all_processes(), before + 1);
    }
}

static void prepare(void)
{
    key_0 = make_key(key_text_0, sizeof key_text_0, 0);
    make_blob(blob_0, BLOB, 0);
}

static int run_all(void)
{
#define FRESH(test) cmocka_unit_test_setup(test, fresh)
    const struct CMUnitTest tests[] = {
        FRESH(an_entry_is_private_and_alone),
        FRESH(truncated_at_any_length),
        FRESH(any_bit_flipped),
        FRESH(swapped_files),
        FRESH(wrong_modes_and_owners),
        FRESH(things_in_the_place_of_an_entry),
        FRESH(a_directory_above_that_others_can_write),
        FRESH(a_directory_that_others_can_write),
        FRESH(a_directory_that_cannot_be_written),
        FRESH(a_directory_that_vanishes),
        FRESH(failing_system_calls),
        FRESH(the_least_recently_used_go_first),
        FRESH(writing_keeps_the_bound),
        FRESH(use_is_marked_daily_whatever_the_clock),
        FRESH(old_temporary_files_are_removed),
        FRESH(a_writer_killed_at_any_point),
        FRESH(many_processes_start_cold_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    char path[512];
    prepare();
    if (argc > 1 && !strcmp(argv[1], "write")) write_for_ever(atoi(argv[2]));
    if (argc > 1) return get_one_kernel();
    help_begin(__FILE__);
    help_fakes();
    setenv("MICA_CACHE_BYTES", "20000", 1);
    snprintf(path, sizeof path, "%s/compiles", help_directory);
    setenv("FAKE_NVRTC_COUNT", path, 1);
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/one.cu", "extern \"C\" __global__ void one(long long a) {}\n");
    int failed = run_all();
    help_end();
    return failed;
}
