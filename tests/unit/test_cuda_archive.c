/* SPDX-License-Identifier: Apache-2.0
 * Archives of the kernel cache: they bring back every entry exactly, and whatever happens to one,
 * all of it is taken over or nothing. */
#define _GNU_SOURCE
#include "cuda/compile/cache.h"
#include "cuda/cuda.h"
#include "base/memory.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdint.h>

enum { ENTRIES = 3, MOST = 16384 };
static char texts[ENTRIES][64], archive[512], cache[512];
static unsigned char blobs[ENTRIES][700], good[MOST];
static mica_cache_key keys[ENTRIES];
static size_t good_bytes;

static size_t blob_bytes(int i)
{
    return i == 0 ? 0 : (size_t)(300 * i + 1);
}

static void make_entry(int i)
{
    mica_blake2b b;
    snprintf(texts[i], sizeof texts[i], "kernel %d\n", i);
    keys[i] = (mica_cache_key){.text = texts[i], .bytes = strlen(texts[i])};
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, keys[i].text, keys[i].bytes);
    mica_blake2b_end(&b, keys[i].digest);
    for (size_t k = 0; k < blob_bytes(i); k++) blobs[i][k] = (unsigned char)(k * 13 + (size_t)i);
}

static int entries_there(void)
{
    int n = 0;
    for (int i = 0; i < ENTRIES; i++) {
        void *blob;
        size_t bytes;
        if (!mica_cache_read(&keys[i], &blob, &bytes)) continue;
        assert_int_equal(bytes, blob_bytes(i));
        assert_memory_equal(blob, blobs[i], bytes);
        mica_release(blob);
        n++;
    }
    return n;
}

static int files_beside_the_archive(void)
{
    int n = 0;
    DIR *d = opendir(help_directory);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) n += !strncmp(e->d_name, "archive", 7);
    closedir(d);
    return n;
}

static mica_status unpack(void)
{
    int64_t entries = -1;
    mica_status status = mica_disk_cache_unpack(archive, &entries);
    assert_int_equal(entries, status == MICA_OK ? ENTRIES : -1);
    return status;
}

/* A full cache and its archive; then the cache is removed. */
static int fresh(void **state)
{
    int64_t entries = 0;
    (void)state;
    help_remove_tree(cache);
    remove(archive);
    for (int i = 0; i < ENTRIES; i++) mica_cache_write(&keys[i], blobs[i], blob_bytes(i));
    if (mica_disk_cache_pack(archive, &entries) != MICA_OK || entries != ENTRIES) return -1;
    FILE *f = fopen(archive, "rb");
    good_bytes = fread(good, 1, sizeof good, f);
    fclose(f);
    help_remove_tree(cache);
    return 0;
}

static void there_and_back(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(stat(archive, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(files_beside_the_archive(), 1);
    assert_int_equal(unpack(), MICA_OK);
    assert_int_equal(entries_there(), ENTRIES);
    assert_int_equal(unpack(), MICA_OK); /* over what is there */
    assert_int_equal(entries_there(), ENTRIES);
}

static void nothing_is_taken_from_a_damaged_one(void **state)
{
    (void)state;
    static unsigned char bad[MOST + 1];
    for (size_t length = 0; length < good_bytes; length++) {
        help_write(archive, good, length);
        if (unpack() != MICA_IO) fail_msg("%zu of %zu bytes were taken", length, good_bytes);
        assert_true(strstr(mica_error(), "damaged"));
    }
    memcpy(bad, good, good_bytes);
    help_write(archive, bad, good_bytes + 1);
    assert_int_equal(unpack(), MICA_IO);
    for (size_t i = 0; i < good_bytes; i++) {
        bad[i] ^= (unsigned char)(1 << i % 8);
        help_write(archive, bad, good_bytes);
        if (unpack() != MICA_IO) fail_msg("byte %zu was wrong and taken", i);
        bad[i] = good[i];
    }
    assert_int_equal(entries_there(), 0);
    assert_int_equal(access(cache, F_OK), -1);
}

static void things_that_are_no_archive(void **state)
{
    (void)state;
    int64_t n;
    assert_int_equal(mica_disk_cache_unpack(help_directory, &n), MICA_IO);
    assert_int_equal(mica_disk_cache_unpack("/nonexistent/archive", &n), MICA_IO);
    assert_int_equal(mica_disk_cache_unpack("/dev/zero", &n), MICA_IO);
    remove(archive);
    assert_int_equal(mkfifo(archive, 0600), 0);
    assert_int_equal(unpack(), MICA_IO); /* and does not wait */
    assert_int_equal(mica_disk_cache_unpack(NULL, &n), MICA_INVALID);
    assert_int_equal(mica_disk_cache_pack(archive, NULL), MICA_INVALID);
}

static void what_cannot_be_packed(void **state)
{
    (void)state;
    int64_t n = 7;
    char path[600];
    assert_int_equal(mica_disk_cache_pack(archive, &n), MICA_IO); /* there is no directory */
    assert_int_equal(unpack(), MICA_OK);
    assert_int_equal(mica_disk_cache_pack("/nonexistent/archive", &n), MICA_IO);
    assert_int_equal(mica_disk_cache_prune(0), MICA_OK);
    assert_int_equal(mica_disk_cache_pack(archive, &n), MICA_NOT_FOUND);
    assert_int_equal(n, 7);
    /* what is damaged in the cache stays behind */
    assert_int_equal(unpack(), MICA_OK);
    snprintf(path, sizeof path, "%s/v1/", cache);
    size_t at = strlen(path);
    for (int i = 0; i < MICA_DIGEST_BYTES; i++)
        snprintf(path + at + 2 * (size_t)i, 3, "%02x", (unsigned)keys[1].digest[i]);
    assert_int_equal(truncate(path, 60), 0);
    assert_int_equal(mica_disk_cache_pack(archive, &n), MICA_OK);
    assert_int_equal(n, ENTRIES - 1);
}

/* Three archives of one entry each, joined into one of more bytes than the cache may hold. */
static void more_than_the_cache_holds(void **state)
{
    (void)state;
    enum { HEAD = 48, ROW = 40, FILE_BYTES = 9000 };
    static unsigned char large[FILE_BYTES - 400], one[FILE_BYTES], all[3 * FILE_BYTES];
    int64_t n;
    size_t at = HEAD + 3 * ROW;
    for (int i = 0; i < ENTRIES; i++) {
        help_remove_tree(cache);
        mica_cache_write(&keys[i], large, sizeof large);
        assert_int_equal(mica_disk_cache_pack(archive, &n), MICA_OK);
        assert_int_equal(n, 1);
        FILE *f = fopen(archive, "rb");
        size_t bytes = fread(one, 1, sizeof one, f);
        fclose(f);
        memcpy(all + HEAD + i * ROW, one + HEAD, ROW);
        memcpy(all + at, one + HEAD + ROW, bytes - HEAD - ROW);
        at += bytes - HEAD - ROW;
    }
    help_remove_tree(cache);
    mica_blake2b b;
    memcpy(all, one, HEAD);
    all[8] = ENTRIES;
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, all + HEAD, ENTRIES * ROW);
    mica_blake2b_end(&b, all + 16);
    help_write(archive, all, at);
    assert_int_equal(mica_disk_cache_unpack(archive, &n), MICA_UNSUPPORTED);
    assert_true(strstr(mica_error(), "at most 20000"));
    assert_int_equal(access(cache, F_OK), -1);
}

/* Every system call and every allocation fails once, and then for good. */
static void failures(void **state)
{
    (void)state;
    static const mica_fault kinds[] = {MICA_FAULT_FILE, MICA_FAULT_ALLOC};
    for (int mode = 0; mode < 4; mode++)
        for (long n = 1, seen = 1; seen >= n; n++) {
            int64_t entries;
            fresh(NULL);
            mica_fault_set(kinds[mode / 2], n, mode % 2);
            mica_status status = unpack();
            seen = mica_fault_count(kinds[mode / 2]);
            mica_fault_set(kinds[mode / 2], 0, false);
            if (status == MICA_OK) assert_int_equal(entries_there(), ENTRIES);
            assert_int_equal(unpack(), MICA_OK);
            remove(archive);
            mica_fault_set(kinds[mode / 2], n, mode % 2);
            status = mica_disk_cache_pack(archive, &entries);
            long packing = mica_fault_count(kinds[mode / 2]);
            mica_fault_set(kinds[mode / 2], 0, false);
            if (packing > seen) seen = packing;
            assert_int_equal(files_beside_the_archive(), status == MICA_OK);
        }
}

int main(void)
{
#define FRESH(test) cmocka_unit_test_setup(test, fresh)
    const struct CMUnitTest tests[] = {
        FRESH(there_and_back),
        FRESH(nothing_is_taken_from_a_damaged_one),
        FRESH(things_that_are_no_archive),
        FRESH(what_cannot_be_packed),
        FRESH(more_than_the_cache_holds),
        FRESH(failures),
    };
    help_begin(__FILE__);
    setenv("MICA_CACHE_BYTES", "20000", 1);
    snprintf(archive, sizeof archive, "%.200s/archive", help_directory);
    snprintf(cache, sizeof cache, "%.200s/cache", help_directory);
    for (int i = 0; i < ENTRIES; i++) make_entry(i);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
