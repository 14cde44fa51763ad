/* SPDX-License-Identifier: Apache-2.0
 * Inlining of includes: what NVRTC sees must be what the cache key is made of. */
#define _GNU_SOURCE
#include "cuda/compile/program.h"
#include "cuda/compile/files.h"
#include "cuda/compile/sources.h"
#include "base/env.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Types that prologues name ("typedef bf16 x_t;") must be known before them. */
static const char types_file[] = "kernels/types.cuh";

enum { MAX_FILES = 64, MAX_NAME = 160, MAX_SOURCE = 16 << 20 };

typedef struct program {
    char *data;
    size_t length, capacity;
    char seen[MAX_FILES][MAX_NAME];
    int seen_count;
} program;

static mica_status append(program *p, const char *text, size_t length)
{
    if (p->length + length + 1 > p->capacity) {
        size_t capacity = 2 * p->capacity + length + 4096;
        char *grown = mica_grow(p->data, capacity);
        if (!grown) return mica_fail_memory(capacity);
        p->data = grown;
        p->capacity = capacity;
    }
    memcpy(p->data + p->length, text, length);
    p->length += length;
    p->data[p->length] = 0;
    return MICA_OK;
}

static mica_status append_line_mark(program *p, int line, const char *name)
{
    char mark[MAX_NAME + 32];
    int length = snprintf(mark, sizeof mark, "#line %d \"%s\"\n", line, name);
    return append(p, mark, (size_t)length);
}

static mica_status read_file(const char *path, int fd, char **text)
{
    struct stat st;
    if (mica_stat_fd(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_SOURCE)
        return mica_fail(MICA_IO, "%s is not a file of at most %d bytes", path, MAX_SOURCE);
    *text = mica_alloc((size_t)st.st_size + 1);
    if (!*text) return mica_fail_memory((size_t)st.st_size + 1);
    if (mica_read_all(fd, *text, (size_t)st.st_size)) return MICA_OK;
    mica_release(*text);
    *text = NULL;
    return mica_fail(MICA_IO, "%s could not be read", path);
}

/* The text of a source; NULL if there is none of that name. *owned: to be released, because it came
 * from MICA_KERNEL_DIR. */
static mica_status find_source(const char *name, const char **text, char **owned)
{
    const char *directory = mica_env(MICA_ENV_KERNEL_DIR);
    *text = *owned = NULL;
    if (!directory) return mica_source_text(name, text);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = mica_open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return MICA_OK;
    if (fd < 0) return mica_fail(MICA_IO, "%s could not be opened: %s", path, strerror(errno));
    mica_status status = read_file(path, fd, owned);
    close(fd);
    *text = *owned;
    return status;
}

static bool is_seen(const program *p, const char *name)
{
    for (int i = 0; i < p->seen_count; i++)
        if (!strcmp(p->seen[i], name)) return true;
    return false;
}

/* Reads `#include "name"` into name; false for any other line. */
static bool parse_include(const char *line, size_t length, char name[MAX_NAME])
{
    char copy[256];
    if (length >= sizeof copy) return false;
    memcpy(copy, line, length);
    copy[length] = 0;
    return sscanf(copy, " # include \"%159[^\"]\"", name) == 1;
}

/* Every file is taken once, and NVRTC warns of the pragma in what is now the main file. */
static bool is_pragma_once(const char *line, size_t length)
{
    return length >= 12 && !strncmp(line, "#pragma once", 12);
}

static mica_status add_file(program *p, const char *name, const char *text);

/* Replaces one include, looked up beside the file, then from src/. What is unknown is left to the
 * compiler: it may be in a part that #ifdef leaves out. */
static mica_status add_include(program *p, const char *name, const char *from, bool *found)
{
    char beside[2 * MAX_NAME];
    const char *slash = strrchr(from, '/');
    snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash - from) + 1 : 0, from, name);
    const char *const candidates[] = {beside, name};
    for (int i = 0; i < 2; i++) {
        *found = is_seen(p, candidates[i]);
        if (*found) return MICA_OK;
        char *owned;
        const char *text;
        MICA_TRY(find_source(candidates[i], &text, &owned));
        if (!text) continue;
        *found = true;
        mica_status status = add_file(p, candidates[i], text);
        mica_release(owned);
        return status;
    }
    return MICA_OK;
}

static mica_status add_file(program *p, const char *name, const char *text)
{
    if (p->seen_count == MAX_FILES || strlen(name) >= MAX_NAME)
        return mica_fail(MICA_INTERNAL,
                         "%s: a kernel includes more than %d files, or a longer name", name,
                         MAX_FILES);
    snprintf(p->seen[p->seen_count++], MAX_NAME, "%s", name);
    MICA_TRY(append_line_mark(p, 1, name));
    for (int line = 1; *text; line++) {
        size_t length = strcspn(text, "\n");
        size_t whole = length + (text[length] == '\n');
        char include[MAX_NAME];
        bool replaced = false;
        if (parse_include(text, length, include)) {
            MICA_TRY(add_include(p, include, name, &replaced));
            if (replaced) MICA_TRY(append_line_mark(p, line + 1, name));
        }
        if (is_pragma_once(text, length))
            MICA_TRY(append(p, "\n", 1));
        else if (!replaced)
            MICA_TRY(append(p, text, whole));
        text += whole;
    }
    return append(p, "\n", 1);
}

/* A kernel need not use every constant it is given (warning 177). */
static mica_status append_prologue(program *p, const char *prologue)
{
    static const char before[] = "#pragma nv_diagnostic push\n#pragma nv_diag_suppress 177\n";
    static const char after[] = "\n#pragma nv_diagnostic pop\n";
    MICA_TRY(append(p, before, sizeof before - 1));
    MICA_TRY(append_line_mark(p, 1, "prologue"));
    MICA_TRY(append(p, prologue, strlen(prologue)));
    return append(p, after, sizeof after - 1);
}

static mica_status build(program *p, const char *file, const char *prologue)
{
    char *owned;
    const char *text;
    MICA_TRY(find_source(types_file, &text, &owned));
    mica_status status = text ? add_file(p, types_file, text) : MICA_OK;
    mica_release(owned);
    MICA_TRY(status);
    MICA_TRY(append_prologue(p, prologue ? prologue : ""));
    MICA_TRY(find_source(file, &text, &owned));
    if (!text) {
        const char *directory = mica_env(MICA_ENV_KERNEL_DIR);
        return mica_fail(MICA_INTERNAL, "kernel source %s is not in %s", file,
                         directory ? directory : "the library");
    }
    status = add_file(p, file, text);
    mica_release(owned);
    return status;
}

mica_status mica_program_text(const char *file, const char *prologue, char **text)
{
    program *p = mica_alloc(sizeof *p);
    *text = NULL;
    if (!p) return mica_fail_memory(sizeof *p);
    mica_status status = build(p, file, prologue);
    if (status == MICA_OK)
        *text = p->data;
    else
        mica_release(p->data);
    mica_release(p);
    return status;
}

/* ---- digests ---- */

enum { MAX_DIGESTS = 256 };

static pthread_mutex_t digest_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char file[MAX_NAME];
    unsigned char digest[MICA_DIGEST_BYTES];
} digests[MAX_DIGESTS];
static int digest_count;

static bool find_digest(const char *file, unsigned char *digest)
{
    bool found = false;
    pthread_mutex_lock(&digest_mutex);
    for (int i = 0; i < digest_count && !found; i++) {
        found = !strcmp(digests[i].file, file);
        if (found) memcpy(digest, digests[i].digest, MICA_DIGEST_BYTES);
    }
    pthread_mutex_unlock(&digest_mutex);
    return found;
}

/* A file that two threads bring at once is kept twice, and found once. */
static void keep_digest(const char *file, const unsigned char *digest)
{
    pthread_mutex_lock(&digest_mutex);
    if (digest_count < MAX_DIGESTS && strlen(file) < MAX_NAME) {
        snprintf(digests[digest_count].file, MAX_NAME, "%s", file);
        memcpy(digests[digest_count++].digest, digest, MICA_DIGEST_BYTES);
    }
    pthread_mutex_unlock(&digest_mutex);
}

mica_status mica_program_digest(const char *file, unsigned char digest[MICA_DIGEST_BYTES])
{
    bool fixed = !mica_env(MICA_ENV_KERNEL_DIR);
    char *text;
    mica_blake2b b;
    if (fixed && find_digest(file, digest)) return MICA_OK;
    MICA_TRY(mica_program_text(file, "", &text));
    mica_blake2b_start(&b, MICA_DIGEST_BYTES);
    mica_blake2b_add(&b, text, strlen(text));
    mica_blake2b_end(&b, digest);
    mica_release(text);
    if (fixed) keep_digest(file, digest);
    return MICA_OK;
}
