/* SPDX-License-Identifier: Apache-2.0
 * The environment, read once per process. */
#define _GNU_SOURCE
#include "base/env.h"
#include "mica/plan.h"
#include "base/why.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name, *doc;
} variables[] = {
#define MICA_X(name, doc) {"MICA_" #name, doc},
    MICA_ENVIRONMENT(MICA_X)
#undef MICA_X
};

static const char *const places[] = {
#define MICA_X(name, doc) #name,
    MICA_ENVIRONMENT_PLACES(MICA_X)
#undef MICA_X
};
/* What values make sense; no row: any does, or whoever uses it says so (MICA_DEVICE). */
typedef enum rule_kind {
    ANY,
    WORD,
    NUMBER,
    FILE_THERE,
    FOLDER_THERE,
    FOLDER_OF_FILE,
    ABSOLUTE
} rule_kind;
static const struct {
    rule_kind kind;
    const char
        *words; /* of WORD, divided by spaces; of FILE_THERE: what may stand instead; or NULL */
    long long least, most; /* of NUMBER */
} rules[MICA_ENV_COUNT] = {
    [MICA_ENV_LOG] = {.kind = WORD, .words = "error warn info debug"},
    [MICA_ENV_LOG_FILE] = {.kind = FOLDER_OF_FILE},
    [MICA_ENV_THREADS] = {.kind = NUMBER, .least = 1, .most = 4096},
    [MICA_ENV_VECTORS] = {.kind = WORD, .words = "narrow"},
    [MICA_ENV_CACHE_DIR] = {.kind = ABSOLUTE},
    [MICA_ENV_CACHE_BYTES] = {.kind = NUMBER, .most = INT64_MAX},
    [MICA_ENV_RECORDS] = {.kind = FILE_THERE},
    [MICA_ENV_KERNEL_DIR] = {.kind = FOLDER_THERE},
    [MICA_ENV_ONEDNN] = {.kind = FILE_THERE, .words = "none"},
    [MICA_ENV_CUDA_DRIVER] = {.kind = FILE_THERE},
    [MICA_ENV_NVRTC] = {.kind = FILE_THERE},
    [MICA_ENV_CUBLASLT] = {.kind = FILE_THERE},
    [MICA_ENV_CUDNN] = {.kind = FILE_THERE},
    [MICA_ENV_SYNC] = {.kind = WORD, .words = "0 1"},
    [MICA_ENV_WAIT] = {.kind = WORD, .words = "spin sleep"},
};
static char problems[MICA_ENV_COUNT][256];

static const char *const foreign[] = {"CUDA_VISIBLE_DEVICES",  "CUDA_INJECTION64_PATH",
                                      "NVTX_INJECTION64_PATH", "LD_PRELOAD",
                                      "CUDA_LAUNCH_BLOCKING",  "NVRTC_APPEND_FLAGS"};
enum { FOREIGN = sizeof foreign / sizeof *foreign };

static const char *values[MICA_ENV_COUNT], *place_values[MICA_ENV_PLACE_COUNT];
static const char *foreign_values[FOREIGN];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool has_word(const char *words, const char *value)
{
    size_t length = strlen(value);
    for (const char *w = words; *w; w += strcspn(w, " "), w += *w == ' ')
        if (strcspn(w, " ") == length && !strncmp(w, value, length)) return true;
    return false;
}

/* The whole text is a number, of thousands of 1024 with K, M or G behind it. */
static bool read_number(const char *value, int i, long long *number)
{
    char *end;
    errno = 0;
    *number = strtoll(value, &end, 10);
    if (errno || end == value || *number < 0) return false;
    static const char units[] = "KMG";
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (unit) end++;
    if (*end || *number < rules[i].least || *number > rules[i].most >> shift) return false;
    *number <<= shift;
    return true;
}

static bool is_there(const char *path, bool folder)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISDIR(st.st_mode) != 0) == folder;
}

/* A place that a file can be written to; "stderr" is one by name. */
static bool has_folder(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    if (!slash) return true;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    return access(folder, W_OK) == 0;
}

/* The rule that the value breaks, or NULL. */
static const char *broken_rule(int i, const char *value, char *text, size_t size)
{
    long long number;
    switch (rules[i].kind) {
    case ANY:
        return NULL;
    case WORD:
        snprintf(text, size, "known are: %s", rules[i].words);
        return has_word(rules[i].words, value) ? NULL : text;
    case NUMBER:
        if (rules[i].most == INT64_MAX)
            snprintf(text, size, "a whole number of at least %lld is needed, K, M or G may follow",
                     rules[i].least);
        else
            snprintf(text, size, "a whole number from %lld to %lld is needed", rules[i].least,
                     rules[i].most);
        return read_number(value, i, &number) ? NULL : text;
    case FILE_THERE:
        if (rules[i].words && has_word(rules[i].words, value)) return NULL;
        return is_there(value, false) ? NULL : "there is no such file";
    case FOLDER_THERE:
        return is_there(value, true) ? NULL : "there is no such directory";
    case FOLDER_OF_FILE:
        return has_folder(value) ? NULL : "no file can be written there";
    case ABSOLUTE:
        return *value == '/' ? NULL : "an absolute path is needed";
    }
    return NULL;
}

static void judge(int i)
{
    char text[128];
    const char *rule = values[i] ? broken_rule(i, values[i], text, sizeof text) : NULL;
    if (rule)
        snprintf(problems[i], sizeof problems[i], "%s=%.100s: %s", variables[i].name, values[i],
                 rule);
}

static void read_all(void)
{
    for (int i = 0; i < MICA_ENV_COUNT; i++) {
        values[i] = secure_getenv(variables[i].name);
        if (values[i] && !*values[i]) values[i] = NULL;
        judge(i);
    }
    for (int i = 0; i < MICA_ENV_PLACE_COUNT; i++) place_values[i] = secure_getenv(places[i]);
    for (int i = 0; i < FOREIGN; i++) foreign_values[i] = secure_getenv(foreign[i]);
}

const char *mica_env(mica_env_name name)
{
    pthread_once(&once, read_all);
    return values[name];
}

int64_t mica_env_number(mica_env_name name, int64_t otherwise)
{
    long long number;
    const char *value = mica_env(name);
    return value && read_number(value, (int)name, &number) ? number : otherwise;
}

const char *mica_env_place(mica_env_place_name name)
{
    pthread_once(&once, read_all);
    return place_values[name];
}

bool mica_env_foreign(int index, const char **name, const char **value)
{
    pthread_once(&once, read_all);
    if (index < 0 || index >= FOREIGN) return false;
    *name = foreign[index];
    *value = foreign_values[index];
    return true;
}

mica_status mica_env_info(int index, const char **name, const char **value, const char **doc)
{
    if (index < 0 || index >= MICA_ENV_COUNT)
        return mica_fail(MICA_INVALID, "variable %d: there are %d", index, MICA_ENV_COUNT);
    *name = variables[index].name;
    *value = mica_env((mica_env_name)index);
    *doc = variables[index].doc;
    return MICA_OK;
}

const char *mica_env_problem(int index)
{
    pthread_once(&once, read_all);
    return index >= 0 && index < MICA_ENV_COUNT && *problems[index] ? problems[index] : NULL;
}
