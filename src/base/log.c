/* SPDX-License-Identifier: Apache-2.0
 * Lines of the log: "mica,v1,<seconds>,<level>,<text>". */
#include "base/log.h"
#include "base/format.h"
#include "base/env.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int threshold = -1; /* nothing */
static mica_log_fn callback;
static void *callback_user;
static FILE *file;

double mica_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void open_file(void)
{
    const char *path = mica_env(MICA_ENV_LOG_FILE);
    if (!path || !strcmp(path, "stderr")) {
        file = stderr;
        return;
    }
    char name[4096];
    const char *pid = strstr(path, "%p");
    if (pid)
        snprintf(name, sizeof name, "%.*s%ld%s", (int)(pid - path), path, (long)getpid(), pid + 2);
    else
        snprintf(name, sizeof name, "%s", path);
    file = fopen(name, "ae");
    if (!file) file = stderr;
}

/* Not taken before a fork, as other locks are (base/system/fork.h): a callback may fork. */
static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}

static void start(void)
{
    pthread_atfork(NULL, NULL, in_child);
    const char *wanted = mica_env(MICA_ENV_LOG);
    if (!wanted) return;
    for (int i = 0; i < 4; i++) {
        if (strcmp(wanted, level_names[i]) != 0) continue;
        open_file();
        atomic_store(&threshold, i);
    }
}

void mica_log_set(mica_log_fn fn, void *user, mica_log_level level)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&mutex);
    callback = fn;
    callback_user = user;
    atomic_store(&threshold, fn || file ? (int)level : -1);
    pthread_mutex_unlock(&mutex);
}

bool mica_log_wants(mica_log_level level)
{
    pthread_once(&once, start);
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

void mica_log(mica_log_level level, const char *format, ...)
{
    if (!mica_log_wants(level)) return;
    char buffer[4096], *line = buffer;
    size_t room = sizeof buffer;
    int n = mica_format(line, room, "mica,v1,%.6f,%s,", mica_seconds(), level_names[level]);
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int length = mica_format_list(line + n, room - (size_t)n, format, list);
    /* Without memory a long line is cut. */
    char *whole = length >= (int)room - n ? malloc((size_t)(n + length) + 1) : NULL;
    if (whole) {
        memcpy(whole, line, (size_t)n);
        mica_format_list(whole + n, (size_t)length + 1, format, again);
        line = whole;
    }
    va_end(again);
    va_end(list);
    pthread_mutex_lock(&mutex);
    if (callback)
        callback(callback_user, level, line);
    else if (file)
        fprintf(file, "%s\n", line);
    pthread_mutex_unlock(&mutex);
    free(whole);
}
