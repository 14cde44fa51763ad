/* SPDX-License-Identifier: Apache-2.0
 * The compiler of the GPU played by the CPU, in NVRTC's place: translates a kernel's text and has
 * the C++ compiler (EMU_CXX, else c++) make a shared library of it. The "cubin" is the fake
 * driver's, followed by that library. EMU_FLAGS are options more, EMU_KEEP a folder for what is
 * compiled. */
#define _GNU_SOURCE
#include "emu_text.h"
#include "../fake/fake.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct program {
    char *source, *name, *log, *cubin;
    size_t log_bytes, cubin_bytes;
} program;

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
    program *p = headers ? NULL : calloc(1, sizeof *p);
    if (!p) return headers ? 3 : 1;
    p->source = strdup(source);
    p->name = strdup(name);
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
    return 0;
}

static const char *target_of(int count, const char *const *options)
{
    static const char key[] = "--gpu-architecture=";
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], key, strlen(key))) return options[i] + strlen(key);
    return "sm_0";
}

static int write_source(const program *p, const char *path, const char *target)
{
    char name[128];
    FILE *out = fopen(path, "w");
    if (!out) return 1;
    fprintf(out, "#define __CUDA_ARCH__ %d0\n#include \"emu_kernel.hpp\"\n", atoi(target + 3));
    emu_translate(out, p->source);
    for (const char *at = p->source; (at = emu_next_kernel(at, name));)
        fprintf(out,
                "\nextern \"C\" __attribute__((visibility(\"default\"))) void emu_entry_%s(const "
                "void *a)"
                " { emu_call(%s, a); }\n",
                name, name);
    return fclose(out);
}

/* The log that the library reads, with made-up numbers. */
static void write_log(FILE *log, FILE *cubin, const program *p, const char *target)
{
    char name[128];
    fprintf(cubin, FAKE_CUBIN "%s\n", target);
    for (const char *at = p->source; (at = emu_next_kernel(at, name));) {
        fprintf(log,
                "ptxas info    : Compiling entry function '%s' for '%s'\n"
                "ptxas info    : Used 32 registers, used 1 barriers, 0 bytes smem\n",
                name, target);
        fprintf(cubin, "%s\n", name);
    }
    fputc(0, cubin);
}

/* `sized`: eight bytes with the size come first */
static void copy_file(FILE *to, const char *path, bool sized)
{
    char piece[4096];
    struct stat st;
    FILE *from = fopen(path, "r");
    if (sized && from && fstat(fileno(from), &st) == 0) {
        uint64_t bytes = (uint64_t)st.st_size;
        fwrite(&bytes, sizeof bytes, 1, to);
    }
    for (size_t n; from && (n = fread(piece, 1, sizeof piece, from)) > 0;) fwrite(piece, 1, n, to);
    if (from) fclose(from);
}

static const char *or_else(const char *value, const char *other)
{
    return value && *value ? value : other;
}

static int make(program *p, const char *target, const char *folder)
{
    char source[512], library[512], errors[512], *command;
    snprintf(source, sizeof source, "%s/kernel.cpp", folder);
    snprintf(library, sizeof library, "%s/kernel.so", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    FILE *log = open_memstream(&p->log, &p->log_bytes);
    FILE *cubin = open_memstream(&p->cubin, &p->cubin_bytes);
    if (!log || !cubin || write_source(p, source, target)) abort();
    if (asprintf(
            &command,
            "%s -std=c++17 -O1 -march=native -ffp-contract=fast -fno-strict-aliasing -w -shared "
            "-fPIC -fvisibility=hidden -I%s %s -o %s %s 2> %s",
            or_else(getenv("EMU_CXX"), "c++"), EMU_FOLDER, or_else(getenv("EMU_FLAGS"), ""),
            library, source, errors) < 0)
        abort();
    int code = system(command) ? 6 : 0;
    free(command);
    if (code)
        copy_file(log, errors, false);
    else
        write_log(log, cubin, p, target);
    if (!code) copy_file(cubin, library, true);
    fclose(log);
    fclose(cubin);
    const char *keep = getenv("EMU_KEEP");
    char kept[512];
    static int number;
    if (keep) {
        snprintf(kept, sizeof kept, "%s/%d.cpp", keep,
                 __atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST));
        rename(source, kept);
    }
    unlink(source);
    unlink(library);
    unlink(errors);
    return code;
}

EXPORT int nvrtcCompileProgram(void *handle, int count, const char *const *options)
{
    char folder[] = "/tmp/mica-emu-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    int code = make(handle, target_of(count, options), folder);
    rmdir(folder);
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
    *bytes = ((program *)handle)->log_bytes + 1;
    return 0;
}

EXPORT int nvrtcGetProgramLog(void *handle, char *log)
{
    program *p = handle;
    memcpy(log, p->log, p->log_bytes + 1);
    return 0;
}
