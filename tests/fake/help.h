/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the CUDA backend share: a private directory with kernel sources and a private
 * kernel cache, set up before the library reads its environment. */
#ifndef MICA_TESTS_FAKE_HELP_H
#define MICA_TESTS_FAKE_HELP_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char help_directory[256];

static int help_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void help_remove_tree(const char *path)
{
    nftw(path, help_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void help_end(void)
{
    help_remove_tree(help_directory);
}

static inline void help_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        perror(path);
        exit(99);
    }
}

static inline void help_kernel(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/src/%s", help_directory, name);
    help_write(path, text, strlen(text));
}

/* Call first in main. source: __FILE__ of the test, in tests/unit. */
static inline void help_begin(const char *source)
{
    char path[1024], target[1024];
    snprintf(help_directory, sizeof help_directory, "/tmp/mica-test-XXXXXX");
    if (!mkdtemp(help_directory)) {
        perror("mkdtemp");
        exit(99);
    }
    snprintf(path, sizeof path, "%s/src", help_directory);
    mkdir(path, 0700);
    setenv("MICA_KERNEL_DIR", path, 1);
    snprintf(path, sizeof path, "%s/cache", help_directory);
    setenv("MICA_CACHE_DIR", path, 1);
    snprintf(target, sizeof target, "%.*s../../src/cuda", (int)(strrchr(source, '/') - source) + 1,
             source);
    snprintf(path, sizeof path, "%s/src/cuda", help_directory);
    if (symlink(target, path) != 0) {
        perror(path);
        exit(99);
    }
}

#endif
