/* SPDX-License-Identifier: Apache-2.0
 * The fake compiler: knows the kernels of a source by "__global__ void NAME(", calls "wrong_name"
 * an error, and makes a cubin that the fake driver loads. With FAKE_NVRTC_COUNT=path it adds a byte
 * to that file for each compilation, so that several processes can be counted. "PADDING = n" in the
 * source makes the cubin n bytes longer. FAKE_NVRTC_SPILLS="a b c" are the bytes that the first,
 * the second, ... compilation of a process stores when registers run out, and where it stores some
 * it loads 32; the last holds for the rest. FAKE_NVRTC_SMEM is how much shared memory kernels have.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct program {
    char *source, *name, *log, *cubin;
    size_t cubin_bytes;
} program;

static atomic_long programs, compiles, running, most_running;
static atomic_int sleep_ms;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char failing[128];

EXPORT fake_programs_fn fake_programs;
EXPORT fake_compiles_fn fake_compiles;
EXPORT fake_compiles_at_once_fn fake_compiles_at_once;
EXPORT fake_compile_ms_fn fake_compile_ms;
EXPORT fake_compile_fail_fn fake_compile_fail;

long fake_programs(void)
{
    return atomic_load(&programs);
}

long fake_compiles(void)
{
    return atomic_load(&compiles);
}

long fake_compiles_at_once(void)
{
    return atomic_load(&most_running);
}

void fake_compile_ms(int ms)
{
    atomic_store(&sleep_ms, ms);
}

void fake_compile_fail(const char *name)
{
    pthread_mutex_lock(&mutex);
    snprintf(failing, sizeof failing, "%s", name);
    pthread_mutex_unlock(&mutex);
}

static bool fails(const char *name)
{
    pthread_mutex_lock(&mutex);
    const bool yes = *failing && strstr(name, failing);
    pthread_mutex_unlock(&mutex);
    return yes;
}

EXPORT const char *nvrtcGetErrorString(int code)
{
    return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OF_SOME_KIND";
}

EXPORT int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

EXPORT int nvrtcCreateProgram(void **out, const char *source, const char *name, int headers,
                              const char *const *texts, const char *const *names)
{
    (void)texts, (void)names;
    if (headers != 0) return 3;
    program *p = calloc(1, sizeof *p);
    if (!p) return 1;
    p->source = strdup(source);
    p->name = strdup(name);
    atomic_fetch_add(&programs, 1);
    *out = p;
    return 0;
}

EXPORT int nvrtcDestroyProgram(void **out)
{
    program *p = *out;
    free(p->source);
    free(p->name);
    free(p->log);
    free(p->cubin);
    free(p);
    *out = NULL;
    atomic_fetch_sub(&programs, 1);
    return 0;
}

static void count_compile(void)
{
    const char *path = getenv("FAKE_NVRTC_COUNT");
    atomic_fetch_add(&compiles, 1);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && write(fd, "x", 1) != 1) abort();
    if (fd >= 0) close(fd);
}

static const char *target_of(int count, const char *const *options)
{
    static const char key[] = "--gpu-architecture=";
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], key, strlen(key))) return options[i] + strlen(key);
    return NULL;
}

static long spilled_bytes(void)
{
    static atomic_long calls;
    const char *list = getenv("FAKE_NVRTC_SPILLS");
    long bytes = 16, call = atomic_fetch_add(&calls, 1);
    for (char *end; list && call >= 0; call--, list = end) {
        long next = strtol(list, &end, 10);
        if (end == list) break;
        bytes = next;
    }
    return bytes;
}

/* Past the parenthesis that closes the one before `at`. */
static const char *closed(const char *at)
{
    for (int depth = 1; *at && depth; at++) depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
    return at;
}

/* Past "void" and launch bounds in either order: a kernel's name. */
static const char *kernel_name(const char *at)
{
    for (;;) {
        at += strspn(at, " \n");
        if (!strncmp(at, "void ", 5))
            at += 5;
        else if (!strncmp(at, "__launch_bounds__(", 18))
            at = closed(at + 18);
        else
            return at;
    }
}

/* A kernel for each "__global__", with made-up numbers. */
static int pretend(const program *p, const char *target, FILE *log, FILE *cubin)
{
    long spilled = spilled_bytes();
    const char *smem = getenv("FAKE_NVRTC_SMEM");
    int code = strstr(p->source, "wrong_name") ? 6 : 0;
    if (code) fprintf(log, "%s(1): error: identifier \"wrong_name\" is undefined\n", p->name);
    fprintf(cubin, FAKE_CUBIN "%s\n", target);
    for (const char *at = p->source; !code && (at = strstr(at, "__global__ ")); at++) {
        const char *name = kernel_name(at + strlen("__global__ "));
        int length = (int)strcspn(name, "( ");
        fprintf(log,
                "ptxas info    : Compiling entry function '%.*s' for '%s'\n"
                "ptxas info    : Function properties for %.*s\n"
                "ptxas         .     8 bytes stack frame, %ld bytes spill stores, %d bytes spill "
                "loads\n"
                "ptxas info    : Used 24 registers, used 1 barriers, %s bytes smem\n",
                length, name, target, length, name, spilled, spilled ? 32 : 0,
                smem ? smem : "1024");
        fprintf(cubin, "%.*s\n", length, name);
    }
    fputc(0, cubin);
    fwrite(p->source, 1, strlen(p->source), cubin);
    const char *padding = strstr(p->source, "PADDING = ");
    for (long n = padding ? atol(padding + strlen("PADDING = ")) : 0; n > 0; n--) fputc(0, cubin);
    return code;
}

EXPORT int nvrtcCompileProgram(void *handle, int count, const char *const *options)
{
    program *p = handle;
    size_t log_bytes, cubin_bytes;
    const char *target = target_of(count, options);
    int ms = atomic_load(&sleep_ms);
    struct timespec pause = {ms / 1000, 1000000L * (ms % 1000)};
    long now = atomic_fetch_add(&running, 1) + 1, most = atomic_load(&most_running);
    while (most < now && !atomic_compare_exchange_weak(&most_running, &most, now)) continue;
    count_compile();
    nanosleep(&pause, NULL);
    atomic_fetch_sub(&running, 1);
    FILE *log = open_memstream(&p->log, &log_bytes);
    FILE *cubin = open_memstream(&p->cubin, &cubin_bytes);
    if (!log || !cubin || !target) abort();
    int code = 6;
    if (fails(p->name))
        fprintf(log, "%s(1): error: it is told to fail\n", p->name);
    else
        code = emu_compile ? emu_compile(p->source, target, log, cubin)
                           : pretend(p, target, log, cubin);
    fclose(log);
    fclose(cubin);
    p->cubin_bytes = cubin_bytes;
    return code;
}

EXPORT int nvrtcGetCUBINSize(void *handle, size_t *bytes)
{
    *bytes = ((program *)handle)->cubin_bytes;
    return 0;
}

EXPORT int nvrtcGetCUBIN(void *handle, char *code)
{
    program *p = handle;
    memcpy(code, p->cubin, p->cubin_bytes);
    return 0;
}

EXPORT int nvrtcGetProgramLogSize(void *handle, size_t *bytes)
{
    *bytes = strlen(((program *)handle)->log) + 1;
    return 0;
}

EXPORT int nvrtcGetProgramLog(void *handle, char *log)
{
    strcpy(log, ((program *)handle)->log);
    return 0;
}
