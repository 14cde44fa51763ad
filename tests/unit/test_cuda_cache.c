/* SPDX-License-Identifier: Apache-2.0
 * The disk cache under everything that can happen to a file: an entry is read back exactly, or not
 * at all, and a call never fails because of it. */
#define _GNU_SOURCE
#include "cuda_cache.h"

#include <errno.h>

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

int main(void)
{
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
    };
    begin(__FILE__);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
