/* SPDX-License-Identifier: Apache-2.0
 * How many choices of each chunk go to each expert: integers, the same in any order. A warp to a chunk.
 * Rows are set to none on the way. Constants: EXPERTS (that there is room for); type row_t. */
#include "ops/moe_permute/moe_permute.cuh"

extern "C" __global__ void __launch_bounds__(32) moe_permute_count(const arguments a)
{
    overlap_wait();
    __shared__ int seen[EXPERTS];
    const s64 first = blockIdx.x * a.chunk, end = first + a.chunk < a.choices ? first + a.chunk : a.choices;
    for (int e = threadIdx.x; e < a.experts; e += 32) seen[e] = 0;
    __syncwarp();
    for (s64 c = first + threadIdx.x; c < end; c += 32) {
        const int e = expert_of(a, c, end);
        if (e >= 0) atomicAdd(seen + e, 1);
    }
    for (s64 r = (s64)blockIdx.x * 32 + threadIdx.x; r < a.all_rows; r += (s64)gridDim.x * 32) ((row_t *)a.rows)[r * a.row_row] = -1;
    __syncwarp();
    for (int e = threadIdx.x; e < a.experts; e += 32) a.counts[(s64)e * a.chunks + blockIdx.x] = seen[e];
}
