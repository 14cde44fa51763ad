/* SPDX-License-Identifier: Apache-2.0
 * Shared memory of the slab kernels: slots that TMA fills, and their barriers. Constants:
 * SLOTS. */
#pragma once
#include "kernels/mbarrier.cuh"

/* Slots begin at multiples of 1024, of which the swizzle is made. */
__device__ __forceinline__ u32 slot_memory()
{
    extern __shared__ unsigned char memory[];
    return (shared_address(memory) + 1023) & ~1023u;
}

/* SLOTS barriers "full", as many "empty" of `consumers` arrivals, and one more. All threads call it. */
__device__ __forceinline__ u32 slot_barriers(int consumers)
{
    __shared__ __align__(8) u64 barriers[2 * SLOTS + 1];
    const u32 full = shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(full + 8 * i, 1);
            mbarrier_init(full + 8 * (SLOTS + i), consumers);
        }
        mbarrier_init(full + 8 * 2 * SLOTS, 1);
        mbarrier_fence_init();
    }
    __syncthreads();
    return full;
}
