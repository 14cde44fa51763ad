/* SPDX-License-Identifier: Apache-2.0
 * Inside the runtime: how threads wait, and what a collective is. */
#ifndef MICA_TESTS_EMU_EMU_RUN_H
#define MICA_TESTS_EMU_EMU_RUN_H

#include "emu.h"

typedef enum emu_scope { EMU_LANE, EMU_WARP, EMU_WARPGROUP } emu_scope;

/* refs: of each thread of the scope, NULL where a thread has left. */
typedef void emu_handler(const struct emu_ptx *what, emu_block *block, const emu_ref *const *refs);

typedef struct emu_ptx {
    const char *text;
    emu_handler *run;
    emu_scope scope;
    int kind[5]; /* of the handler: types, sizes, flags; kind[EMU_GLOBAL] of all */
} emu_ptx;
enum { EMU_GLOBAL = 4 }; /* whether it reads or writes memory that other kernels do */

/* Stops the launch, which fails; says where and why. */
_Noreturn void emu_stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Until *word differs from what it is now. */
void emu_wait(const volatile unsigned *word);
/* By a load that may be one of a loop: waits where it would give again what it gave. */
void emu_poll(const volatile unsigned *word);
/* Runs `what` once all threads of its scope are here; mask: lanes of a warp. */
void emu_meet(const emu_ptx *what, const emu_ref *refs, uint32_t mask);
/* Stops a launch that overlaps the one before and has not waited for it: copies are done later,
 * when memory is open again. */
void emu_reach_memory(const char *what);
/* A barrier that others wait at. */
void emu_barrier_arrive(int id, int threads);
void emu_cluster_barrier(void);
void emu_wait_for_kernel(void);
emu_block *emu_block_of(int rank);

/* Memory behind an address of shared memory. */
void *emu_shared(emu_block *block, uint32_t address, unsigned bytes);

/* ---- TMA (emu_tma.c) ---- */
emu_handler emu_tma_load, emu_tma_store, emu_bulk_store, emu_tma_wait, emu_copy_async,
    emu_copy_wait;
/* Of this thread. */
void emu_copies_done(void);
/* Does the loads that complete at this barrier. */
void emu_arrivals(emu_block *block, uint32_t barrier);
/* Does all loads; whether there were any. */
bool emu_all_arrive(emu_block *block);
void emu_forget(struct emu_later **list);
/* Does what the thread never waited for. */
void emu_thread_ends(emu_thread *thread);
/* Barriers of shared memory (emu_ptx.c). */
void emu_mbarrier_bytes(emu_block *block, uint32_t barrier, int bytes);

#endif
