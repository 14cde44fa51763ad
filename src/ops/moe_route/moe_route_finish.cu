/* SPDX-License-Identifier: Apache-2.0
 * Counts and losses from the partial sums of blocks, by one block in a fixed order, a warp to an expert.
 * Constants: BLOCK, COUNTS, SHARES, SQUARES (which are wanted); types aux_t, z_t. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/moe_route/moe_route_args.h"

template <typename T> __device__ __forceinline__ T warp_sum(const T *from, int n)
{
    T sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) sum += from[i];
#pragma unroll
    for (int by = 1; by < 32; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    return sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK) moe_route_finish(const mica_moe_route_args a)
{
    overlap_wait();
    __shared__ double shares[BLOCK / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double aux = 0;
    for (int e = warp; e < a.experts; e += BLOCK / 32) {
        const long long count = warp_sum(a.partial_counts + (s64)e * a.blocks, a.blocks);
        if (COUNTS && lane == 0) a.counts[e * a.counts_expert] = (int)count;
        if constexpr (SHARES) aux += (double)count * warp_sum(a.partial_p + (s64)e * a.blocks, a.blocks);
    }
    if constexpr (SQUARES) {
        if (warp == 0) {
            const double z = warp_sum(a.partial_z, a.blocks) * a.z_by;
            if (lane == 0) *(z_t *)a.z = narrow<z_t>(z);
        }
    }
    if constexpr (SHARES) {
        if (lane == 0) shares[warp] = aux;
        __syncthreads();
        if (threadIdx.x != 0) return;
        for (int w = 1; w < BLOCK / 32; w++) aux += shares[w];
        *(aux_t *)a.aux = narrow<aux_t>(aux * a.aux_by);
    }
}
