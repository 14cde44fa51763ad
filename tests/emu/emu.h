/* SPDX-License-Identifier: Apache-2.0
 * A GPU played by the CPU: what the compiled kernels and the runtime share. The compiler
 * (emu_nvrtc.c) turns the text of a kernel into C++, each assembly statement into a call of
 * emu_ptx, and has the system's C++ compiler make a shared library of it; the driver
 * (tests/fake/fake_cuda.c with emu_run.c) runs its threads one after the other as coroutines.
 *
 * What it shows: results, addresses, deadlocks, collectives in divergent code, shared memory that
 * is read before it was written. What it cannot: time, registers, most races. */
#ifndef MICA_TESTS_EMU_EMU_H
#define MICA_TESTS_EMU_EMU_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMU_LANES = 32,
    EMU_GROUP = 128, /* threads of a warpgroup */
    EMU_THREADS = 1024,
    EMU_CLUSTER = 16,
    EMU_TOGETHER = 64, /* blocks of a cooperative launch */
    EMU_BARRIERS = 16,
    /* what a 32-bit address of shared memory reaches */
    EMU_SHARED = 256 << 10
};

/* An operand of an assembly statement: where it is (outputs), or its bits (inputs). */
typedef struct emu_ref {
    union {
        void *at;
        uint64_t bits;
    };
    uint8_t bytes;
    bool out;
} emu_ref;

typedef struct emu_dim3 {
    unsigned x, y, z;
} emu_dim3;

struct emu_block;
struct emu_ptx;

/* Threads that wait for each other: a named barrier, a warp or warpgroup in a collective. */
typedef struct emu_meeting {
    volatile unsigned round;
    int arrived, expected;
    const struct emu_ptx *what;
    const emu_ref *refs[EMU_GROUP]; /* by place in the warp or warpgroup */
} emu_meeting;

typedef struct emu_thread {
    emu_dim3 thread, block_index, block_dim, grid_dim;
    int index; /* in the block */
    struct emu_block *block;
    /* runs again when *wait differs from seen; NULL: it can run */
    const volatile unsigned *wait;
    unsigned seen;
    const volatile unsigned *polled; /* read last by an acquiring load */
    unsigned polled_value;
    bool done;
    struct emu_later *copies, *stores; /* cp.async and stores of TMA, not yet done */
    int copy_group, store_group;
    jmp_buf at;
} emu_thread;

typedef struct emu_block {
    int rank; /* in the cluster */
    struct emu_gang *gang;
    char *shared;
    unsigned dynamic_bytes, static_bytes;
    struct {
        int id, bytes;
        unsigned at;
    } statics[64];
    int static_count, threads, alive;
    uint32_t lanes[EMU_THREADS / EMU_LANES]; /* alive, by warp */
    int registers[EMU_THREADS / EMU_LANES];  /* a thread's, where setmaxnreg said */
    emu_meeting barriers[EMU_BARRIERS], warps[EMU_THREADS / EMU_LANES],
        groups[EMU_THREADS / EMU_GROUP];
    struct emu_later *loads; /* of TMA, not yet done */
} emu_block;

extern __thread emu_thread *emu_now;

/* By the kernels: */
void *emu_dynamic(void);
void *emu_static(int id, int bytes, int alignment);
const struct emu_ptx *emu_ptx_find(const char *text);
void emu_ptx_run(const struct emu_ptx *what, const emu_ref *refs, int count);
void emu_barrier(int id, int threads); /* threads 0: all of the block */
uint32_t emu_shared_address(const void *p);
/* The bits that lane `from` gave. */
uint64_t emu_exchange(unsigned mask, uint64_t bits, int from);
unsigned emu_ballot(unsigned mask, bool vote);
void emu_trap(const char *why) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
