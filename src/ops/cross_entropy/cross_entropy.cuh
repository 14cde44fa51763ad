/* SPDX-License-Identifier: Apache-2.0
 * What the cross-entropy kernels share: labels, and the mean's count. Constants: IGNORE; type
 * label_t. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/layout.cuh"
#include "ops/cross_entropy/cross_entropy_args.h"

__device__ __forceinline__ long long label_at(const mica_cross_entropy_args &args, long long offset)
{
    return (long long)((const label_t *)args.labels)[offset];
}

__device__ __forceinline__ bool is_ignored(const mica_cross_entropy_args &args, long long label)
{
    return IGNORE && label == args.ignore_index;
}

/* Rows from `first` on, `step` apart, that count. */
__device__ __forceinline__ long long count_rows(const mica_cross_entropy_args &args, long long first,
                                                long long step)
{
    long long counted = 0;
    for (long long i = first; i < args.rows.count; i += step) {
        long long at[2];
        layout_offsets<2>(args.rows, i, at);
        counted += !is_ignored(args, label_at(args, at[1]));
    }
    return counted;
}

/* Sum over the block, the same in every thread. scratch: 32 elements of shared memory. */
__device__ __forceinline__ long long block_sum(long long v, long long *scratch)
{
    for (int lane = 1; lane < 32; lane *= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) v += scratch[i];
    return v;
}
