/* SPDX-License-Identifier: Apache-2.0
 * Losses of rows against targets with weights or probabilities, read once; of log-probabilities and
 * labels only the labels' elements. Constants: those of cross_entropy_targets.cuh, REDUCTION (mean, sum,
 * none as the enumeration MEAN, SUM, NONE), DIRECT (the only block writes the loss itself; else each
 * leaves a partial sum). Types: also loss_t, lse_t. Sums over rows are in double. */
#include "kernels/overlap.cuh"
#include "ops/cross_entropy/cross_entropy_targets.cuh"

/* Vectors of x and of the target in flight. */
constexpr int VALUES = sizeof(acc_t) == 8 ? 4 : 16, BATCH = VECTOR >= VALUES ? 1 : VALUES / VECTOR < 8 ? VALUES / VECTOR : 8;

/* A thread's share of a row. */
__device__ __forceinline__ looked look(const mica_cross_entropy_args &args, const x_t *x, const target_t *target,
                                       const extent &e)
{
    looked seen = {{negative_infinity<acc_t>(), (acc_t)0}, (acc_t)0, (acc_t)0};
    for (long long j = 0; position(j) < e.hi; j += BATCH) {
        acc_t v[BATCH][VECTOR], p[BATCH][VECTOR];
        long long i[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) i[b] = position(j + b);
        read_batch<BATCH>(x, e, i, args.x_along, args.whole, negative_infinity<acc_t>(), v);
        if constexpr (PROBABILITIES) read_batch<BATCH>(target, e, i, args.target_along, args.whole, (acc_t)0, p);
        const acc_t before = about(seen.r.max);
        if constexpr (LOGITS) running_add<BATCH * VECTOR>(seen.r, &v[0][0]);
        if constexpr (!SPREAD) continue;
        const acc_t max = LOGITS ? about(seen.r.max) : (acc_t)0;
        if (LOGITS && before != max) seen.dot += seen.total * (before - max);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            acc_t t[VECTOR];
            make_target<VECTOR>(args, e, i[b], p[b], t);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                if (i[b] + k < e.lo || i[b] + k >= e.hi) continue;
                seen.total += t[k];
                seen.dot += t[k] * (v[b][k] - max);
            }
        }
    }
    return seen;
}

/* The same for all threads of a slice. */
__device__ __forceinline__ looked reduce(looked mine, acc_t *scratch)
{
    looked all = mine;
    if constexpr (LOGITS) all.r = running_reduce(mine.r, scratch);
    if constexpr (!SPREAD) return all;
    const acc_t from = about(mine.r.max), to = about(all.r.max);
    if (LOGITS && from != to) mine.dot += mine.total * (from - to);
    all.total = slice_reduce(mine.total, scratch, add_op());
    all.dot = slice_reduce(mine.dot, scratch, add_op());
    return all;
}

__device__ __forceinline__ acc_t row_loss(const mica_cross_entropy_args &args, const long long *at, const labelled &l,
                                          const looked &seen, acc_t log_sum)
{
    if (l.ignored) return (acc_t)0;
    if (l.bad) return (acc_t)NAN_F;
    acc_t loss = LOGITS ? (seen.total + l.share) * log_sum : (acc_t)0;
    if constexpr (!PROBABILITIES) {
        const acc_t x = widen<acc_t>(((const x_t *)args.x)[at[0] + l.label * args.x_along]);
        loss -= l.share * (LOGITS ? x - seen.r.max : x);
    }
    return SPREAD ? loss - seen.dot : loss;
}

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, 1)
    cross_entropy_targets_forward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    __shared__ partial_sum shares[SLICES];
    partial_sum mine = {0, 0};
    for (long long first = (long long)blockIdx.x * SLICES; first < args.rows.count;
         first += (long long)gridDim.x * SLICES) {
        long long index = first + slice_in_block(), at[6] = {0, 0, 0, 0, 0, 0};
        const bool inside = index < args.rows.count;
        if (inside) layout_offsets<6>(args.rows, index, at);
        const x_t *x = (const x_t *)args.x + at[0];
        const extent e = find_extent(x, inside && (LOGITS || SPREAD) ? args.classes : 0, args.whole);
        const target_t *target = PROBABILITIES ? (const target_t *)args.target + at[4] - e.lo : nullptr;
        const looked seen = reduce(look(args, x - e.lo, target, e), scratch);
        if (!inside || thread_in_slice() != 0) continue;
        const labelled l = find_label(args, at[1]);
        const acc_t log_sum = LOGITS ? log_of(seen.r.sum) : (acc_t)0, loss = row_loss(args, at, l, seen, log_sum);
        mine.sum += (double)loss;
        mine.counted += PROBABILITIES ? (counted_t)1 : counted_in(args, l.label);
        if constexpr (REDUCTION == NONE) ((loss_t *)args.loss)[at[2]] = narrow<loss_t>(loss);
        if (args.lse) ((lse_t *)args.lse)[at[3]] = narrow<lse_t>(seen.r.max + log_sum);
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
