/* SPDX-License-Identifier: Apache-2.0
 * A ring of stages, and ping-pong of two warpgroups that share one. */
#pragma once
#include "kernels/mbarrier.cuh"

/* Where in a ring of N stages, and the parity that its barrier is waited for with. */
template <int N> struct ring {
    int at;
    u32 parity;
    __device__ __forceinline__ void advance()
    {
        if (++at < N) return;
        at = 0;
        parity ^= 1;
    }
    __device__ __forceinline__ void skip(int stages)
    {
        stages += at;
        at = stages % N;
        parity ^= (u32)(stages / N) & 1;
    }
};

/* Ping-pong of two warpgroups whose tiles alternate. Copies need not arrive in order: one that ran
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
