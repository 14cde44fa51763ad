/* SPDX-License-Identifier: Apache-2.0
 * Turns of two warpgroups that share a ring of stages. */
#pragma once
#include "cuda/device/mbarrier.cuh"

/* Two warpgroups whose tiles alternate multiply in turns. Copies need not arrive in order: one that ran
 * ahead to a stage of which the other still waits for the lap before would take that lap for its own
 * (mbarrier.cuh). */
struct turn {
    u32 own, other, parity;
    /* barriers: two of four arrivals */
    __device__ __forceinline__ turn(u32 barriers, int group)
        : own(barriers + 8 * group), other(barriers + 8 * (1 - group)), parity(group ? 0 : 1)
    {
    }
    __device__ __forceinline__ void begin()
    {
        mbarrier_wait(own, parity);
        parity ^= 1;
    }
    /* By each warp, when it waits for no more stages of this tile. */
    __device__ __forceinline__ void end() const
    {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbarrier_arrive(other);
    }
};
