/* SPDX-License-Identifier: Apache-2.0
 * A sequence's drafts and the token behind them, by a block. Constants: BLOCK; types p_t, q_t. All sums that decide are
 * of integers, so their order does not matter. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"

#include "ops/random/random_rounded.cuh"
#include "ops/speculate/speculate_body.h"

constexpr int CHUNKS = 256, WARPS = BLOCK / 32, DEEP = 4 /* loads of a thread in flight */;

struct storage {
    u64 sums[CHUNKS];
    int first; /* draft that is rejected */
    s64 token;
};
__device__ __forceinline__ storage &shared()
{
    __shared__ storage s;
    return s;
}

/* The row from which a token is drawn. q: subtracted; or where nothing is but 1 at a column, if it is one. */
struct row {
    const p_t *p;
    const q_t *q;
    s64 p_column, q_column, draft;
    int columns;

    __device__ __forceinline__ u64 weight(int c) const
    {
        const float own = speculate_probability(widen<float>(p[c * p_column]));
        const float other = q ? speculate_probability(widen<float>(q[c * q_column])) : c == draft ? 1.0f : 0.0f;
        return speculate_weight(own, other);
    }
};

template <typename T> __device__ __forceinline__ const T *row_of(const mica_speculate_operand &o, s64 b, s64 i)
{
    return (const T *)o.at + b * o.batch + i * o.position;
}

__device__ __forceinline__ u64 warp_sum(u64 v)
{
    for (int lane = 1; lane < 32; lane *= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* The first of n, by weight_of(i), at which the target is reached, by a warp; before: the sum before it. */
template <typename F> __device__ __forceinline__ int reach(int n, u64 target, u64 &before, F weight_of)
{
    const int lane = threadIdx.x % 32;
    for (int from = 0;; from += 32) {
        const u64 own = from + lane < n ? weight_of(from + lane) : 0;
        u64 sum = own;
        for (int by = 1; by < 32; by *= 2) {
            const u64 other = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= by) sum += other;
        }
        const u32 ballot = __ballot_sync(0xffffffffu, before + sum >= target);
        if (ballot) {
            const int winner = __ffs((int)ballot) - 1;
            before += __shfl_sync(0xffffffffu, sum - own, winner);
            return from + winner;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
        if (from + 32 >= n) return n - 1; /* not reached: an internal error */
    }
}

__device__ __forceinline__ int chunk_of(const row &r) { return (r.columns + CHUNKS * 32 - 1) / (CHUNKS * 32) * 32; }

/* The sum of all weights, to all threads; those of chunks stay. */
__device__ __noinline__ u64 sum_chunks(const row &r)
{
    const int chunk = chunk_of(r), lane = threadIdx.x % 32;
    __syncthreads();
    for (int k = threadIdx.x / 32; k < CHUNKS; k += WARPS) {
        u64 sum = 0;
        for (int c = lane; c < chunk; c += 32 * DEEP) {
            u64 w[DEEP];
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                const int at = k * chunk + c + 32 * d;
                w[d] = c + 32 * d < chunk && at < r.columns ? r.weight(at) : 0;
            }
#pragma unroll
            for (int d = 0; d < DEEP; d++) sum += w[d];
        }
        sum = warp_sum(sum);
        if (lane == 0) shared().sums[k] = sum;
    }
    __syncthreads();
    u64 sum = 0;
    for (int k = lane; k < CHUNKS; k += 32) sum += shared().sums[k];
    return warp_sum(sum);
}

/* -1 if all weights are 0. */
__device__ __forceinline__ s64 draw(const mica_speculate_args &a, s64 b, s64 i, bool rejected)
{
    row r = {row_of<p_t>(a.p, b, i), nullptr, a.p.column, a.q.column, -1, (int)a.columns};
    if (rejected && a.q.at) r.q = row_of<q_t>(a.q, b, i);
    if (rejected && !a.q.at) r.draft = speculate_integer(a.drafts, b, i);
    u64 sum = sum_chunks(r);
    if (sum == 0 && rejected) {
        r.q = nullptr, r.draft = -1;
        sum = sum_chunks(r);
    }
    if (threadIdx.x < 32) {
        u64 before = 0;
        s64 token = -1;
        if (sum) {
            const u64 target = speculate_target(&a, b, i, sum);
            const int from = reach(CHUNKS, target, before, [](int k) { return shared().sums[k]; }) * chunk_of(r);
            const int n = r.columns - from < chunk_of(r) ? r.columns - from : chunk_of(r);
            token = from + reach(n, target, before, [&](int c) { return r.weight(from + c); });
        }
        if (threadIdx.x == 0) shared().token = token;
    }
    __syncthreads();
    return shared().token;
}

__device__ __forceinline__ bool accepts(const mica_speculate_args &a, s64 b, s64 i)
{
    const s64 token = speculate_integer(a.drafts, b, i);
    if (token < 0 || token >= a.columns) return false;
    const float p = widen<float>(row_of<p_t>(a.p, b, i)[token * a.p.column]);
    const float q = a.q.at ? widen<float>(row_of<q_t>(a.q, b, i)[token * a.q.column]) : 1.0f;
    return speculate_accepts(&a, b, i, speculate_probability(p), speculate_probability(q));
}

__device__ __forceinline__ void put(const mica_speculate_operand &o, s64 b, s64 i, s64 v)
{
    const s64 at = b * o.batch + i * o.position;
    if (o.wide)
        ((s64 *)o.at)[at] = v;
    else
        ((s32 *)o.at)[at] = (s32)v;
}

extern "C" __global__ void __launch_bounds__(BLOCK) speculate(const __grid_constant__ mica_speculate_args a)
{
    overlap_wait();
    for (s64 b = blockIdx.x; b < a.batch; b += gridDim.x) {
        const int length = (int)speculate_length(&a, b);
        __syncthreads();
        if (threadIdx.x == 0) shared().first = length;
        __syncthreads();
        for (int i = threadIdx.x; i < length; i += BLOCK)
            if (!accepts(a, b, i)) atomicMin(&shared().first, i);
        __syncthreads();
        const int n = shared().first;
        const s64 token = n == length && a.bonus.at ? speculate_integer(a.bonus, b, 0) : draw(a, b, n, n < length);
        for (int i = threadIdx.x; i <= a.drafts_most; i += BLOCK)
            put(a.tokens, b, i, i < n ? speculate_integer(a.drafts, b, i) : i == n ? token : -1);
        if (threadIdx.x == 0) put(a.accepted, b, 0, n);
    }
}
