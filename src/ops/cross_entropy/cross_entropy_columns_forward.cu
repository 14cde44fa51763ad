/* SPDX-License-Identifier: Apache-2.0
 * Losses of rows that lie side by side, read once. Constants: those of cross_entropy_columns.cuh,
 * REDUCTION (mean, sum, none as the enumeration MEAN, SUM, NONE), SMOOTH, IGNORE, DIRECT (the only
 * block writes the loss itself; else each leaves a partial sum). Types x_t, label_t, loss_t, lse_t,
 * acc_t. Sums over rows are in double. */
#include "kernels/overlap.cuh"
#include "ops/cross_entropy/cross_entropy_columns.cuh"

__device__ __forceinline__ acc_t loss_of(const mica_cross_entropy_args &args, acc_t max, acc_t log_sum, acc_t logit,
                                         acc_t below)
{
    acc_t loss = log_sum - (acc_t)(1 - args.smoothing) * (logit - max);
    if constexpr (SMOOTH) loss -= (acc_t)args.smoothing * (below / (acc_t)args.classes / (acc_t)DEVIATION);
    return loss;
}

/* VECTOR rows from `index` on; their losses are added up. */
__device__ __forceinline__ void do_rows(const mica_cross_entropy_args &args, long long index,
                                        partial_sum &mine)
{
    long long at[4], label[VECTOR];
    layout_offsets<4>(args.rows, index, at);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) label[k] = label_at(args, beside(args, at, 1, k));
    acc_t logit[VECTOR];
    deviation<acc_t> below[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) logit[k] = below[k].sum = below[k].seen = 0;
    const statistics s = read_statistics(args, (const x_t *)args.x + at[0],
                                         [&](long long c, const acc_t *v, const acc_t *max, const acc_t *before) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            logit[k] = c == label[k] ? v[k] : logit[k];
            if constexpr (SMOOTH) {
                if (c % BATCH == 0) deviation_lower(below[k], before[k], max[k]);
                below[k].sum += v[k] * (acc_t)DEVIATION - deviation_shift(max[k]);
                below[k].seen += 1;
            }
        }
    });
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        const bool ignored = is_ignored(args, label[k]), there = label[k] >= 0 && label[k] < args.classes;
        const acc_t log_sum = log_of(s.sum[k]);
        const acc_t loss = ignored ? (acc_t)0 : !there ? (acc_t)NAN_F : loss_of(args, s.max[k], log_sum, logit[k], below[k].sum);
        mine.sum += (double)loss;
        mine.counted += !ignored;
        if constexpr (REDUCTION == NONE) ((loss_t *)args.loss)[beside(args, at, 2, k)] = narrow<loss_t>(loss);
        if (args.lse) ((lse_t *)args.lse)[beside(args, at, 3, k)] = narrow<lse_t>(s.max[k] + log_sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
cross_entropy_columns_forward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ partial_sum shares[THREADS];
    partial_sum mine = {0, 0};
    for (long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * VECTOR; i < args.rows.count;
         i += (long long)gridDim.x * THREADS * VECTOR)
        do_rows(args, i, mine);
    if constexpr (REDUCTION == NONE) return;
    shares[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        shares[threadIdx.x].sum += shares[threadIdx.x + half].sum;
        shares[threadIdx.x].counted += shares[threadIdx.x + half].counted;
    }
    if (threadIdx.x != 0) return;
    mine = shares[0];
    if constexpr (DIRECT)
        *(loss_t *)args.loss = narrow<loss_t>(REDUCTION == MEAN ? mine.sum / (double)mine.counted : mine.sum);
    else
        partial_of(args)[blockIdx.x] = mine;
}
