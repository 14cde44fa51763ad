/* SPDX-License-Identifier: Apache-2.0
 * From the maximum and the sum of a row's scores to its results. */
#pragma once
#include "ops/attention/cuda/attention_lines.cuh"

struct finished {
    acc_t factor, lse; /* of the sums of weights times values */
};

__device__ __forceinline__ finished finish_row(const attention_cuda_args &args, s64 head, s64 kv_head, acc_t max, acc_t sum)
{
    acc_t factor = 1;
    if (args.sinks.data) {
        const acc_t sink = load_any(args.sinks, head * args.sinks.stride[0]), top = max_of(max, sink);
        factor = max == nothing() ? (acc_t)0 : exp_of(max - top);
        sum = sum * factor + (sink == nothing() ? (acc_t)0 : sink == top ? (acc_t)1 : exp_of(sink - top)); /* +inf takes all */
        max = top;
    }
    if (sum == 0) return {0, nothing()};
    return {factor * scale_of(args.scale_v, kv_head) / sum, max + log_of(sum)};
}
