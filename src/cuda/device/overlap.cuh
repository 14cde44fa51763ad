/* SPDX-License-Identifier: Apache-2.0
 * A kernel whose grid has `overlaps` is started, on sm_90 and later, before the one before it in the stream
 * has ended: its launch then takes no time of its own. Elsewhere these do nothing. */
#pragma once

/* By the kernel before: the next one may be started once all blocks have come here or ended. */
__device__ __forceinline__ void overlap_allow()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* By the next one, before it reads or writes what others do: the kernel before has ended. */
__device__ __forceinline__ void overlap_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
