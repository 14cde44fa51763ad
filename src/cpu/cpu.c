/* SPDX-License-Identifier: Apache-2.0
 * The CPU as a device. */
#include "cpu/cpu.h"
#include "base/env.h"
#include "cpu/contention.h"
#include "cpu/quota.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool forked;
static int thread_limit; /* 0: OpenMP's number */
static int usable;       /* CPUs */
static int proposed;     /* threads by OpenMP, if nobody says how many */
static bool wide;

static void mark_forked(void)
{
    /* The parent's OpenMP pool does not exist here; waking it would wait for ever. */
    atomic_store(&forked, true);
    omp_set_num_threads(1);
}

static bool has_wide_vectors(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

static void start(void)
{
    const char *vectors = mica_env(MICA_ENV_VECTORS);
    wide = has_wide_vectors() && !(vectors && !strcmp(vectors, "narrow"));
    thread_limit = (int)mica_env_number(MICA_ENV_THREADS, 0);
    usable = mica_cpu_usable("");
    proposed = omp_get_num_procs(); /* asks the system each time */
    const char *wait = mica_env(MICA_ENV_WAIT);
    bool sleep = wait && !strcmp(wait, "sleep");
    if (sleep || (wait && !strcmp(wait, "spin"))) mica_contention_fix(sleep);
    /* clang's OpenMP holds a lock across a fork and frees it in a handler of its own, which has to
     * be registered, and so to run, before ours */
    (void)omp_get_max_threads();
    pthread_atfork(NULL, NULL, mark_forked);
}

/* OpenMP's number, unless nobody chose it: it counts CPUs that a quota takes away. */
static int default_threads(void)
{
    int threads = omp_get_max_threads();
    return threads == proposed && usable < threads ? usable : threads;
}

int mica_cpu_threads(void)
{
    pthread_once(&once, start);
    if (atomic_load_explicit(&forked, memory_order_relaxed)) return 1;
    int threads = thread_limit > 0 ? thread_limit : default_threads();
    (void)mica_contention_watch(threads);
    return threads;
}

static int threads_worth(double worth, int threads)
{
    return worth >= threads ? threads : worth < 2 ? 1 : (int)worth;
}

/* Waking threads that spin costs some microseconds, what one core does to 64 KiB; threads that
 * sleep, some tens, what it does to a megabyte or half of one. */
enum { SPINNING_BYTES = 1 << 16, SLEEPING_BYTES = 1 << 20 };

int mica_cpu_threads_planned(double bytes)
{
    return threads_worth(bytes / SPINNING_BYTES, mica_cpu_threads());
}

int mica_cpu_threads_for(double bytes)
{
    int threads = mica_cpu_threads();
    return threads_worth(bytes / (mica_contention_seen() ? SLEEPING_BYTES : SPINNING_BYTES),
                         threads);
}

bool mica_cpu_is_wide(void)
{
    pthread_once(&once, start);
    return wide;
}

/* The widest vectors are part of a model: servers' names for it often leave the generation out. */
static const char *instruction_set(void)
{
#if defined(__x86_64__)
    if (has_wide_vectors()) return ", AVX-512";
    if (__builtin_cpu_supports("avx2")) return ", AVX2";
#endif
    return "";
}

static void read_model(char *model, size_t size)
{
    snprintf(model, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(model, size, "%s%s", colon + 1 + strspn(colon + 1, " "), instruction_set());
        break;
    }
    if (f) fclose(f);
}

static double vector_flops_per_cycle(void)
{
#if defined(__x86_64__)
    if (has_wide_vectors()) return 64;
    if (__builtin_cpu_supports("avx2")) return 32;
#endif
    return 8;
}

/* Bytes of the third level; 0: not known. musl's sysconf does not say. */
static long third_level(void)
{
#ifdef _SC_LEVEL3_CACHE_SIZE
    return sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
    long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && fscanf(f, "%ldK", &kib) != 1) kib = 0;
    if (f) fclose(f);
    return kib << 10;
#endif
}

void mica_cpu_device_info(mica_device_info *info)
{
    *info = (mica_device_info){.name = "cpu", .units = mica_cpu_threads()};
    read_model(info->model, sizeof info->model);
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    long cache = third_level();
    info->cache_bytes = cache > 0 ? cache : 1 << 21;
    /* Models, good enough to order engines: 3 GHz, and what two to eight cores share of memory. */
    int cores = info->units < 8 ? info->units : 8;
    info->copy_gbps = 12.0 * cores;
    info->f32_tflops = 3e-3 * vector_flops_per_cycle() * info->units;
    info->bf16_tflops = info->f32_tflops;
}
