/* SPDX-License-Identifier: Apache-2.0
 * What the cross-entropy kernels share: labels, and the mean's count. Constants: IGNORE, WEIGHTED (classes
 * have weights); types label_t, weight_t, counted_t (of the count: s64, or f64 of weights). */
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

template <typename A> __device__ __forceinline__ A weight_of(const mica_cross_entropy_args &args, long long c)
{
    return WEIGHTED ? widen<A>(((const weight_t *)args.weight)[c * args.weight_along]) : (A)1;
}

/* What a row adds to the divisor of a mean. */
__device__ __forceinline__ counted_t counted_in(const mica_cross_entropy_args &args, long long label)
{
    if constexpr (!WEIGHTED) return !is_ignored(args, label);
    const bool there = label >= 0 && label < args.classes && !is_ignored(args, label);
    return there ? (counted_t)weight_of<double>(args, label) : (counted_t)0;
}

/* mica_cross_entropy_partial, with its count. */
struct partial_sum {
    double sum;
    counted_t counted;
};
static_assert(sizeof(partial_sum) == sizeof(mica_cross_entropy_partial), "the host's");
__device__ __forceinline__ partial_sum *partial_of(const mica_cross_entropy_args &args)
{
    return (partial_sum *)args.partial;
}

/* Rows from `first` on, `step` apart, that count. */
__device__ __forceinline__ counted_t count_rows(const mica_cross_entropy_args &args, long long first,
                                                long long step)
{
    counted_t counted = 0;
    for (long long i = first; i < args.rows.count; i += step) {
        long long at[2];
        layout_offsets<2>(args.rows, i, at);
        counted += counted_in(args, label_at(args, at[1]));
    }
    return counted;
}

/* Sum over the block, the same in every thread. scratch: 32 elements of shared memory. */
__device__ __forceinline__ counted_t block_sum(counted_t v, counted_t *scratch)
{
    for (int lane = 1; lane < 32; lane *= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) v += scratch[i];
    return v;
}
