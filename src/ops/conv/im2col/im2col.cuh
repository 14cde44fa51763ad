/* SPDX-License-Identifier: Apache-2.0
 * What Hopper's convolution kernels share: a ring of stages that one thread fills and two warpgroups
 * empty, and pixels as TMA counts them. Constants: AXES of the image; tile BM x BN;
 * STAGES; in_t. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/shared.cuh"
#include "kernels/tma.cuh"
#include "kernels/wgmma.cuh"
#include "ops/conv/im2col/im2col_args.h"
#include "ops/conv/slab/ping_pong.cuh"

constexpr int THREADS = 384;
constexpr int ROW = 128;        /* bytes of a row in shared memory: 64 elements */
constexpr int CHUNK = 64 * ROW;
static_assert(sizeof(in_t) == 2, "MN-major operands");

/* Stages begin at multiples of 1024, of which the swizzle is made. */
__device__ __forceinline__ u32 ring_memory()
{
    extern __shared__ unsigned char memory[];
    return (shared_address(memory) + 1023) & ~1023u;
}

/* STAGES barriers "full" of so many arrivals, then as many "empty", one more of one arrival, and two for
 * ping-pong. All threads call it, once. */
__device__ __forceinline__ u32 ring_barriers(int producers, int consumers)
{
    __shared__ __align__(8) u64 barriers[2 * STAGES + 3];
    const u32 full = shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + 8 * i, producers);
            mbarrier_init(full + 8 * (STAGES + i), consumers);
        }
        mbarrier_init(full + 8 * 2 * STAGES, 1);
        for (int i = 1; i < 3; i++) mbarrier_init(full + 8 * (2 * STAGES + i), 4);
        mbarrier_fence_init();
    }
    __syncthreads();
    return full;
}

/* Pixel `row` of images with `count` pixels along the axes; returns its image. */
__device__ __forceinline__ int position(const int count[3], int row, int at[3])
{
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        at[d] = 0;
        if (d < 3 - AXES) continue;
        const u32 rest = (u32)row / (u32)count[d];
        at[d] = row - (int)rest * count[d];
        row = (int)rest;
    }
    return row;
}

__device__ __forceinline__ void load_image(u32 to, const mica_tensor_map *map, u32 bar, int c, const int at[3], int n,
                                           const int tap[3])
{
    if constexpr (AXES == 1)
        tma_load_im2col(to, map, bar, c, at[2], n, (u16)tap[2]);
    else if constexpr (AXES == 2)
        tma_load_im2col(to, map, bar, c, at[2], at[1], n, (u16)tap[2], (u16)tap[1]);
    else
        tma_load_im2col(to, map, bar, c, at[2], at[1], at[0], n, (u16)tap[2], (u16)tap[1], (u16)tap[0]);
}
