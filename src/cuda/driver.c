/* SPDX-License-Identifier: Apache-2.0
 * Opening libcuda.so.1, and what its result codes mean. */
#define _GNU_SOURCE
#include "cuda/driver.h"
#include "cuda/device.h"
#include "base/env.h"
#include "base/system/library.h"
#include "base/log.h"
#include "base/text.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mica_driver_table mica_driver;

static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;
static void *library;
static char library_path[512];
static int version;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_bool forked;

static void in_child(void)
{
    atomic_store(&forked, true);
}

static void watch_fork(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void mica_fork_watch(void)
{
    pthread_once(&fork_once, watch_fork);
}

bool mica_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

mica_status mica_fork_check(void)
{
    if (!mica_forked()) return MICA_OK;
    return mica_fail(MICA_FORKED_PROCESS, "this process was forked after the CUDA backend had been "
                                          "used; start it with posix_spawn, or fork before the "
                                          "first use of a GPU");
}

/* The first symbol that is required and missing, or NULL. */
static const char *fill_table(void)
{
    /* A function pointer is read through an object pointer, as POSIX asks for. */
#define MICA_X(name, symbol, prototype)                                                            \
    *(void **)&mica_driver.name = dlsym(library, symbol);                                          \
    if (!mica_driver.name) return symbol;
    MICA_DRIVER_CALLS(MICA_X)
#undef MICA_X
#define MICA_X(name, symbol, prototype) *(void **)&mica_driver.name = dlsym(library, symbol);
    MICA_DRIVER_LATE_CALLS(MICA_X)
#undef MICA_X
    return NULL;
}

static mica_status open_library(void)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    char text[1024] = "";
    mica_text looked = {text, sizeof text, 0};
    library = mica_library_open("MICA_CUDA_DRIVER", mica_env(MICA_ENV_CUDA_DRIVER), names, &looked);
    if (!library)
        return mica_fail(MICA_NO_DEVICE,
                         "no CUDA driver: %s. Install NVIDIA's driver, or name its libcuda.so.1 in "
                         "MICA_CUDA_DRIVER",
                         text);
    const char *missing = fill_table();
    if (missing) {
        dlclose(library);
        library = NULL;
        return mica_fail(MICA_NO_DEVICE, "the CUDA driver has no %s: it is too old", missing);
    }
    mica_library_path(*(void **)&mica_driver.cuInit, library_path, sizeof library_path);
    return MICA_OK;
}

static mica_status load(void)
{
    if (!library) MICA_TRY(open_library());
    MICA_TRY(MICA_CU(NULL, cuInit, 0));
    MICA_TRY(MICA_CU(NULL, cuDriverGetVersion, &version));
    mica_log(MICA_LOG_INFO, "driver %s, CUDA %d.%d", library_path, version / 1000,
             version % 1000 / 10);
    atomic_store(&loaded, true);
    return MICA_OK;
}

mica_status mica_driver_load(void)
{
    MICA_TRY(mica_fork_check());
    if (atomic_load(&loaded)) return MICA_OK;
    mica_fork_watch();
    pthread_mutex_lock(&load_mutex);
    mica_status status = atomic_load(&loaded) ? MICA_OK : load();
    pthread_mutex_unlock(&load_mutex);
    return status;
}

const char *mica_driver_path(void)
{
    return atomic_load(&loaded) ? library_path : "";
}

int mica_driver_version(void)
{
    return atomic_load(&loaded) ? version : 0;
}

/* ---- result codes ---- */

/* What a code means to the caller, where that is not plain DEVICE_ERROR. A lost device stays lost
 * for the life of the process: destroying the context does not help. */
static const struct meaning {
    int code;
    mica_status status;
    const char *remedy;
} meanings[] = {
    {2, MICA_OUT_OF_DEVICE_MEMORY, "free device memory, or ask for less"},
    {3, MICA_DEVICE_ERROR, "the driver is not initialised: was this process forked?"},
    {4, MICA_DEVICE_ERROR, "the driver has shut down: the process is exiting"},
    {34, MICA_NO_DEVICE, "this libcuda.so.1 is the stub for linking; install NVIDIA's driver"},
    {46, MICA_NO_DEVICE, "another process holds the device exclusively"},
    {100, MICA_NO_DEVICE, "no GPU is visible: see CUDA_VISIBLE_DEVICES and nvidia-smi"},
    {101, MICA_NO_DEVICE, "no GPU has that number: see CUDA_VISIBLE_DEVICES and nvidia-smi"},
    {200, MICA_DEVICE_ERROR,
     "the driver does not know this kind of cubin: is it older than NVRTC?"},
    {209, MICA_DEVICE_ERROR, "the cubin is for another architecture, or newer than the driver"},
    {214, MICA_DEVICE_LOST, NULL},
    {220, MICA_DEVICE_LOST, NULL},
    {222, MICA_DEVICE_ERROR, "the driver is older than NVRTC: update it, or set MICA_NVRTC"},
    {226, MICA_DEVICE_LOST, NULL},
    {304, MICA_DEVICE_ERROR, "the operating system refused: see dmesg and ulimit -a"},
    {700, MICA_DEVICE_LOST, NULL},
    {701, MICA_DEVICE_ERROR, "the block needs more registers or shared memory than there are"},
    {702, MICA_DEVICE_LOST, NULL},
    {709, MICA_DEVICE_LOST, NULL},
    {710, MICA_DEVICE_LOST, NULL},
    {714, MICA_DEVICE_LOST, NULL},
    {715, MICA_DEVICE_LOST, NULL},
    {716, MICA_DEVICE_LOST, NULL},
    {717, MICA_DEVICE_LOST, NULL},
    {718, MICA_DEVICE_LOST, NULL},
    {719, MICA_DEVICE_LOST, NULL},
    {720, MICA_DEVICE_ERROR,
     "the kernel's blocks do not fit on the device at once: does MPS set a part of it aside?"},
    {721, MICA_DEVICE_LOST, NULL},
    {802, MICA_NO_DEVICE, "the system is not ready: is the fabric manager running?"},
    {803, MICA_NO_DEVICE, "kernel module and libcuda.so.1 differ in version: reboot or reinstall"},
    {804, MICA_NO_DEVICE, "the forward-compatibility libcuda.so.1 does not take this GPU: drop it"},
};

static const struct meaning *find_meaning(int code)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].code == code) return &meanings[i];
    return NULL;
}

/* One record per device of the process, not per mica_cuda: opening it again does not mend it. */
static struct {
    atomic_bool lost;
    _Atomic(const char *) launched; /* last, by any thread; NULL: nothing yet */
    char event[320];
} devices[MICA_MAX_DEVICES];
static pthread_mutex_t lost_mutex = PTHREAD_MUTEX_INITIALIZER;

bool mica_device_lost(int ordinal)
{
    return ordinal >= 0 && atomic_load_explicit(&devices[ordinal].lost, memory_order_acquire);
}

mica_status mica_device_lost_check(int ordinal)
{
    if (!mica_device_lost(ordinal)) return MICA_OK;
    return mica_fail(MICA_DEVICE_LOST,
                     "cuda:%d is lost to this process since %s; start a new process (the CPU "
                     "backend still works)",
                     ordinal, devices[ordinal].event);
}

/* Kernels are few and known by name, so that a fixed number suffices; the table only grows. */
enum { MAX_NAMES = 256, NAME_BYTES = 64 };
static char names[MAX_NAMES][NAME_BYTES];
static int name_count;

const char *mica_launch_name(const char *entry)
{
    const char *found = NULL;
    pthread_mutex_lock(&lost_mutex);
    for (int i = 0; i < name_count && !found; i++)
        if (!strncmp(names[i], entry, NAME_BYTES - 1)) found = names[i];
    if (!found && name_count < MAX_NAMES) {
        snprintf(names[name_count], NAME_BYTES, "%s", entry);
        found = names[name_count++];
    }
    pthread_mutex_unlock(&lost_mutex);
    return found ? found : "one of many";
}

void mica_device_launched(int ordinal, const char *launch_name)
{
    atomic_store_explicit(&devices[ordinal].launched, launch_name, memory_order_relaxed);
}

static void mark_lost(int ordinal, const char *event)
{
    pthread_mutex_lock(&lost_mutex);
    if (!atomic_load(&devices[ordinal].lost)) {
        const char *kernel = atomic_load(&devices[ordinal].launched);
        snprintf(devices[ordinal].event, sizeof devices[ordinal].event, "%s%s%s%s", event,
                 kernel ? ", where the kernel launched last was " : "", kernel ? kernel : "",
                 kernel ? " (with MICA_SYNC=1 the kernel at fault is the last one)" : "");
        atomic_store_explicit(&devices[ordinal].lost, true, memory_order_release);
        mica_log(MICA_LOG_ERROR, "cuda:%d is lost: %s", ordinal, devices[ordinal].event);
    }
    pthread_mutex_unlock(&lost_mutex);
}

static void describe(const char *call, int code, char *text, size_t size)
{
    const char *name = NULL;
    if (mica_driver.cuGetErrorName && mica_driver.cuGetErrorName(code, &name) != 0) name = NULL;
    snprintf(text, size, "%s gave %s (%d)", call, name ? name : "an unknown error", code);
}

mica_status mica_driver_failed(const mica_cuda *cuda, const char *call, int code)
{
    char event[160];
    describe(call, code, event, sizeof event);
    const struct meaning *meaning = find_meaning(code);
    mica_status status = meaning ? meaning->status : MICA_DEVICE_ERROR;
    if (status == MICA_DEVICE_LOST && cuda) {
        mark_lost(cuda->ordinal, event);
        return mica_device_lost_check(cuda->ordinal);
    }
    bool remedy = meaning && meaning->remedy;
    return mica_fail(status, "%s%s%s%s%s", cuda ? cuda->info.name : "", cuda ? ": " : "", event,
                     remedy ? ": " : "", remedy ? meaning->remedy : "");
}

void mica_driver_released(const mica_cuda *cuda, const char *call, int code)
{
    if (code == 0 || code == 4) return;
    char event[160];
    describe(call, code, event, sizeof event);
    const struct meaning *meaning = find_meaning(code);
    if (meaning && meaning->status == MICA_DEVICE_LOST && cuda)
        mark_lost(cuda->ordinal, event);
    else
        mica_log(MICA_LOG_WARN, "%s", event);
}
