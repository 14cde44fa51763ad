/* SPDX-License-Identifier: Apache-2.0
 * Kernels of a device: looked up, compiled in parallel, loaded, counted, unloaded. */
#define _GNU_SOURCE
#include "cuda/device.h"
#include "cuda/compile/image.h"
#include "cuda/kernel.h"
#include "base/system/thread.h"

#include <sched.h>
#include <string.h>

/* Kernels that no plan holds any more stay loaded up to this many bytes of code. */
static const int64_t unused_limit = 64 << 20;
enum { MAX_THREADS = 8 };

/* One wanted kernel on its way. */
typedef struct job {
    mica_image_request request;
    mica_image *image;
    mica_kernel *kernel; /* set once it is held */
    bool built;
    mica_status status;
    char *error; /* of another thread, for this one to repeat */
} job;

/* ---- the device's table; its mutex is held ---- */

static mica_kernel *find_locked(mica_cuda *cuda, const unsigned char *digest)
{
    mica_kernel *k = cuda->kernels;
    while (k && memcmp(k->image->digest, digest, MICA_DIGEST_BYTES) != 0) k = k->next;
    return k;
}

static void delete_kernel(mica_kernel *k)
{
    if (k->module && !mica_device_lost(k->cuda->ordinal)) {
        const int mode = mica_capture_aside();
        MICA_CU_RELEASE(k->cuda, cuModuleUnload, k->module);
        mica_capture_back(mode);
    }
    mica_image_put(k->image);
    mica_release(k);
}

static void hold_locked(mica_cuda *cuda, mica_kernel *k)
{
    if (k->refs++ == 0) cuda->unused_bytes -= (int64_t)k->image->bytes;
}

/* Unloads the longest unused until the bound holds. The list is in order of last use. */
static void trim_locked(mica_cuda *cuda, int64_t limit)
{
    while (cuda->unused_bytes > limit) {
        mica_kernel **last = NULL;
        for (mica_kernel **at = &cuda->kernels; *at; at = &(*at)->next)
            if ((*at)->refs == 0) last = at;
        if (!last) return;
        mica_kernel *k = *last;
        *last = k->next;
        cuda->unused_bytes -= (int64_t)k->image->bytes;
        cuda->loaded--;
        delete_kernel(k);
    }
}

static void move_to_front_locked(mica_cuda *cuda, mica_kernel *k)
{
    mica_kernel **at = &cuda->kernels;
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    k->next = cuda->kernels;
    cuda->kernels = k;
}

/* Number of CUfunction_attribute. */
enum { MAX_DYNAMIC_SHARED = 8 };

/* Without the attribute a block has 48 KiB, static and dynamic together. */
static mica_status allow_shared_locked(mica_kernel *k, int64_t bytes)
{
    const mica_device_info *info = &k->cuda->info;
    if (bytes < 0 || bytes + k->image->shared_bytes > info->shared_bytes)
        return mica_fail(
            MICA_UNSUPPORTED,
            "kernel %s: %lld bytes of static and %lld of dynamic shared memory, %s has "
            "%lld",
            k->image->entry, (long long)k->image->shared_bytes, (long long)bytes, info->name,
            (long long)info->shared_bytes);
    if (!k->function || bytes <= k->dynamic_shared || bytes + k->image->shared_bytes <= 48 << 10)
        return MICA_OK;
    MICA_TRY(MICA_CU(k->cuda, cuFuncSetAttribute, k->function, MAX_DYNAMIC_SHARED, (int)bytes));
    k->dynamic_shared = bytes;
    return MICA_OK;
}

static mica_status load_module(mica_kernel *k)
{
    if (k->cuda->ordinal < 0) return MICA_OK;
    MICA_TRY(MICA_CU(k->cuda, cuModuleLoadData, &k->module, k->image->code));
    return MICA_CU(k->cuda, cuModuleGetFunction, &k->function, k->module, k->image->entry);
}

static bool can_overlap(const mica_cuda *cuda, const mica_image *image)
{
    enum { FIRST_DRIVER = 12030 }; /* the first that captures such launches, too */
    return image->waits && cuda->info.arch >= 90 && mica_driver.cuLaunchKernelEx &&
           mica_driver_version() >= FIRST_DRIVER;
}

/* Takes over the job's image. */
static mica_status add_locked(mica_cuda *cuda, job *j, mica_kernel **out)
{
    mica_kernel *k = mica_alloc(sizeof *k);
    if (!k) return mica_fail_memory(sizeof *k);
    k->cuda = cuda;
    k->image = j->image;
    k->name = mica_launch_name(j->image->entry);
    k->overlaps = can_overlap(cuda, j->image);
    j->image = NULL;
    k->origin = !j->built                                  ? "memory"
                : k->image->origin == MICA_IMAGE_FROM_DISK ? "disk"
                                                           : "compiled";
    mica_status status = load_module(k);
    if (status != MICA_OK) {
        delete_kernel(k);
        return status;
    }
    k->next = cuda->kernels;
    cuda->kernels = k;
    cuda->loaded++;
    cuda->unused_bytes += (int64_t)k->image->bytes;
    *out = k;
    return MICA_OK;
}

static mica_status take_locked(mica_cuda *cuda, job *j)
{
    mica_kernel *k = find_locked(cuda, j->request.digest);
    if (!k) MICA_TRY(add_locked(cuda, j, &k));
    MICA_TRY(allow_shared_locked(k, j->request.spec->dynamic_shared));
    hold_locked(cuda, k);
    j->kernel = k;
    return MICA_OK;
}

/* ---- compiling in parallel ---- */

typedef struct crew {
    job **jobs;
    int count;
    atomic_int next;
} crew;

static void *work(void *user)
{
    crew *c = user;
    for (int i = atomic_fetch_add(&c->next, 1); i < c->count; i = atomic_fetch_add(&c->next, 1)) {
        job *j = c->jobs[i];
        j->status = mica_image_get(&j->request, &j->image, &j->built);
        if (j->status != MICA_OK) j->error = mica_copy_text(mica_error());
    }
    return NULL;
}

static int thread_bound(int jobs)
{
    cpu_set_t set;
    int bound = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (bound > MAX_THREADS) bound = MAX_THREADS;
    return bound < jobs ? bound : jobs;
}

/* A thread that cannot be started is one fewer. */
static int start_threads(crew *c, pthread_t *threads, int count)
{
    int started = 0;
    while (started < count && !mica_fault_due(MICA_FAULT_ALLOC) &&
           mica_thread_start(&threads[started], 16 << 20, work, c)) /* compilers recurse */
        started++;
    return started;
}

static mica_status get_images(job **jobs, int count)
{
    crew c = {.jobs = jobs, .count = count};
    pthread_t threads[MAX_THREADS];
    int started = start_threads(&c, threads, thread_bound(count));
    if (!started) work(&c); /* on this one, then */
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        if (jobs[i]->status != MICA_OK)
            return mica_image_repeat(jobs[i]->status, jobs[i]->error, jobs[i]->request.spec->entry);
    return MICA_OK;
}

/* The same without the compiler. */
static mica_status find_images(job **jobs, int count)
{
    for (int i = 0; i < count; i++)
        MICA_TRY(mica_image_find(&jobs[i]->request, &jobs[i]->image, &jobs[i]->built));
    return MICA_OK;
}

/* ---- the calls ---- */

static bool is_among(const job *j, job *const *others, int count)
{
    for (int i = 0; i < count; i++)
        if (memcmp(j->request.digest, others[i]->request.digest, MICA_DIGEST_BYTES) == 0)
            return true;
    return false;
}

/* Those that the device does not have yet, each once, into missing[]. */
static int find_missing(mica_cuda *cuda, job *jobs, int count, job **missing)
{
    int n = 0;
    pthread_mutex_lock(&cuda->mutex);
    for (int i = 0; i < count; i++) {
        mica_kernel *k = find_locked(cuda, jobs[i].request.digest);
        if (!k) {
            if (!is_among(&jobs[i], missing, n)) missing[n++] = &jobs[i];
            continue;
        }
        /* Held already now, lest another thread's put unloads it while the others compile. */
        hold_locked(cuda, k);
        jobs[i].kernel = k;
    }
    pthread_mutex_unlock(&cuda->mutex);
    return n;
}

static mica_status load_all(mica_cuda *cuda, job *jobs, int count)
{
    bool pushed = false;
    if (cuda->ordinal >= 0) MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_OK;
    pthread_mutex_lock(&cuda->mutex);
    for (int i = 0; i < count && status == MICA_OK; i++) {
        job *j = &jobs[i];
        if (j->built && j->image) {
            cuda->hits += j->image->origin == MICA_IMAGE_FROM_DISK;
            cuda->compiles += j->image->origin == MICA_IMAGE_COMPILED;
        }
        status = j->kernel ? allow_shared_locked(j->kernel, j->request.spec->dynamic_shared)
                           : take_locked(cuda, j);
    }
    trim_locked(cuda, unused_limit);
    pthread_mutex_unlock(&cuda->mutex);
    mica_cuda_leave(cuda, pushed);
    return status;
}

typedef mica_status get_fn(job **jobs, int count);

static mica_status get_each(mica_cuda *cuda, const mica_kernel_spec *specs, int count, get_fn *get,
                            job *jobs, job **missing)
{
    for (int i = 0; i < count; i++)
        MICA_TRY(mica_image_prepare(&specs[i], cuda->target, &jobs[i].request));
    int n = find_missing(cuda, jobs, count, missing);
    if (n > 0) MICA_TRY(get(missing, n));
    return load_all(cuda, jobs, count);
}

static mica_status get_all(mica_cuda *cuda, const mica_kernel_spec *specs, int count, get_fn *get,
                           mica_kernel **kernels)
{
    memset(kernels, 0, (size_t)count * sizeof *kernels);
    MICA_TRY(mica_cuda_health(cuda));
    size_t bytes = (size_t)count * (sizeof(job) + sizeof(job *));
    job *jobs = mica_alloc(bytes);
    if (!jobs) return mica_fail_memory(bytes);
    mica_status status = get_each(cuda, specs, count, get, jobs, (job **)(void *)(jobs + count));
    for (int i = 0; i < count; i++) {
        if (status == MICA_OK)
            kernels[i] = jobs[i].kernel;
        else
            mica_kernel_put(jobs[i].kernel);
        mica_image_put(jobs[i].image);
        mica_release(jobs[i].error);
    }
    mica_release(jobs);
    return status;
}

mica_status mica_kernel_get_all(mica_cuda *cuda, const mica_kernel_spec *specs, int count,
                                mica_kernel **kernels)
{
    return get_all(cuda, specs, count, get_images, kernels);
}

mica_status mica_kernel_find_all(mica_cuda *cuda, const mica_kernel_spec *specs, int count,
                                 mica_kernel **kernels)
{
    return get_all(cuda, specs, count, find_images, kernels);
}

mica_status mica_kernel_get(mica_cuda *cuda, const mica_kernel_spec *spec, mica_kernel **kernel)
{
    return mica_kernel_get_all(cuda, spec, 1, kernel);
}

void mica_kernel_put(mica_kernel *kernel)
{
    if (!kernel || mica_forked()) return;
    mica_cuda *cuda = kernel->cuda;
    bool pushed;
    mica_cuda_enter_quietly(cuda, &pushed);
    pthread_mutex_lock(&cuda->mutex);
    if (--kernel->refs == 0) {
        move_to_front_locked(cuda, kernel);
        cuda->unused_bytes += (int64_t)kernel->image->bytes;
        trim_locked(cuda, unused_limit);
    }
    pthread_mutex_unlock(&cuda->mutex);
    mica_cuda_leave(cuda, pushed);
}

void mica_kernels_unload(mica_cuda *cuda)
{
    bool pushed;
    mica_cuda_enter_quietly(cuda, &pushed);
    while (cuda->kernels) {
        mica_kernel *k = cuda->kernels;
        cuda->kernels = k->next;
        delete_kernel(k);
    }
    mica_cuda_leave(cuda, pushed);
}

void mica_kernel_describe(const mica_kernel *k, mica_kernel_info *info)
{
    const mica_image *image = k->image;
    *info = (mica_kernel_info){.file = image->file,
                               .entry = image->entry,
                               .prologue = image->prologue,
                               .registers = image->registers,
                               .spill_bytes = image->spill_bytes,
                               .local_bytes = image->local_bytes,
                               .shared_bytes = image->shared_bytes,
                               .cubin_bytes = (int64_t)image->bytes,
                               .origin = k->origin,
                               .compile_ms = image->compile_ms};
}

void mica_cuda_kernel_stats(const mica_cuda *cuda, mica_stats *stats)
{
    pthread_mutex_t *mutex = (pthread_mutex_t *)&cuda->mutex;
    pthread_mutex_lock(mutex);
    stats->kernels = cuda->loaded;
    stats->kernel_hits = cuda->hits;
    stats->kernel_compiles = cuda->compiles;
    pthread_mutex_unlock(mutex);
}
