/* SPDX-License-Identifier: Apache-2.0
 * Contexts: a device, its plan cache, its records; and the small services of a device. */
#include "plan/context.h"
#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/system/background.h"
#include "cpu/cpu.h"
#include "cpu/floating.h"
#include "ops/onednn/onednn.h"
#include "peers/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static mica_status null_pointer(const char *what)
{
    return mica_fail(MICA_INVALID, "%s is NULL", what);
}

/* ---- creation ---- */

static mica_status open_device(const char *name, mica_context *c);

/* What MICA_DEVICE names. */
static mica_status open_wanted(const char *name, mica_context *c)
{
    char why[256];
    mica_status status = open_device(name, c);
    if (status == MICA_OK) return status;
    snprintf(why, sizeof why, "%s", mica_error());
    return mica_fail(status, "MICA_DEVICE=%.60s: %s", name, why);
}

static mica_status open_device(const char *name, mica_context *c)
{
    if (!strcmp(name, "auto")) {
        const char *wanted = mica_env(MICA_ENV_DEVICE);
        if (wanted && strcmp(wanted, "auto") != 0) return open_wanted(wanted, c);
        /* A GPU whose driver or compiler is unusable must not keep a program from running. */
        if (mica_cuda_count() > 0 && open_device("cuda:0", c) == MICA_OK) return MICA_OK;
        return open_device("cpu", c);
    }
    if (!strcmp(name, "cpu")) {
        mica_cpu_device_info(&c->device);
        return MICA_OK;
    }
    MICA_TRY(mica_cuda_open(name, &c->cuda));
    mica_cuda_device_info(c->cuda, &c->device);
    return MICA_OK;
}

static void log_environment(void)
{
    for (int i = 0; i < MICA_ENV_COUNT; i++)
        if (mica_env_problem(i)) mica_log(MICA_LOG_WARN, "environment,%s", mica_env_problem(i));
}

/* Once in a process, when it first needs a device. */
static void report_environment(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, log_environment);
}

mica_status mica_context_create(const char *device, mica_context **context)
{
    if (!context) return null_pointer("context");
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    *context = NULL;
    mica_context *c = mica_alloc(sizeof *c);
    if (!c) return mica_fail_memory(sizeof *c);
    mica_status status = open_device(device ? device : "auto", c);
    if (status != MICA_OK) {
        mica_release(c);
        return status;
    }
    report_environment();
    atomic_init(&c->references, 1);
    pthread_mutex_init(&c->graphs.mutex, NULL);
    pthread_mutex_init(&c->cache.mutex, NULL);
    pthread_mutex_init(&c->records.mutex, NULL);
    mica_fork_guard(&c->guarded[0], &c->graphs.mutex);
    mica_fork_guard(&c->guarded[1], &c->cache.mutex);
    mica_fork_guard(&c->guarded[2], &c->records.mutex);
    c->graphs.limit = c->cache.limit = MICA_CACHE_LIMIT;
    mica_log(MICA_LOG_INFO, "context,%s,%s,mica %s", c->device.name, c->device.model,
             mica_version());
    /* The user's own come later, and the last one counts. */
    if (mica_records_ship(&c->records, c->device.model) != MICA_OK)
        mica_log(MICA_LOG_WARN, "records,%s", mica_error());
    const char *records = mica_env(MICA_ENV_RECORDS);
    /* a file that was not there from the start is reported with the environment */
    if (records && mica_records_load(&c->records, records) != MICA_OK &&
        !mica_env_problem(MICA_ENV_RECORDS))
        mica_log(MICA_LOG_WARN, "records,%s", mica_error());
    mica_fit_apply(c);
    *context = c;
    return MICA_OK;
}

void mica_context_release(mica_context *c)
{
    if (atomic_fetch_sub(&c->references, 1) != 1) return;
    mica_cuda_close(c->cuda);
    mica_records_free(&c->records);
    for (int i = 0; i < 3; i++) mica_fork_unguard(&c->guarded[i]);
    pthread_mutex_destroy(&c->graphs.mutex);
    pthread_mutex_destroy(&c->cache.mutex);
    pthread_mutex_destroy(&c->records.mutex);
    mica_release(c);
}

void mica_context_destroy(mica_context *c)
{
    if (!c) return;
    /* Cached plans hold references to the context: they go first. */
    mica_plan_cache_limit(&c->graphs, 0);
    mica_plan_cache_limit(&c->cache, 0);
    mica_jobs_wait(c); /* of prompt plans that are gone */
    mica_context_release(c);
}

mica_status mica_context_keep_disturbed(mica_context *c, bool keep)
{
    if (!c) return null_pointer("context");
    c->keep_disturbed = keep;
    return MICA_OK;
}

/* ---- what is known of it ---- */

mica_status mica_context_info(const mica_context *c, mica_device_info *info)
{
    if (!c || !info) return null_pointer("context or info");
    *info = c->device;
    return MICA_OK;
}

mica_status mica_context_stats(const mica_context *context, mica_stats *stats)
{
    mica_context *c = (mica_context *)(uintptr_t)context;
    if (!c || !stats) return null_pointer("context or stats");
    memset(stats, 0, sizeof *stats);
    if (c->cuda && mica_fork_check() == MICA_OK) mica_cuda_kernel_stats(c->cuda, stats);
    pthread_mutex_lock(&c->cache.mutex);
    stats->plan_hits = c->cache.hits;
    stats->plan_misses = c->cache.misses;
    stats->plan_bytes = c->cache.bytes;
    stats->plans = c->cache.count;
    pthread_mutex_unlock(&c->cache.mutex);
    return MICA_OK;
}

mica_status mica_context_cache_limit(mica_context *c, int64_t bytes)
{
    if (!c) return null_pointer("context");
    if (bytes < 0) return mica_fail(MICA_INVALID, "cache limit is %lld bytes", (long long)bytes);
    if (bytes == 0) mica_plan_cache_empty(&c->graphs); /* they hold plans */
    mica_plan_cache_limit(&c->cache, bytes);
    return MICA_OK;
}

mica_status mica_context_load_records(mica_context *c, const char *path)
{
    if (!c || !path) return null_pointer("context or path");
    mica_status status = mica_records_load(&c->records, path);
    mica_fit_apply(c);
    return status;
}

mica_status mica_context_save_records(mica_context *c, const char *path)
{
    if (!c || !path) return null_pointer("context or path");
    return mica_records_save(&c->records, path);
}

mica_status mica_health(const mica_context *c)
{
    if (!c) return null_pointer("context");
    return c->cuda ? mica_cuda_health(c->cuda) : MICA_OK;
}

/* ---- memory ---- */

/* Whole huge pages where they pay: streams over small ones wait for the page tables. */
static void *host_memory(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t unit = bytes >= 2 * huge ? huge : 256, rounded = (bytes + unit - 1) / unit * unit;
    void *memory = aligned_alloc(unit, rounded ? rounded : unit);
    if (memory && unit == huge) (void)madvise(memory, rounded, MADV_HUGEPAGE); /* a wish */
    return memory;
}

mica_status mica_malloc(mica_context *c, int64_t bytes, void **memory)
{
    if (!c || !memory) return null_pointer("context or memory");
    *memory = NULL;
    if (bytes < 0) return mica_fail(MICA_INVALID, "%lld bytes were asked for", (long long)bytes);
    if (c->cuda) return mica_cuda_malloc(c->cuda, bytes, memory);
    if (mica_fault_due(MICA_FAULT_ALLOC)) return mica_fail_memory((size_t)bytes);
    *memory = host_memory((size_t)bytes);
    return *memory ? MICA_OK : mica_fail_memory((size_t)bytes);
}

void mica_free(mica_context *c, void *memory)
{
    if (!c || !memory) return;
    if (c->cuda)
        mica_cuda_free(c->cuda, memory);
    else
        free(memory);
}

static void fill(char *memory, int byte, int64_t bytes)
{
    const int64_t piece = 1 << 16;
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)bytes)) schedule(static)
    for (int64_t at = 0; at < bytes; at += piece)
        memset(memory + at, byte, (size_t)(bytes - at < piece ? bytes - at : piece));
}

mica_status mica_memset(mica_context *c, void *memory, int byte, int64_t bytes, void *stream)
{
    if (!c || (!memory && bytes)) return null_pointer("context or memory");
    if (c->cuda) return mica_cuda_memset(c->cuda, memory, byte, bytes, stream);
    fill(memory, byte, bytes);
    return MICA_OK;
}

mica_status mica_upload(mica_context *c, void *to, const void *from, int64_t bytes, void *stream)
{
    if (!c || ((!to || !from) && bytes)) return null_pointer("context, to or from");
    if (c->cuda) return mica_cuda_upload(c->cuda, to, from, bytes, stream);
    if (bytes > 0) memcpy(to, from, (size_t)bytes);
    return MICA_OK;
}

mica_status mica_download(mica_context *c, void *to, const void *from, int64_t bytes, void *stream)
{
    if (!c || ((!to || !from) && bytes)) return null_pointer("context, to or from");
    if (c->cuda) return mica_cuda_download(c->cuda, to, from, bytes, stream);
    if (bytes > 0) memcpy(to, from, (size_t)bytes);
    return MICA_OK;
}

/* ---- streams and events ---- */

mica_status mica_stream_create(mica_context *c, void **stream)
{
    if (!c || !stream) return null_pointer("context or stream");
    *stream = NULL;
    return c->cuda ? mica_cuda_stream_create(c->cuda, stream) : MICA_OK;
}

void mica_stream_destroy(mica_context *c, void *stream)
{
    if (c && c->cuda && stream) mica_cuda_stream_destroy(c->cuda, stream);
}

mica_status mica_synchronize(mica_context *c, void *stream)
{
    if (!c) return null_pointer("context");
    return c->cuda ? mica_cuda_synchronize(c->cuda, stream) : MICA_OK;
}

struct mica_event {
    double seconds; /* CPU */
    void *event;    /* GPU */
};

mica_status mica_event_create(mica_context *c, mica_event **event)
{
    if (!c || !event) return null_pointer("context or event");
    *event = NULL;
    mica_event *e = mica_alloc(sizeof *e);
    if (!e) return mica_fail_memory(sizeof *e);
    mica_status status = c->cuda ? mica_cuda_event_create(c->cuda, &e->event) : MICA_OK;
    if (status != MICA_OK) {
        mica_release(e);
        return status;
    }
    *event = e;
    return MICA_OK;
}

void mica_event_destroy(mica_context *c, mica_event *event)
{
    if (!c || !event) return;
    if (c->cuda) mica_cuda_event_destroy(c->cuda, event->event);
    mica_release(event);
}

mica_status mica_event_record(mica_context *c, mica_event *event, void *stream)
{
    if (!c || !event) return null_pointer("context or event");
    event->seconds = mica_seconds();
    return c->cuda ? mica_cuda_event_record(c->cuda, event->event, stream) : MICA_OK;
}

mica_status mica_event_elapsed(mica_context *c, mica_event *from, mica_event *to, double *ms)
{
    if (!c || !from || !to || !ms) return null_pointer("an argument");
    *ms = 1e3 * (to->seconds - from->seconds);
    return c->cuda ? mica_cuda_event_elapsed(c->cuda, from->event, to->event, ms) : MICA_OK;
}

/* ---- what tools ask ---- */

mica_status mica_disk_cache(mica_disk_cache_info *info)
{
    return info ? mica_cuda_cache_info(info) : null_pointer("info");
}

mica_status mica_disk_cache_limit(int64_t bytes)
{
    if (bytes < 0) return mica_fail(MICA_INVALID, "%lld bytes", (long long)bytes);
    mica_cuda_cache_limit(bytes);
    return MICA_OK;
}

mica_status mica_disk_cache_prune(int64_t keep_bytes)
{
    if (keep_bytes < 0) return mica_fail(MICA_INVALID, "%lld bytes", (long long)keep_bytes);
    return mica_cuda_cache_prune(keep_bytes);
}

mica_status mica_disk_cache_pack(const char *path, int64_t *entries)
{
    return path && entries ? mica_cuda_cache_pack(path, entries) : null_pointer("path or entries");
}

mica_status mica_disk_cache_unpack(const char *path, int64_t *entries)
{
    return path && entries ? mica_cuda_cache_unpack(path, entries)
                           : null_pointer("path or entries");
}

/* ---- mica_info ---- */

static void version_row(mica_text *value)
{
    mica_text_add(value, "%s", mica_version());
}

static void onednn_row(mica_text *value)
{
    mica_why why;
    if (mica_onednn_load(&why) == MICA_OK)
        mica_text_add(value, "%s, %s", mica_onednn_version(), mica_onednn_path());
    else
        mica_text_add(value, "none: %s", why.text);
}

/* What an absent library costs. */
static void missing_row(mica_text *value)
{
    mica_why why;
    for (int i = 0; i < mica_op_count; i++)
        for (const mica_engine *const *e = mica_ops[i]->engines; *e; e++)
            if ((*e)->available && (*e)->available(&why) != MICA_OK)
                mica_text_add(value, "%s%s of %s", value->length ? ", " : "", (*e)->name,
                              mica_ops[i]->name);
    mica_text_add(value, value->length ? "; the others do their work, slower" : "none");
}

static const struct {
    const char *key;
    void (*value)(mica_text *value);
} own[] = {{"mica", version_row}, {"onednn", onednn_row}, {"engines missing", missing_row}};

static int own_rows(void)
{
    return sizeof own / sizeof *own;
}

static void own_row(int index, const char **key, const char **value)
{
    static _Thread_local char text[1024];
    mica_text out = {text, sizeof text, 0};
    text[0] = 0;
    own[index].value(&out);
    *key = own[index].key;
    *value = text;
}

static const struct {
    int (*count)(void);
    void (*row)(int index, const char **key, const char **value);
} info_groups[] = {
    {own_rows, own_row},
    {mica_cuda_info_rows, mica_cuda_info_row},
    {mica_peers_info_rows, mica_peers_info_row},
};

mica_status mica_info(int index, const char **key, const char **value)
{
    if (!key || !value) return null_pointer("key or value");
    int row = index;
    for (size_t g = 0; row >= 0 && g < sizeof info_groups / sizeof *info_groups; g++) {
        if (row < info_groups[g].count()) {
            info_groups[g].row(row, key, value);
            return MICA_OK;
        }
        row -= info_groups[g].count();
    }
    /* Variables of others that load code into the process or steer the compiler. */
    if (row < 0 || !mica_env_foreign(row, key, value))
        return mica_fail(MICA_INVALID, "row %d: there are no more", index);
    if (!*value) *value = "not set";
    return MICA_OK;
}
