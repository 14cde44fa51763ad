/* SPDX-License-Identifier: Apache-2.0
 * Errors with a text, counters and their report, objects with a kind. */
#define _GNU_SOURCE
#include "compare.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const call_names[] = {
#define SERVED(part, result, name, arguments) #name,
#define REFUSED(part, name, words)            #name,
#include "functions.def"
#undef SERVED
#undef REFUSED
};

static atomic_llong calls[FRONT_CALLS], served[FRONT_CALLS];
static _Thread_local front_call current;
static _Thread_local char last_error[1024];

static pthread_mutex_t callback_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    unsigned mask;
    void *user;
    cudnnCallback_t function;
} callback;

/* ---- log: MICA_CUDNN_LOG names a file, or "stderr" ---- */

static FILE *log_file;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

static void open_log(void)
{
    const char *place = getenv("MICA_CUDNN_LOG");
    if (!place || !*place) return;
    log_file = strcmp(place, "stderr") ? fopen(place, "ae") : stderr;
}

static FILE *log_place(void)
{
    pthread_once(&log_once, open_log);
    return log_file;
}

void front_say(const char *format, ...)
{
    va_list list;
    FILE *to = log_place() ? log_place() : stderr;
    char line[1024];
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    fprintf(to, "mica cudnn: %s\n", line);
    fflush(to);
}

/* The report of the process: which functions were called, and for how many of them mica ran. A
 * process that called none, as those that LD_PRELOAD passes by, says nothing. */
__attribute__((destructor)) static void report(void)
{
    FILE *log = mica_cudnn_calls(NULL) ? log_place() : NULL;
    compare_report();
    if (!log) return;
    fprintf(log, "mica cudnn: %lld calls, %lld served by mica %s\n",
            (long long)mica_cudnn_calls(NULL), (long long)mica_cudnn_served(NULL), mica_version());
    for (int i = 0; i < FRONT_CALLS; i++)
        if (atomic_load(&calls[i]))
            fprintf(log, "mica cudnn: %-55s %12lld calls %12lld served\n", call_names[i],
                    (long long)atomic_load(&calls[i]), (long long)atomic_load(&served[i]));
    fflush(log);
}

/* ---- counters ---- */

void front_enter(front_call call)
{
    current = call;
    atomic_fetch_add_explicit(&calls[call], 1, memory_order_relaxed);
}

void front_served(void)
{
    atomic_fetch_add_explicit(&served[current], 1, memory_order_relaxed);
}

const char *front_call_name(front_call call)
{
    return (unsigned)call < FRONT_CALLS ? call_names[call] : "unknown function";
}

static int64_t count(const atomic_llong *counters, const char *function)
{
    long long sum = 0;
    for (int i = 0; i < FRONT_CALLS; i++) {
        if (function && strcmp(function, call_names[i])) continue;
        sum += atomic_load(&counters[i]);
        if (function) return sum;
    }
    return function ? -1 : sum;
}

int64_t mica_cudnn_calls(const char *function)
{
    return count(calls, function);
}

int64_t mica_cudnn_served(const char *function)
{
    return count(served, function);
}

const char *mica_cudnn_version(void)
{
    return mica_version();
}

/* ---- errors ---- */

static const struct {
    cudnnStatus_t status;
    const char *name, *words;
} statuses[] = {
#define CUDNN_X(name, value, words) {CUDNN_STATUS_##name, "CUDNN_STATUS_" #name, words},
    CUDNN_STATUSES(CUDNN_X)
#undef CUDNN_X
};

const char *front_status_name(cudnnStatus_t status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].status == status) return statuses[i].name;
    return "CUDNN_UNKNOWN_STATUS";
}

static void tell_callback(cudnnStatus_t status)
{
    pthread_mutex_lock(&callback_mutex);
    cudnnCallback_t function = callback.mask >> CUDNN_SEV_ERROR & 1 ? callback.function : NULL;
    void *user = callback.user;
    pthread_mutex_unlock(&callback_mutex);
    if (!function) return;
    cudnnDebug_t debug = {.cudnn_version = (unsigned)cudnnGetVersion(), .cudnnStatus = status};
    function(CUDNN_SEV_ERROR, user, &debug, last_error);
}

cudnnStatus_t front_fail(cudnnStatus_t status, const char *format, ...)
{
    int start = snprintf(last_error, sizeof last_error, "%s: ", front_call_name(current));
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error + start, sizeof last_error - (size_t)start, format, arguments);
    va_end(arguments);
    FILE *log = log_place();
    if (log) fprintf(log, "mica cudnn: %s (%s)\n", last_error, front_status_name(status));
    tell_callback(status);
    return status;
}

cudnnStatus_t front_status(mica_status status)
{
    static const struct {
        mica_status from;
        cudnnStatus_t to;
    } rows[] = {
        {MICA_INVALID, CUDNN_STATUS_BAD_PARAM},
        {MICA_UNSUPPORTED, CUDNN_STATUS_NOT_SUPPORTED},
        {MICA_OUT_OF_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED},
        {MICA_OUT_OF_DEVICE_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED},
        {MICA_NO_DEVICE, CUDNN_STATUS_NOT_INITIALIZED},
        {MICA_NO_COMPILER, CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING},
        {MICA_COMPILE_FAILED, CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED},
        {MICA_DEVICE_ERROR, CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER},
        {MICA_DEVICE_LOST, CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER},
        {MICA_FORKED_PROCESS, CUDNN_STATUS_EXECUTION_FAILED},
    };
    if (status == MICA_OK) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t to = CUDNN_STATUS_INTERNAL_ERROR;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].from == status) to = rows[i].to;
    return front_fail(to, "%s: %s", mica_status_name(status), mica_error());
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    front_enter(CALL_cudnnGetErrorString);
    return front_status_name(status);
}

/* Reading it empties it. */
void cudnnGetLastErrorString(char *message, size_t max_size)
{
    atomic_fetch_add_explicit(&calls[CALL_cudnnGetLastErrorString], 1, memory_order_relaxed);
    if (!message || !max_size) return;
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = 0;
}

cudnnStatus_t cudnnSetCallback(unsigned mask, void *user, cudnnCallback_t function)
{
    front_enter(CALL_cudnnSetCallback);
    pthread_mutex_lock(&callback_mutex);
    callback.mask = mask;
    callback.user = user;
    callback.function = function;
    pthread_mutex_unlock(&callback_mutex);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCallback(unsigned *mask, void **user, cudnnCallback_t *function)
{
    front_enter(CALL_cudnnGetCallback);
    pthread_mutex_lock(&callback_mutex);
    if (mask) *mask = callback.mask;
    if (user) *user = callback.user;
    if (function) *function = callback.function;
    pthread_mutex_unlock(&callback_mutex);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- objects ---- */

static const char *kind_words(front_kind kind)
{
    static const char *const words[] = {
#define FRONT_X(name, text) text,
        FRONT_KINDS(FRONT_X)
#undef FRONT_X
    };
    if (kind == FRONT_GONE) return "destroyed object";
    return kind > FRONT_GONE && kind < FRONT_KIND_END ? words[kind - FRONT_GONE - 1]
                                                      : "foreign object";
}

cudnnStatus_t front_given(const void *pointer, const char *argument)
{
    if (pointer) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s is null", argument);
}

cudnnStatus_t front_check(const void *object, front_kind kind, const char *argument)
{
    FRONT_TRY(front_given(object, argument));
    if ((uintptr_t)object % _Alignof(front_kind))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%s is misaligned, not a %s", argument,
                          kind_words(kind));
    front_kind found = *(const front_kind *)object;
    if (found == kind) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_BAD_PARAM, "%s is a %s, not a %s", argument, kind_words(found),
                      kind_words(kind));
}

cudnnStatus_t front_create(front_kind kind, size_t size, void *created)
{
    FRONT_TRY(front_given(created, kind_words(kind)));
    front_kind *object = calloc(1, size);
    if (!object)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%zu bytes", size);
    *object = kind;
    *(void **)created = object;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_destroy(void *object, front_kind kind)
{
    if (!object) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(front_check(object, kind, "the object to destroy"));
    *(volatile front_kind *)object = FRONT_GONE;
    free(object);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- types ---- */

static const mica_dtype dtypes[] = {
#define CUDNN_X(name, value, dtype) [CUDNN_DATA_##name] = dtype,
    CUDNN_DATA_TYPES(CUDNN_X)
#undef CUDNN_X
};

mica_dtype front_dtype(cudnnDataType_t type)
{
    return (unsigned)type < sizeof dtypes / sizeof *dtypes ? dtypes[type] : MICA_NONE;
}

bool front_data_type(mica_dtype dtype, cudnnDataType_t *type)
{
    for (unsigned i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtype != MICA_NONE && dtypes[i] == dtype) {
            *type = (cudnnDataType_t)i;
            return true;
        }
    return false;
}

cudnnStatus_t front_scalar(const void *scalar, mica_dtype of, const char *argument, double *value)
{
    FRONT_TRY(front_given(scalar, argument));
    *value = of == MICA_F64 ? *(const double *)scalar : (double)*(const float *)scalar;
    return CUDNN_STATUS_SUCCESS;
}
