/* SPDX-License-Identifier: Apache-2.0
 * Attention forward, what splits of the keys have left: a warp per row adds their sums in order.
 *
 * Prologue: that of attention_cuda.cuh. */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda.cuh"
#include "ops/attention/cuda/attention_cuda_finish.cuh"

static_assert(TX == 32 && ROWS == 1, "a warp per row");

/* By how much the results of a split count. */
__device__ __forceinline__ acc_t factor_of(const acc_t *stats, acc_t max)
{
    return stats[1] == 0 ? (acc_t)0 : exp_of(stats[0] - max);
}

__device__ __forceinline__ void merge(const attention_cuda_args &args, const share &w)
{
    const sequence s = find_sequence(args, w.n);
    const s64 r = w.tile * OWN + ty();
    if (r >= s.q.count * args.group) return;
    const s64 i = r / args.group, head = w.head * args.group + (r - i * args.group);
    const s64 at = place_of(args, s.q, head, i) * args.splits;
    const acc_t *stats = (const acc_t *)args.partial_stats + 2 * at, *partial = (const acc_t *)args.partial + at * args.dv;
    acc_t max = nothing(), sum = 0;
    for (s64 k = 0; k < args.splits; k++) max = max_of(max, stats[2 * k]);
    for (s64 k = 0; k < args.splits; k++) sum += stats[2 * k + 1] * factor_of(stats + 2 * k, max);
    const finished f = finish_row(args, head, w.head, max, sum);
    if (args.lse.data && tx() == 0) ((acc_t *)args.lse.data)[line_of(args.lse, s.q, head, i)] = f.lse;
    const s64 line = line_of(args.out, s.q, head, i);
    for (s64 c = tx(); c < args.dv; c += 32) {
        acc_t out = 0;
        for (s64 k = 0; k < args.splits; k++) {
            const acc_t factor = factor_of(stats + 2 * k, max);
            if (factor != 0) out += factor * partial[k * args.dv + c];
        }
        store_any(args.out, line + c * args.out.stride[3], out * f.factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_merge(const attention_cuda_args args)
{
    overlap_wait();
    share w;
    for (s64 index = blockIdx.x; find_queries(args, 1, index, w); index += gridDim.x) merge(args, w);
}
