/* SPDX-License-Identifier: Apache-2.0
 * The compiler of the GPU played by the CPU, within the fake NVRTC: translates a kernel's text and
 * has the C++ compiler (EMU_CXX, else c++) make a shared library of it. The "cubin" is the fake
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

static int write_source(const char *source, const char *path, const char *target)
{
    char name[128];
    FILE *out = fopen(path, "w");
    if (!out) return 1;
    fprintf(out, "#define __CUDA_ARCH__ %d0\n#include \"emu_kernel.hpp\"\n", atoi(target + 3));
    emu_translate(out, source);
    for (const char *at = source; (at = emu_next_kernel(at, name));)
        fprintf(out,
                "\nextern \"C\" __attribute__((visibility(\"default\"))) void emu_entry_%s(const "
                "void *a)"
                " { emu_call(%s, a); }\n"
                "extern \"C\" __attribute__((visibility(\"default\"))) unsigned long emu_bytes_%s()"
                " { return emu_argument(%s); }\n",
                name, name, name, name);
    return fclose(out);
}

/* The log that the library reads, with made-up numbers. */
static void write_log(FILE *log, FILE *cubin, const char *source, const char *target)
{
    char name[128];
    fprintf(cubin, FAKE_CUBIN "%s\n", target);
    for (const char *at = source; (at = emu_next_kernel(at, name));) {
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

static void keep(const char *text)
{
    static int number;
    const char *folder = getenv("EMU_KEEP");
    char kept[512];
    if (!folder) return;
    snprintf(kept, sizeof kept, "%s/%d.cpp", folder,
             __atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST));
    rename(text, kept);
}

static int make(const char *source, const char *target, const char *folder, FILE *log, FILE *cubin)
{
    char text[512], library[512], errors[512], *command;
    snprintf(text, sizeof text, "%s/kernel.cpp", folder);
    snprintf(library, sizeof library, "%s/kernel.so", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    if (write_source(source, text, target)) return 1;
    /* g++ contracts products and sums, as NVRTC does, only with expensive optimizations. */
    if (asprintf(&command,
                 "%s -std=c++17 -O1 -fexpensive-optimizations -march=native -ffp-contract=fast "
                 "-fno-strict-aliasing -w -shared -fPIC -fvisibility=hidden -I%s %s -o %s %s 2> %s",
                 or_else(getenv("EMU_CXX"), "c++"), EMU_FOLDER, or_else(getenv("EMU_FLAGS"), ""),
                 library, text, errors) < 0)
        return 1;
    int code = system(command) ? 6 : 0;
    free(command);
    if (code) {
        copy_file(log, errors, false);
    } else {
        write_log(log, cubin, source, target);
        copy_file(cubin, library, true);
    }
    keep(text);
    unlink(text);
    unlink(library);
    unlink(errors);
    return code;
}

int emu_compile(const char *source, const char *target, FILE *log, FILE *cubin)
{
    char folder[] = "/tmp/mica-emu-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    int code = make(source, target, folder, log, cubin);
    rmdir(folder);
    return code;
}
