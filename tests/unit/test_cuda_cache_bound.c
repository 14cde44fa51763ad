/* SPDX-License-Identifier: Apache-2.0
 * The disk cache keeps to its bound: the least recently used go first. */
#define _GNU_SOURCE
#include "cuda_cache.h"

#include <time.h>

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

/* Marked just now. Files are stamped by another clock than time()'s, which may be a second ahead.
 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(the_least_recently_used_go_first),
        FRESH(writing_keeps_the_bound),
        FRESH(use_is_marked_daily_whatever_the_clock),
        FRESH(old_temporary_files_are_removed),
    };
    begin(__FILE__);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
