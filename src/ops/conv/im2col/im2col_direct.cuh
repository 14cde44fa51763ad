/* SPDX-License-Identifier: Apache-2.0
 * Loads and products that Hopper's forward and dgrad kernels share. Constants: those of im2col.cuh;
 * FILTER_MN (columns are what lies side by side in the filter, else terms); mma(). */
#pragma once
#include "ops/conv/im2col/im2col.cuh"

__device__ __forceinline__ void load_filter(u32 to, const mica_tensor_map *map, u32 bar, int inner, const int tap[3],
                                            int outer)
{
    if constexpr (AXES == 1)
        tma_load(to, map, bar, inner, tap[2], outer);
    else if constexpr (AXES == 2)
        tma_load(to, map, bar, inner, tap[2], tap[1], outer);
    else
        tma_load(to, map, bar, inner, tap[2], tap[1], tap[0], outer);
}

/* BN columns by 64 terms of a tap. */
__device__ __forceinline__ void load_columns(const mica_conv_sm90_args &a, u32 to, u32 bar, int col, const int tap[3],
                                             int k)
{
    if constexpr (FILTER_MN) {
        for (int j = 0; j < BN; j += 64) load_filter(to + j * ROW, &a.filter, bar, col + j, tap, k);
    } else {
        load_filter(to, &a.filter, bar, k, tap, col);
    }
}

/* A step of the sum: a tap, and 64 terms from k on. */
struct step {
    int tap[3], k;
    __device__ __forceinline__ void advance(const mica_conv_class &c, int terms)
    {
        k += 64;
        if (k < terms) return;
        k = 0;
        if (++tap[2] < c.taps[2]) return;
        tap[2] = 0;
        if (++tap[1] < c.taps[1]) return;
        tap[1] = 0;
        tap[0]++;
    }
};

/* 64 terms: a warpgroup's rows by all columns. */
template <int PARTS>
__device__ __forceinline__ void multiply(float (&sum)[PARTS][BN / 2], u32 image, u32 filter, bool more)
{
    const u64 left = wgmma_operand<ROW>(image, 16, 8 * ROW);
    const u64 right = wgmma_operand<ROW>(filter, FILTER_MN ? CHUNK : 16, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < 64 / 16; z++)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            mma(sum[i], wgmma_advance(left, i * CHUNK + z * 32), wgmma_advance(right, FILTER_MN ? z * 16 * ROW : z * 32),
                more || z > 0);
    wgmma_commit();
}
