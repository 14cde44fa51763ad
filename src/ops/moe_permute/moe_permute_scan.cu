/* SPDX-License-Identifier: Apache-2.0
 * Where experts begin, and how many of an expert's choices come before each chunk, in place of its count.
 * One block, a warp to an expert. Constants: EXPERTS, BLOCK; type offset_t. */
#include "ops/moe_permute/moe_permute.cuh"

/* Of the lanes before this one; total: of all. */
__device__ __forceinline__ s64 sum_before(s64 v, s64 &total)
{
    const int lane = threadIdx.x % 32;
    s64 sum = v;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const s64 other = __shfl_up_sync(0xffffffffu, sum, by);
        sum += lane >= by ? other : 0;
    }
    total = __shfl_sync(0xffffffffu, sum, 31);
    return sum - v;
}

extern "C" __global__ void __launch_bounds__(BLOCK) moe_permute_scan(const arguments a)
{
    overlap_wait();
    __shared__ s64 rows[EXPERTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    s64 total;
    for (int e = warp; e < a.experts; e += BLOCK / 32) {
        s64 *counts = a.counts + (s64)e * a.chunks, sum = 0;
        for (int first = 0; first < a.chunks; first += 32) {
            const bool there = first + lane < a.chunks;
            const s64 before = sum_before(there ? counts[first + lane] : 0, total);
            if (there) counts[first + lane] = sum + before;
            sum += total;
        }
        if (a.capacity && sum > a.capacity) sum = a.capacity;
        if (lane == 0) rows[e] = (sum + a.align - 1) / a.align * a.align;
    }
    __syncthreads();
    if (warp != 0) return;
    s64 sum = 0;
    for (int first = 0; first < a.experts; first += 32) {
        const int e = first + lane;
        const s64 before = sum_before(e < a.experts ? rows[e] : 0, total);
        if (e < a.experts) ((offset_t *)a.offsets)[e * a.offset_expert] = (offset_t)(sum + before);
        sum += total;
    }
    if (lane == 0) ((offset_t *)a.offsets)[a.experts * a.offset_expert] = (offset_t)sum;
}
