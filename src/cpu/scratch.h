/* SPDX-License-Identifier: Apache-2.0
 * Scratch memory of threads. A caller's thread, or OpenMP's, may have a stack of 64 KiB, so what is
 * more than some KiB does not lie on it but here: memory that each thread has for itself, mapped
 * when it first plans or runs and kept until it ends.
 *
 *     mica_scratch scope MICA_SCOPED = mica_scratch_open();
 *     float *sums = mica_scratch_take(TILE * sizeof *sums);    given back where the scope ends
 *
 * Scopes nest as functions do. What is taken is aligned to a cache line and not zeroed. */
#ifndef MICA_CPU_SCRATCH_H
#define MICA_CPU_SCRATCH_H

#include "mica/types.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mica_scratch {
    char *top; /* of the thread's memory, as it was found */
} mica_scratch;
#define MICA_SCOPED __attribute__((unused, cleanup(mica_scratch_close)))

mica_scratch mica_scratch_open(void);
void mica_scratch_close(mica_scratch *scope);
void *mica_scratch_take(size_t bytes);
void *mica_scratch_zeroed(size_t bytes);

/* Maps the memory of this thread and of those that it runs parallel loops with, so that its runs
 * find it mapped, and looks at their floating-point state (floating.h): OK or OUT_OF_MEMORY. Cheap
 * where that has been done. */
mica_status mica_scratch_prepare(int threads);
/* Whether this thread has done that for any number of threads. */
bool mica_scratch_ready(void);

#endif
