/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries, what splits of the keys have left: a block adds 128 columns of a row, its
 * warps those of every WARPS-th split, in a fixed order. Prologue: type q_t. */
#include "kernels/overlap.cuh"
#include "ops/attention/decode/decode.cuh"

constexpr int WARPS = 4, COLUMNS = 128, STRIPS = ATTENTION_DECODE_SPLITS / 32;

__device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}

/* Splits 32 strip + lane are this lane's. */
struct shares {
    float of[STRIPS];
    float max, sum;
};

__device__ __forceinline__ shares find_shares(const float *stats, int splits, int lane)
{
    shares r;
    float max[STRIPS], sum[STRIPS];
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        const int split = 32 * i + lane;
        max[i] = split < splits ? stats[2 * split] : NOTHING;
        sum[i] = split < splits ? stats[2 * split + 1] : 0;
    }
    r.max = max[0];
#pragma unroll
    for (int i = 1; i < STRIPS; i++) r.max = fmaxf(r.max, max[i]);
    r.max = warp_max(r.max);
    r.sum = 0;
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        r.of[i] = share_of(max[i], r.max);
        r.sum += r.of[i] * sum[i];
    }
    r.sum = warp_sum(r.sum);
    if (__shfl_sync(0xffffffffu, sum[0], 0) == FOREIGN) r.sum = FOREIGN;
    return r;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_decode_merge(const attention_decode_args a)
{
    overlap_wait();
    __shared__ float4 parts[WARPS][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int chunks = (a.dv + COLUMNS - 1) / COLUMNS, width = (a.dv + 3) / 4 * 4;
    const s64 place = blockIdx.x / chunks;
    const int c = (int)(blockIdx.x - place * chunks) * COLUMNS + 4 * lane;
    const shares r = find_shares(a.stats + 2 * place * a.splits, a.splits, lane);
    const float *partial = a.partial + place * a.splits * width + min(c, width - 4);
    float4 sums = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
        const int count = min(a.splits - 32 * strip, 32);
#pragma unroll 4
        for (int k = warp; k < count; k += WARPS) {
            const float share = __shfl_sync(0xffffffffu, r.of[strip], k);
            const float4 v = *(const float4 *)(partial + (s64)(32 * strip + k) * width);
            sums.x += share * v.x, sums.y += share * v.y, sums.z += share * v.z, sums.w += share * v.w;
        }
    }
    parts[warp][lane] = sums;
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
        const float4 v = parts[w][lane];
        sums.x += v.x, sums.y += v.y, sums.z += v.z, sums.w += v.w;
    }
    const s64 line = place / a.rows, row = place - line * a.rows;
    const int batch = (int)(line / a.heads), head = (int)(line - (s64)batch * a.heads);
    const finished f = finish_row(a, head, (int)mica_fastdiv_of(a.groups, (u32)head), r.max, r.sum);
    if (a.lse && c == 0) a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + row * a.lse_stride[2]] = f.lse;
    if (c < a.dv) store_columns(a, batch, head, row, c, sums, f.factor);
}
