/* SPDX-License-Identifier: Apache-2.0
 * Attention backward, dsinks: a block per head adds over all rows, in order.
 *
 * Prologue: that of attention_cuda.cuh. */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda.cuh"

static_assert(TX == 32, "whole warps");

extern "C" __global__ void __launch_bounds__(THREADS) attention_dsinks(const attention_cuda_args args)
{
    overlap_wait();
    __shared__ acc_t warps[TY];
    const s64 head = blockIdx.x;
    const acc_t sink = load_any(args.sinks, head * args.sinks.stride[0]);
    acc_t sum = 0;
    for (s64 n = 0; n < args.sequences; n++) {
        const span rows = find_span(args.cu_q, args.seq_q, args.rows, n);
        for (s64 i = threadIdx.x; i < rows.count; i += THREADS) {
            const acc_t lse = load_any(args.lse, line_of(args.lse, rows, head, i));
            if (lse == nothing()) continue;
            sum -= (sink == lse ? (acc_t)1 : exp_of(sink - lse)) * find_delta(args, rows, head, i);
        }
    }
    sum = row_sum(sum);
    if (tx() == 0) warps[ty()] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < TY; i++) sum += warps[i];
    store_any(args.dsinks, head * args.dsinks.stride[0], sum);
}
