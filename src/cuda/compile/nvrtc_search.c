/* SPDX-License-Identifier: Apache-2.0
 * The search for libnvrtc, by patterns of folders. Python's packages are found from where its
 * program lies: none is run. */
#define _GNU_SOURCE
#include "cuda/compile/nvrtc_search.h"
#include "base/env.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const mica_nvrtc_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};

/* Below a CUDA toolkit, and below what holds a python's bin/; Debian's pip has local/lib. Several
 * patterns, separated by blanks, are of falling preference. */
#define TOOLKIT "/{lib64,lib,targets/*-linux/lib}"
static const char toolkit[] = TOOLKIT, toolkits[] = "/cuda" TOOLKIT " /cuda-[0-9]*" TOOLKIT;
static const char packages[] =
    "/{lib,lib64,local/lib}/python3*/{site,dist}-packages/nvidia/cu[0-9]*/lib "
    "/{lib,lib64,local/lib}/python3*/{site,dist}-packages/nvidia/cuda_nvrtc/lib";

/* Root's or ours, and not for everybody to write. */
static bool trusted(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           !(st.st_mode & S_IWOTH);
}

static void *open_in(const char *folder, mica_text *looked)
{
    char path[PATH_MAX];
    for (const char *const *name = mica_nvrtc_names; *name; name++) {
        int length = snprintf(path, sizeof path, "%s/%s", folder, *name);
        if (length >= (int)sizeof path || access(path, F_OK) != 0) continue;
        if (!trusted(folder) || !trusted(path)) {
            mica_text_add(looked, " (%s: another user may change it)", path);
            continue;
        }
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        mica_text_add(looked, " (%s)", dlerror());
    }
    return NULL;
}

static int newer_first(const void *a, const void *b)
{
    return strverscmp(*(char *const *)b, *(char *const *)a);
}

static const char *first_brace(const char *pattern)
{
    while (*pattern && *pattern != '{') pattern += *pattern == '\\' && pattern[1] ? 2 : 1;
    return *pattern ? pattern : NULL;
}

/* Adds what fits a pattern in which braces hold alternatives, which not every C library's glob()
 * knows. They do not nest. */
static void find_folders(const char *pattern, glob_t *found)
{
    char whole[PATH_MAX];
    const char *brace = first_brace(pattern), *end = brace ? strchr(brace, '}') : NULL;
    if (!end) {
        (void)glob(pattern, GLOB_NOSORT | (found->gl_pathc ? GLOB_APPEND : 0), NULL, found);
        return;
    }
    for (const char *at = brace + 1; at < end; at += strcspn(at, ",}") + 1) {
        snprintf(whole, sizeof whole, "%.*s%.*s%s", (int)(brace - pattern), pattern,
                 (int)strcspn(at, ",}"), at, end + 1);
        find_folders(whole, found);
    }
}

/* The folders of one pattern, the highest version first. */
static void *open_pattern(const char *pattern, mica_text *looked)
{
    glob_t found = {0};
    void *library = NULL;
    find_folders(pattern, &found);
    if (!found.gl_pathc) return NULL;
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, newer_first);
    for (size_t i = 0; i < found.gl_pathc && !library; i++)
        library = open_in(found.gl_pathv[i], looked);
    globfree(&found);
    return library;
}

/* root, in which nothing is a pattern, with each of the patterns below it. */
static void *open_below(const char *root, const char *patterns, mica_text *looked)
{
    char pattern[PATH_MAX], *at = pattern;
    char *const end = pattern + sizeof pattern - 200; /* the longest of them is shorter */
    void *library = NULL;
    if (!root || *root != '/') return NULL;
    mica_text_add(looked, "; %s%s", root, patterns);
    for (const char *c = root; *c && at < end; c++) {
        if (strchr("*?[]{},~\\", *c)) *at++ = '\\';
        *at++ = *c;
    }
    if (at >= end) return NULL;
    while (*patterns && !library) {
        int length = (int)strcspn(patterns, " ");
        snprintf(at, 200, "%.*s", length, patterns);
        library = open_pattern(pattern, looked);
        patterns += length + (patterns[length] == ' ');
    }
    return library;
}

/* Cuts "/bin/python3" off; false if that leaves nothing. */
static bool cut_program(char *path)
{
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (!slash) return false;
        *slash = 0;
    }
    return true;
}

/* What belongs to the first python3 on PATH: to a virtual environment's, and to what its links end
 * at. */
static void *open_python(mica_text *looked)
{
    const char *path = mica_env_place(MICA_ENV_PLACE_PATH);
    char program[PATH_MAX], real[PATH_MAX];
    for (size_t length; path && *path; path += length + (path[length] == ':')) {
        length = strcspn(path, ":");
        int n = snprintf(program, sizeof program, "%.*s/python3", (int)length, path);
        if (*path != '/' || n >= (int)sizeof program || access(program, X_OK) != 0) continue;
        bool linked = realpath(program, real) && strcmp(real, program) != 0;
        void *library = cut_program(program) ? open_below(program, packages, looked) : NULL;
        if (!library && linked && cut_program(real) && strcmp(real, program) != 0)
            library = open_below(real, packages, looked);
        return library;
    }
    return NULL;
}

static void *open_user(mica_text *looked)
{
    const char *home = mica_env_place(MICA_ENV_PLACE_HOME);
    char local[PATH_MAX];
    if (!home || snprintf(local, sizeof local, "%s/.local", home) >= (int)sizeof local) return NULL;
    return open_below(local, packages, looked);
}

void *mica_nvrtc_search(const char *local, mica_text *looked)
{
    const char *conda = mica_env_place(MICA_ENV_PLACE_CONDA_PREFIX);
    void *library = open_below(mica_env_place(MICA_ENV_PLACE_CUDA_HOME), toolkit, looked);
    if (!library) library = open_below(mica_env_place(MICA_ENV_PLACE_CUDA_PATH), toolkit, looked);
    if (!library)
        library = open_below(mica_env_place(MICA_ENV_PLACE_VIRTUAL_ENV), packages, looked);
    if (!library) library = open_below(conda, packages, looked);
    if (!library) library = open_below(conda, toolkit, looked);
    if (!library) library = open_python(looked);
    if (!library) library = open_user(looked);
    if (!library) library = open_below(local, toolkits, looked);
    return library;
}
