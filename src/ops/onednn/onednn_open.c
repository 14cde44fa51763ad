/* SPDX-License-Identifier: Apache-2.0
 * oneDNN behind one door: opening the library, once, and whether it can be used. */
#define _GNU_SOURCE
#include "ops/onednn/onednn_api.h"
#include "base/env.h"
#include "base/system/fork.h"
#include "base/system/library.h"
#include "base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define VARIABLE "MICA_ONEDNN"

mica_onednn_table mica_dnnl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool usable;
static int opened_after;                          /* so many forks */
static char path[512], version[48], absence[448]; /* a refusal with it fits a mica_why */

/* ---- the functions ---- */

/* The first that is missing, or NULL. A function pointer is read through an object pointer, as
 * POSIX asks for. */
static const char *fill_table(void *library, int major)
{
#define MICA_X(name, symbol, result, arguments)                                                    \
    *(void **)&mica_dnnl.name = dlsym(library, #symbol);                                           \
    if (!mica_dnnl.name) return #symbol;
    ONEDNN_CALLS(MICA_X)
    if (major == 2) {
        ONEDNN_CALLS_2(MICA_X)
    } else {
        ONEDNN_CALLS_3(MICA_X)
    }
#undef MICA_X
#define MICA_X(name, two, three) mica_dnnl.numbers.name = major == 2 ? (two) : (three);
    ONEDNN_NUMBERS(MICA_X)
#undef MICA_X
    mica_dnnl.major = major;
    return NULL;
}

/* ---- its threads ---- */

typedef struct scope {
    void *process, *library;
} scope;

/* Run times of OpenMP by what starts a region, with the versions of their symbols. That of LLVM and
 * Intel, which comes first, knows GNU's entry, too. */
typedef struct openmp {
    const char *entry, *entry_version, *version;
} openmp;
static const openmp run_times[] = {{"__kmpc_fork_call", "VERSION", "VERSION"},
                                   {"GOMP_parallel", "GOMP_4.0", "OMP_1.0"}};

/* Symbols have no versions in musl. */
static void *find_version(void *library, const char *name, const char *its_version)
{
#ifdef __GLIBC__
    return dlvsym(library, name, its_version);
#else
    (void)its_version;
    return dlsym(library, name);
#endif
}

/* As oneDNN's own calls are bound: by version, and what the whole process sees comes first. */
static void *find(const scope *s, const char *name, const char *its_version)
{
    void *symbol = s->process ? find_version(s->process, name, its_version) : NULL;
    if (!symbol) symbol = find_version(s->library, name, its_version);
    if (!symbol && s->process) symbol = dlsym(s->process, name);
    return symbol ? symbol : dlsym(s->library, name);
}

static bool find_openmp(const scope *s, mica_text *looked)
{
    Dl_info asks, forks;
    const openmp *o = &run_times[!dlsym(s->library, run_times[0].entry)];
    void *who = find(s, "omp_get_thread_num", o->version);
    void *region = find(s, o->entry, o->entry_version);
    *(void **)&mica_dnnl.get_threads = find(s, "omp_get_max_threads", o->version);
    *(void **)&mica_dnnl.set_threads = find(s, "omp_set_num_threads", o->version);
    *(void **)&mica_dnnl.in_parallel = find(s, "omp_in_parallel", o->version);
    if (!who || !region || !mica_dnnl.get_threads || !mica_dnnl.set_threads ||
        !mica_dnnl.in_parallel || !dladdr(who, &asks) || !dladdr(region, &forks)) {
        mica_text_add(looked, "its OpenMP run time was not found");
        return false;
    }
    if (asks.dli_fbase == forks.dli_fbase) return true;
    /* a thread of the one is number 0 to the other: all would do the same piece */
    mica_text_add(looked, "its threads are of %s, but this process has %s", forks.dli_fname,
                  asks.dli_fname);
    return false;
}

static bool find_threads(void *library, unsigned runtime, mica_text *looked)
{
    static const struct {
        unsigned runtime;
        const char *name;
    } others[] = {{ONEDNN_TBB, "TBB"}, {ONEDNN_THREADPOOL, "a thread pool"}, {ONEDNN_SYCL, "SYCL"}};
    const char *name = "an unknown run time";
    if (runtime == ONEDNN_SEQUENTIAL) return true;
    if (runtime == ONEDNN_OMP) {
        scope s = {dlopen(NULL, RTLD_LAZY), library};
        bool found = find_openmp(&s, looked);
        if (s.process) dlclose(s.process);
        return found;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].runtime == runtime) name = others[i].name;
    mica_text_add(looked, "built for %s, used are those for OpenMP", name);
    return false;
}

/* ---- the library ---- */

static bool check(void *library, const char *name, mica_text *looked)
{
    const dnnl_version_t *(*ask)(void);
    *(void **)&ask = dlsym(library, "dnnl_version");
    const dnnl_version_t *v = ask ? ask() : NULL;
    mica_text_add(looked, "%s%s: ", looked->length ? "; " : "", name);
    if (!v) {
        mica_text_add(looked, "it has no dnnl_version");
        return false;
    }
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    if (v->major < 2 || v->major > 3) {
        mica_text_add(looked, "version %s, known are 2 and 3", version);
        return false;
    }
    mica_text_add(looked, "version %s: ", version);
    if (!find_threads(library, v->cpu_runtime, looked)) return false;
    const char *missing = fill_table(library, v->major);
    if (missing) mica_text_add(looked, "it has no %s", missing);
    return !missing;
}

/* Plans hold their primitives, and the plan cache's bound counts them: up to 1,024 more, of plans
 * that are gone, are memory that nobody asked for. Where the host has the library, too, its cache
 * stays as it is. */
static void keep_no_primitives(void *library)
{
    int (*set_capacity)(int);
    *(void **)&set_capacity = dlsym(library, "dnnl_set_primitive_cache_capacity");
    if (set_capacity) (void)set_capacity(0);
}

/* ---- the end of the process ---- */

static atomic_int inside;
static atomic_bool ended;
static _Thread_local int own; /* of `inside`: exit may be called by a signal's handler */

bool mica_onednn_usable(void)
{
    return !mica_onednn_forked() && !atomic_load_explicit(&ended, memory_order_relaxed);
}

bool mica_onednn_enter(void)
{
    atomic_fetch_add(&inside, 1);
    own++;
    if (!atomic_load(&ended)) return true;
    mica_onednn_leave();
    return false;
}

void mica_onednn_leave(void)
{
    own--;
    atomic_fetch_sub(&inside, 1);
}

/* Calls end by themselves, so the bound is for what nobody foresees. The last time is when this
 * library is ended, before those that it needs: to open another one then would begin them anew. */
__attribute__((destructor)) static void wait_until_outside(void)
{
    const double most_seconds = 10;
    double start = mica_seconds();
    atomic_store(&ended, true);
    if (atomic_load(&inside) <= own) return;
    if (opened_after != mica_forks()) return; /* who is inside is not here */
    while (atomic_load(&inside) > own && mica_seconds() - start < most_seconds) sched_yield();
}

/* ---- opening ---- */

static bool is_loaded(const char *name)
{
    void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library) dlclose(library);
    return library != NULL;
}

static bool try_name(const char *value, const char *name, mica_text *looked)
{
    const char *const names[] = {name, NULL};
    bool shared = is_loaded(value ? value : name);
    void *library = mica_library_open(VARIABLE, value, names, looked);
    if (!library) return false;
    if (check(library, value ? value : name, looked)) {
        if (!shared) keep_no_primitives(library);
        /* What is made in calls stays; what there is already is destroyed at exit, after a wait. */
        if (!mica_library_keep_statics(library))
            mica_log(MICA_LOG_INFO, "oneDNN's static objects are destroyed at exit");
        (void)atexit(wait_until_outside);
        mica_library_path(*(void **)&mica_dnnl.version, path, sizeof path);
        return true;
    }
    mica_dnnl = (mica_onednn_table){0};
    dlclose(library);
    return false;
}

/* The newer one where a system has both. Debian and Ubuntu call version 3 by a name of their own.
 */
static void open_once(void)
{
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.3.6", "libdnnl.so.2"};
    const char *value = mica_env(MICA_ENV_ONEDNN);
    opened_after = mica_forks();
    char text[336] = "";
    mica_text looked = {text, sizeof text, 0};
    if (value && !strcmp(value, "none")) {
        snprintf(absence, sizeof absence, "oneDNN is not used: " VARIABLE "=none");
        return;
    }
    if (!mica_onednn_enter()) {
        snprintf(absence, sizeof absence, "oneDNN is not opened: the process ends");
        return;
    }
    for (size_t i = 0; i < (value ? 1 : sizeof names / sizeof *names) && !usable; i++)
        usable = try_name(value, names[i], &looked);
    mica_onednn_leave();
    if (usable)
        mica_log(MICA_LOG_INFO, "oneDNN %s from %s", version, path);
    else
        snprintf(absence, sizeof absence,
                 "oneDNN is not here: %s. Install it (Debian 12: libdnnl2, 13: libdnnl3.6) or "
                 "name its path in " VARIABLE,
                 text);
}

mica_status mica_onednn_load(mica_why *why)
{
    pthread_once(&once, open_once);
    if (!usable) return mica_refuse(why, "%s", absence);
    if (mica_onednn_usable()) return MICA_OK;
    if (!mica_onednn_forked()) return mica_refuse(why, "oneDNN is closed: the process ends");
    (void)mica_refuse(why,
                      "this process was forked after oneDNN had been opened, whose locks may be "
                      "held by threads that are not here: mica's own engines compute");
    return MICA_FORKED_PROCESS;
}

bool mica_onednn_forked(void)
{
    return usable && opened_after != mica_forks();
}

const char *mica_onednn_version(void)
{
    pthread_once(&once, open_once);
    return usable ? version : NULL;
}

const char *mica_onednn_path(void)
{
    pthread_once(&once, open_once);
    return usable ? path : "";
}
