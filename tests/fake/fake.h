/* SPDX-License-Identifier: Apache-2.0
 * A driver and a compiler without a GPU: they keep books, copy on the host, launch nothing, and
 * fail when told to. Chosen through MICA_CUDA_DRIVER and MICA_NVRTC; these functions are found by
 * dlsym in the same libraries. */
#ifndef MICA_TESTS_FAKE_FAKE_H
#define MICA_TESTS_FAKE_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FAKE_DEVICES 64

/* What is alive, and what happened. */
typedef struct fake_books {
    long allocations, modules, contexts, streams, events; /* alive */
    long graphs, execs;                                   /* alive: captured, instantiated */
    long captured, replayed, changed; /* nodes: captured; launched with a graph; set anew */
    long synchronized;                /* waits for streams and events */
    long pushed;                      /* depth of this thread's context stack */
    long calls, launches, errors;     /* errors: calls that did not give 0 */
} fake_books;

typedef struct fake_launch {
    char kernel[64];
    unsigned grid[3], block[3], shared, cluster;
    bool overlaps; /* may start before what was launched before it has ended */
    bool cooperative;
    void *stream;
    unsigned char args[16]; /* the first bytes of the one parameter */
    int device;
} fake_launch;

/* libcuda.so.1 */
typedef void fake_get_books_fn(fake_books *books); /* "fake_get_books" */
/* "fake_get_launch": the last one. */
typedef void fake_get_launch_fn(fake_launch *launch);
/* "fake_fail": the n-th call of that name from now on (n = 1: the next; "*": any) gives code.
 * Sticky: every later call of whatever name gives it, too. n = 0: back to health. */
typedef void fake_fail_fn(const char *call, int code, long n, int sticky);
/* "fake_limit": bytes that the devices have. */
typedef void fake_limit_fn(unsigned long bytes);
/* "fake_attribute": the dynamic shared memory that the last cuFuncSetAttribute allowed. */
typedef int fake_attribute_fn(void);

/* libnvrtc.so.13: programs alive; compilations since the start. */
typedef long fake_programs_fn(void); /* "fake_programs" */
typedef long fake_compiles_fn(void); /* "fake_compiles" */
/* "fake_compiles_at_once": the most that ran side by side since the start. */
typedef long fake_compiles_at_once_fn(void);
/* "fake_compile_ms": how long a compilation takes. */
typedef void fake_compile_ms_fn(int ms);
/* "fake_compile_fail": sources with that in their names do not compile; "": all do again. */
typedef void fake_compile_fail_fn(const char *name);

/* What the compiler makes and the driver loads: this text, then target and kernel names in lines
 * and a \0; then filling or, for the driver that plays a GPU, eight bytes with the size of a shared
 * library, and the library. */
#define FAKE_CUBIN "FAKE CUBIN\n"

/* A tensor map as the driver writes it. */
typedef struct fake_map {
    uint8_t type, im2col, swizzle, rank;
    uint16_t channels, pixels;
    uint64_t address;
    uint32_t last[5]; /* dimensions minus 1 */
    uint64_t strides[4];
    uint16_t box[5];
    uint8_t steps[5];
    int16_t lower[3], upper[3];
} fake_map;

/* Where these are linked in (tests/emu), kernels run; else they are NULL and nothing does. */
typedef struct fake_kernel {
    const char *name;
    void *entry;
    bool overlaps, cooperative;
} fake_kernel;
/* The compiler's part: writes ptxas's log and the cubin; 0 or an NVRTC error with its text in the
 * log. */
int emu_compile(const char *source, const char *target, FILE *log, FILE *cubin)
    __attribute__((weak));
void *emu_open(const void *code, size_t bytes) __attribute__((weak));
void *emu_entry(void *library, const char *name) __attribute__((weak));
/* of its one parameter */
size_t emu_bytes(void *library, const char *name) __attribute__((weak));
void emu_close(void *library) __attribute__((weak));
/* 0 or a CUDA error. Where the kernel overlaps, the device's memory is closed until it waits. */
int emu_launch(const fake_kernel *kernel, const unsigned *grid, const unsigned *block,
               unsigned shared, unsigned cluster, const void *args) __attribute__((weak));
/* For emu_launch: lets nobody touch the memory that is allocated, or everybody; whose it is. */
void fake_open_memory(bool open);
bool fake_owns_memory(const void *address);

#endif
