/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the CUDA backend share: a private directory with kernel sources and a private
 * kernel cache, set up before the library reads its environment. */
#ifndef MICA_TESTS_FAKE_HELP_H
#define MICA_TESTS_FAKE_HELP_H

#include "fake.h"

#include <dlfcn.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char help_directory[256];
static void *help_driver, *help_nvrtc, *help_cudnn;

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

/* Has the library load the fakes, which lie in fake/ beside or above the test. Call before anything
 * of the library. */
static inline void help_fakes(void)
{
    static const char *const ups[] = {"", "../", "../../"};
    char self[512], path[1024], *real = NULL;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    *strrchr(self, '/') = 0;
    for (int i = 0; i < 3 && !real; i++) {
        snprintf(path, sizeof path, "%s/%sfake/libcuda.so.1", self, ups[i]);
        real = realpath(path, NULL);
    }
    if (!real) {
        fprintf(stderr, "no fake/libcuda.so.1 beside or above %s\n", self);
        exit(99);
    }
    *strrchr(real, '/') = 0;
    snprintf(path, sizeof path, "%s/libcuda.so.1", real);
    setenv("MICA_CUDA_DRIVER", path, 1);
    help_driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", real);
    setenv("MICA_NVRTC", path, 1);
    help_nvrtc = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof path, "%s/libcudnn.so.9", real);
    setenv("MICA_CUDNN", path, 1);
    help_cudnn = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    free(real);
    if (!help_driver || !help_nvrtc || !help_cudnn) {
        fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
}

/* Sets a function pointer, through an object pointer as POSIX asks for. */
static inline void help_find(void *library, const char *name, void *function)
{
    *(void **)function = dlsym(library, name);
    if (*(void **)function) return;
    fprintf(stderr, "the fake has no %s\n", name);
    exit(99);
}

static inline fake_books help_books(void)
{
    fake_books books;
    fake_get_books_fn *get;
    help_find(help_driver, "fake_get_books", &get);
    get(&books);
    return books;
}

static inline fake_launch help_launch(void)
{
    fake_launch launch;
    fake_get_launch_fn *get;
    help_find(help_driver, "fake_get_launch", &get);
    get(&launch);
    return launch;
}

static inline void help_fail(const char *call, int code, long n, bool sticky)
{
    fake_fail_fn *fail;
    help_find(help_driver, "fake_fail", &fail);
    fail(call, code, n, sticky);
}

static inline long help_compiles(void)
{
    fake_compiles_fn *count;
    help_find(help_nvrtc, "fake_compiles", &count);
    return count();
}

static inline long help_programs(void)
{
    fake_programs_fn *count;
    help_find(help_nvrtc, "fake_programs", &count);
    return count();
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
    snprintf(target, sizeof target, "%.*s../../src/kernels",
             (int)(strrchr(source, '/') - source) + 1, source);
    snprintf(path, sizeof path, "%s/src/kernels", help_directory);
    if (symlink(target, path) != 0) {
        perror(path);
        exit(99);
    }
}

#endif
