/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries: sums of warps become those of a block, those of blocks of a cluster results, each
 * added in a fixed order. Constants: those of decode.cu. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"
#include "kernels/shared.cuh"
#include "ops/attention/decode/decode_finish.cuh"
#include "ops/attention/decode/decode_scores.cuh"

/* What a warp has of its rows, to its part of `sums` and `stats`. */
__device__ __forceinline__ void leave(const state &st, const sums_t &o, float *sums, float4 *stats, int lane)
{
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        const int r = i / 2 * 16 + i % 2 * 8 + lane / 4;
        float *line = sums + r * OUT_PITCH;
        float sum = st.sum[i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) stats[r] = make_float4(st.max[i], sum, 0, 0);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2) {
            const float *x = o[i / 2][c] + i % 2 * 2, *y = o[i / 2][c + 1] + i % 2 * 2;
            if constexpr (SIZE == 1) {
                *(float4 *)(line + 8 * c + lane % 4 * 4) = make_float4(x[0], y[0], x[1], y[1]);
            } else {
                *(float2 *)(line + 8 * c + lane % 4 * 2) = make_float2(x[0], x[1]);
                *(float2 *)(line + 8 * c + 8 + lane % 4 * 2) = make_float2(y[0], y[1]);
            }
        }
    }
}

/* A part that does not count may hold anything. */
__device__ __forceinline__ void add(float4 &sums, float share, const float4 &v)
{
    if (share != 0) sums.x += share * v.x, sums.y += share * v.y, sums.z += share * v.z, sums.w += share * v.w;
}

/* What lies at the same place in that block of the cluster. */
__device__ __forceinline__ float4 from_block(int rank, const void *p)
{
    return shared_load_remote(shared_address(p), (u32)rank);
}

constexpr int QUADS = DV / 4; /* of a row: what a thread adds at once */

/* Blocks of a cluster finish a part of the tile each. */
__device__ __forceinline__ void meet(const attention_decode_args &a, const job &j, const float *sums, const float4 *stats,
                                     float *shares)
{
    const int thread = (int)threadIdx.x;
    cluster_sync();
    if (thread < j.rows) {
        float4 of[MOST_CLUSTER];
        float max = NOTHING, sum = 0;
#pragma unroll
        for (int i = 0; i < MOST_CLUSTER; i++)
            of[i] = i < a.splits ? from_block(i, stats + thread) : make_float4(NOTHING, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < MOST_CLUSTER; i++) max = fmaxf(max, of[i].x);
#pragma unroll
        for (int i = 0; i < MOST_CLUSTER; i++) {
            of[i].x = share_of(of[i].x, max);
            sum += of[i].x * of[i].y;
        }
        const float factor = finish(a, j, thread, max, sum, j.split == 0);
#pragma unroll
        for (int i = 0; i < MOST_CLUSTER; i++) shares[i * ROWS + thread] = of[i].x * factor;
    }
    __syncthreads();
#pragma unroll 1
    for (int e = thread + THREADS * j.split; e < j.rows * QUADS; e += THREADS * a.splits) {
        const int r = e / QUADS, c = e % QUADS * 4;
        if (c >= a.dv) continue;
        float4 all = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int i = 0; i < a.splits; i++) add(all, shares[i * ROWS + r], from_block(i, sums + r * OUT_PITCH + c));
        store(a, j, r, c, all);
    }
    cluster_sync();
}

/* stats has a line for each warp, and one for the block. */
__device__ __forceinline__ void merge(const attention_decode_args &a, const job &j, float *sums, float4 *stats, float *shares)
{
    const int thread = (int)threadIdx.x;
    const bool splits = a.splits > 1 && !a.cluster;
    if (thread < j.rows) {
        float share[WARPS], max = NOTHING, sum = 0, factor = 1;
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, stats[w * ROWS + thread].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            share[w] = share_of(stats[w * ROWS + thread].x, max);
            sum += share[w] * stats[w * ROWS + thread].y;
        }
        if (splits)
            *(float2 *)(a.stats + 2 * place_of(a, j, thread)) = make_float2(max, thread < j.valid ? sum : FOREIGN);
        else if (a.cluster)
            stats[WARPS * ROWS + thread] = make_float4(max, sum, 0, 0);
        else
            factor = finish(a, j, thread, max, sum, true);
#pragma unroll
        for (int w = 0; w < WARPS; w++) shares[w * ROWS + thread] = share[w] * factor;
    }
    __syncthreads();
#pragma unroll 1
    for (int e = thread; e < j.rows * QUADS; e += THREADS) {
        const int r = e / QUADS, c = e % QUADS * 4;
        if (c >= a.dv) continue;
        float *at = sums + r * OUT_PITCH + c;
        float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) add(all, shares[w * ROWS + r], *(const float4 *)(at + w * ROWS * OUT_PITCH));
        if (splits)
            *(float4 *)(a.partial + place_of(a, j, r) * ((a.dv + 3) / 4 * 4) + c) = all;
        else if (a.cluster)
            *(float4 *)at = all;
        else
            store(a, j, r, c, all);
    }
    if constexpr (CLUSTERS)
        if (a.cluster) meet(a, j, sums, stats + WARPS * ROWS, shares);
}
