/* SPDX-License-Identifier: Apache-2.0
 * What the gradient's kernels share. Constants: REDUCTION with MEAN, IGNORE, COUNT: where a mean's
 * number of rows comes from (ALL_ROWS, PARTIALS of another kernel, or each block counts them itself:
 * OWN). Types dloss_t, label_t, acc_t. */
#pragma once
#include "kernels/types.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

__device__ __forceinline__ counted_t counted_rows(const mica_cross_entropy_args &args, counted_t *scratch)
{
    if constexpr (REDUCTION != MEAN || COUNT == ALL_ROWS) return (counted_t)args.rows.count;
    counted_t counted = 0;
    if constexpr (COUNT == OWN) counted = count_rows(args, threadIdx.x, blockDim.x);
    if constexpr (COUNT == PARTIALS)
        for (int i = threadIdx.x; i < args.partials; i += blockDim.x) counted += partial_of(args)[i].counted;
    return block_sum(counted, scratch);
}

/* What the gradient of a row is made of: dx = scale exp(x - max) + bias, less `label_share` at the
 * label. */
struct shares {
    long long label;
    bool ignored;
    acc_t gradient, bias, label_share;
};

__device__ __forceinline__ shares find_shares(const mica_cross_entropy_args &args, long long label_offset,
                                              long long dloss_offset, double counted)
{
    shares r;
    r.label = label_at(args, label_offset);
    r.ignored = is_ignored(args, r.label);
    r.gradient = widen<acc_t>(((const dloss_t *)args.dloss)[dloss_offset]);
    if constexpr (REDUCTION == MEAN) r.gradient /= (acc_t)counted;
    if (!r.ignored && (r.label < 0 || r.label >= args.classes)) r.gradient = (acc_t)NAN_F;
    r.bias = -r.gradient * (acc_t)(args.smoothing / (double)args.classes);
    r.label_share = r.gradient * (acc_t)(1 - args.smoothing);
    return r;
}
