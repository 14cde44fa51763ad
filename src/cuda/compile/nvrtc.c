/* SPDX-License-Identifier: Apache-2.0
 * Opening libnvrtc and compiling with one fixed list of options. */
#define _GNU_SOURCE
#include "cuda/compile/nvrtc.h"
#include "cuda/driver.h"
#include "cuda/compile/nvrtc_search.h"
#include "base/env.h"
#include "base/system/library.h"
#include "base/log.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* X(symbol, prototype) */
#define NVRTC_CALLS(X)                                                                             \
    X(nvrtcVersion, (int *, int *))                                                                \
    X(nvrtcCreateProgram,                                                                          \
      (void **, const char *, const char *, int, const char *const *, const char *const *))        \
    X(nvrtcDestroyProgram, (void **))                                                              \
    X(nvrtcCompileProgram, (void *, int, const char *const *))                                     \
    X(nvrtcGetCUBINSize, (void *, size_t *))                                                       \
    X(nvrtcGetCUBIN, (void *, char *))                                                             \
    X(nvrtcGetProgramLogSize, (void *, size_t *))                                                  \
    X(nvrtcGetProgramLog, (void *, char *))

static struct {
#define MICA_X(name, prototype) int(*name) prototype;
    NVRTC_CALLS(MICA_X)
#undef MICA_X
    const char *(*nvrtcGetErrorString)(int);
} nvrtc;

static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;
static void *library;
static char library_path[512], build_id[80];
static int version;

/* NVRTC_ERROR_OUT_OF_MEMORY stands for an injected fault. */
#define NVRTC(call, ...)                                                                           \
    check(#call, mica_fault_due(MICA_FAULT_DRIVER) ? 1 : nvrtc.call(__VA_ARGS__))

static mica_status check(const char *call, int code)
{
    if (code == 0) return MICA_OK;
    return mica_fail(code == 1 ? MICA_OUT_OF_MEMORY : MICA_COMPILE_FAILED, "%s gave %s (%d)", call,
                     nvrtc.nvrtcGetErrorString(code), code);
}

/* Finds the object that holds nvrtcVersion and copies its build id as hexadecimal digits. */
static int find_build_id(struct dl_phdr_info *object, size_t size, void *user)
{
    (void)size;
    uintptr_t wanted = (uintptr_t)user;
    bool holds = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + p->p_vaddr;
        holds |= p->p_type == PT_LOAD && wanted >= start && wanted < start + p->p_memsz;
    }
    for (int i = 0; holds && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type != PT_NOTE) continue;
        const char *at = (const char *)(object->dlpi_addr + p->p_vaddr);
        const char *end = at + p->p_memsz;
        while (end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)(const void *)at;
            const unsigned char *id =
                (const unsigned char *)at + sizeof *note + ((note->n_namesz + 3u) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz < sizeof build_id / 2)
                for (unsigned k = 0; k < note->n_descsz; k++)
                    snprintf(build_id + 2 * k, 3, "%02x", id[k]);
            at = (const char *)id + ((note->n_descsz + 3u) & ~3u);
        }
    }
    return holds;
}

/* NVRTC opens its builtins by bare name and ignores its own RPATH: have them loaded already. */
static void preload_builtins(int major, int minor)
{
    char path[640];
    const char *slash = strrchr(library_path, '/');
    if (!slash) return;
    snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - library_path),
             library_path, major, minor);
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) mica_log(MICA_LOG_DEBUG, "no %s", path);
}

/* The first symbol that is missing, or NULL. */
static const char *fill_table(void)
{
#define MICA_X(name, prototype)                                                                    \
    *(void **)&nvrtc.name = dlsym(library, #name);                                                 \
    if (!nvrtc.name) return #name;
    NVRTC_CALLS(MICA_X)
#undef MICA_X
    *(void **)&nvrtc.nvrtcGetErrorString = dlsym(library, "nvrtcGetErrorString");
    return nvrtc.nvrtcGetErrorString ? NULL : "nvrtcGetErrorString";
}

static mica_status open_library(void)
{
    char text[3072] = "";
    mica_text looked = {text, sizeof text, 0};
    const char *value = mica_env(MICA_ENV_NVRTC);
    library = mica_library_open("MICA_NVRTC", value, mica_nvrtc_names, &looked);
    if (!library && !value) library = mica_nvrtc_search("/usr/local", &looked);
    if (!library)
        return mica_fail(MICA_NO_COMPILER,
                         "NVRTC was not found: %s. `pip install nvidia-cuda-nvrtc` brings it "
                         "(nvidia-cuda-nvrtc-cu12 for drivers before 580; with --prefix ~/.local "
                         "where pip refuses), or MICA_NVRTC names its path",
                         text);
    const char *missing = fill_table();
    if (missing) {
        dlclose(library);
        library = NULL;
        return mica_fail(MICA_NO_COMPILER, "NVRTC has no %s: it is too old", missing);
    }
    void *inside = *(void **)&nvrtc.nvrtcVersion;
    mica_library_path(inside, library_path, sizeof library_path);
    dl_iterate_phdr(find_build_id, inside);
    return MICA_OK;
}

static mica_status load(void)
{
    int major, minor;
    if (!library) MICA_TRY(open_library());
    MICA_TRY(NVRTC(nvrtcVersion, &major, &minor));
    preload_builtins(major, minor);
    version = 1000 * major + 10 * minor;
    mica_log(MICA_LOG_INFO, "NVRTC %s, %d.%d, build %s", library_path, major, minor, build_id);
    atomic_store(&loaded, true);
    return MICA_OK;
}

mica_status mica_nvrtc_load(void)
{
    if (atomic_load(&loaded)) return MICA_OK;
    pthread_mutex_lock(&load_mutex);
    mica_status status = atomic_load(&loaded) ? MICA_OK : load();
    pthread_mutex_unlock(&load_mutex);
    return status;
}

const char *mica_nvrtc_path(void)
{
    return atomic_load(&loaded) ? library_path : "";
}

int mica_nvrtc_version(void)
{
    return atomic_load(&loaded) ? version : 0;
}

const char *mica_nvrtc_build_id(void)
{
    return atomic_load(&loaded) ? build_id : "";
}

/* ---- compiling ---- */

/* Of every compile. ptxas -v is where registers and spills come from. NVRTC's own disk cache is
 * left out where it exists: ours is checked, its own is not under our control. */
static const char *const options[] = {"--std=c++17", "-default-device", "--ptxas-options=-v",
                                      "--no-cache"};
static int option_count(void)
{
    int count = (int)(sizeof options / sizeof *options);
    return version >= 12090 ? count : count - 1;
}

void mica_nvrtc_identity(mica_text *text)
{
    mica_text_add(text, "nvrtc %d %s\noptions", version, build_id);
    for (int i = 0; i < option_count(); i++) mica_text_add(text, " %s", options[i]);
    mica_text_add(text, "\n");
}

/* Fails with the log, its first error on top. */
static mica_status compile_failed(const char *name, const char *target, const char *log)
{
    const char *error = strstr(log, "error");
    while (error && error > log && error[-1] != '\n') error--;
    int length = error ? (int)strcspn(error, "\n") : 0;
    return mica_fail(MICA_COMPILE_FAILED, "%.*s%s%s for %s did not compile; log:\n%s", length,
                     error ? error : "", length ? "\n" : "", name, target, log);
}

static mica_status get_log(void *program, char **log)
{
    size_t bytes = 0;
    MICA_TRY(NVRTC(nvrtcGetProgramLogSize, program, &bytes));
    *log = mica_alloc(bytes + 1);
    if (!*log) return mica_fail_memory(bytes + 1);
    return NVRTC(nvrtcGetProgramLog, program, *log);
}

static mica_status get_code(void *program, mica_cubin *cubin)
{
    MICA_TRY(NVRTC(nvrtcGetCUBINSize, program, &cubin->bytes));
    cubin->code = mica_alloc(cubin->bytes);
    if (!cubin->code) return mica_fail_memory(cubin->bytes);
    return NVRTC(nvrtcGetCUBIN, program, cubin->code);
}

static mica_status compile(void *program, const char *name, const char *target, mica_cubin *cubin)
{
    char architecture[48];
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", target);
    const char *given[8] = {architecture};
    for (int i = 0; i < option_count(); i++) given[1 + i] = options[i];
    mica_status status = NVRTC(nvrtcCompileProgram, program, 1 + option_count(), given);
    if (status == MICA_OUT_OF_MEMORY) return status;
    MICA_TRY(get_log(program, &cubin->log));
    if (status != MICA_OK) return compile_failed(name, target, cubin->log);
    return get_code(program, cubin);
}

mica_status mica_nvrtc_compile(const char *name, const char *source, const char *target,
                               mica_cubin *cubin)
{
    void *program = NULL;
    *cubin = (mica_cubin){0};
    MICA_TRY(mica_nvrtc_load());
    MICA_TRY(NVRTC(nvrtcCreateProgram, &program, source, name, 0, NULL, NULL));
    mica_status status = compile(program, name, target, cubin);
    nvrtc.nvrtcDestroyProgram(&program);
    if (status != MICA_OK) {
        mica_release(cubin->code);
        mica_release(cubin->log);
        *cubin = (mica_cubin){0};
    }
    return status;
}
