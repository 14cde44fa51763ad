/* SPDX-License-Identifier: Apache-2.0
 * Losses of rows, read once. Constants: those of kernels/slices.cuh, REDUCTION (mean, sum, none as
 * the enumeration MEAN, SUM, NONE), SMOOTH, IGNORE, DIRECT (the only block writes the loss itself; else
 * each leaves a partial sum). Types x_t, label_t, loss_t, lse_t, acc_t. Sums over rows are in double. */
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

/* What the first thread of a slice makes of its row. */
__device__ __forceinline__ acc_t row_loss(const mica_cross_entropy_args &args, const long long *at,
                                          const running<acc_t> &r, acc_t log_sum, acc_t below,
                                          bool &ignored)
{
    long long label = label_at(args, at[1]);
    ignored = is_ignored(args, label);
    if (ignored) return (acc_t)0;
    if (label < 0 || label >= args.classes) return (acc_t)NAN_F;
    acc_t smoothing = (acc_t)args.smoothing;
    acc_t logit = widen<acc_t>(((const x_t *)args.x)[at[0] + label * args.x_along]);
    acc_t loss = log_sum - (acc_t)(1 - args.smoothing) * (logit - r.max);
    if constexpr (SMOOTH) loss -= smoothing * (below / (acc_t)args.classes / (acc_t)DEVIATION);
    return loss;
}

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, 1)
    cross_entropy_forward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    __shared__ partial_sum shares[SLICES];
    partial_sum mine = {0, 0};
    for (long long first = (long long)blockIdx.x * SLICES; first < args.rows.count;
         first += (long long)gridDim.x * SLICES) {
        long long index = first + slice_in_block(), at[4] = {0, 0, 0, 0};
        bool inside = index < args.rows.count;
        if (inside) layout_offsets<4>(args.rows, index, at);
        const x_t *x = (const x_t *)args.x + at[0];
        deviation<acc_t> seen = {(acc_t)0, (acc_t)0};
        extent e = find_extent(x, inside ? args.classes : 0, args.whole);
        running<acc_t> r = running_read<x_t, acc_t>(x - e.lo, e, args.x_along, args.whole,
                                                    SMOOTH ? &seen : nullptr);
        const acc_t mine_max = r.max;
        acc_t below = 0;
        r = running_reduce(r, scratch);
        if constexpr (SMOOTH) below = deviation_reduce(seen, mine_max, r.max, scratch);
        if (!inside || thread_in_slice() != 0) continue;
        bool ignored;
        acc_t log_sum = log_of(r.sum), loss = row_loss(args, at, r, log_sum, below, ignored);
        mine.sum += (double)loss;
        mine.counted += !ignored;
        if constexpr (REDUCTION == NONE) ((loss_t *)args.loss)[at[2]] = narrow<loss_t>(loss);
        if (args.lse) ((lse_t *)args.lse)[at[3]] = narrow<lse_t>(r.max + log_sum);
    }
    if constexpr (REDUCTION == NONE) return;
    __syncthreads();
    if (thread_in_slice() == 0) shares[slice_in_block()] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int s = 1; s < SLICES; s++) {
        mine.sum += shares[s].sum;
        mine.counted += shares[s].counted;
    }
    if constexpr (DIRECT)
        *(loss_t *)args.loss = narrow<loss_t>(REDUCTION == MEAN ? mine.sum / (double)mine.counted : mine.sum);
    else
        partial_of(args)[blockIdx.x] = mine;
}
