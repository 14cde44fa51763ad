/* SPDX-License-Identifier: Apache-2.0
 * From sm_90 on a kernel is launched as soon as all blocks of the one before it in the stream have ended,
 * not when what they wrote has reached memory, too: its prologue and most of its launch then take no time
 * of their own, about a microsecond. Hardly any kernel allows the next one to come earlier: its blocks go
 * where multiprocessors are free first, two where there is room for two while others get none. Grids of less
 * than a wave took 1.1 to 1.5 times as long so (docs/experiments/launches.md). */
#pragma once

/* All threads of a kernel, before it reads or writes memory that other kernels do, and before any of them may
 * end: what came before has ended, and what it wrote is there. A kernel whose text calls this is launched as
 * said above (cuda/launch.c), others are not. */
__device__ __forceinline__ void overlap_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* By any thread, when its block has nothing left but to store what the plan's next kernel adds up: that one's
 * blocks may come as these end, and wait. Once all blocks have called this or ended, they do. */
__device__ __forceinline__ void overlap_allow()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
