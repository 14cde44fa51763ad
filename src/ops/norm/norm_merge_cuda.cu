/* SPDX-License-Identifier: Apache-2.0
 * Merges the parts' sums in double: WALKERS threads of a kept index take every WALKERS-th part each and add up in
 * their order, so the result does not depend on how blocks ran. Constants: those of norm.cuh; SETS (the
 * kept index is a set: its numbers go on to stage APPLY; else they are gradients of scale and bias), LANES
 * (kept indices of a block), WALKERS. */
#include "kernels/overlap.cuh"
#include "ops/norm/norm.cuh"

__device__ __forceinline__ double part_value(const norm_args &a, long long part, int which, long long kept)
{
    return (double)((const acc_t *)a.partial)[(part * 2 + which) * a.split.kept.count + kept];
}

__device__ __forceinline__ double part_size(const norm_args &a, long long part)
{
    long long from = part * a.piece, left = a.split.reduced.count - from;
    return (double)(left < a.piece ? left : a.piece);
}

struct merger {
    long long kept;
    int walker, lane;
    bool active; /* there is such an index */
};

/* The walkers' sums of an index in their order, the same for all of them. All threads of the block call it. */
__device__ __forceinline__ double add_walkers(const merger &m, double v)
{
    __shared__ double sums[WALKERS][LANES];
    __syncthreads(); /* the sums before may still be read */
    sums[m.walker][m.lane] = v;
    __syncthreads();
    double sum = 0;
#pragma unroll
    for (int w = 0; w < WALKERS; w++) sum += sums[w][m.lane];
    return sum;
}

/* Of the walker's parts f(part), several in flight. */
template <typename F> __device__ __forceinline__ double add_parts(const norm_args &a, const merger &m, F f)
{
    double sum = 0;
    if (m.active)
#pragma unroll 8
        for (long long i = m.walker; i < a.parts; i += WALKERS) sum += f(i);
    return add_walkers(m, sum);
}

/* Chan, Golub, LeVeque 1979, all parts at once. */
__device__ __forceinline__ void merge_moments(const norm_args &a, const merger &m)
{
    double n = (double)a.split.reduced.count;
    double mean = add_parts(a, m, [&](long long i) { return part_size(a, i) * part_value(a, i, 0, m.kept); }) / n;
    double squares = add_parts(a, m, [&](long long i) {
        double apart = part_value(a, i, 0, m.kept) - mean;
        return part_value(a, i, 1, m.kept) + part_size(a, i) * apart * apart;
    });
    if (!m.active || m.walker != 0) return;
    acc_t *known = (acc_t *)a.known + m.kept;
    known[0] = (acc_t)mean;
    known[a.split.kept.count] = save_statistics(a, kept_place(a, m.kept), (acc_t)mean, (acc_t)(squares / n));
}

__device__ __forceinline__ void merge_gradients(const norm_args &a, const merger &m)
{
    double plain = add_parts(a, m, [&](long long i) { return part_value(a, i, 0, m.kept); });
    double with_xhat = add_parts(a, m, [&](long long i) { return part_value(a, i, 1, m.kept); });
    if (!m.active || m.walker != 0) return;
    place p = kept_place(a, m.kept);
    if constexpr (SETS) {
        finish_gradients(a, p, true, plain, with_xhat);
        acc_t *known = (acc_t *)a.known + m.kept;
        known[0] = (acc_t)plain;
        known[a.split.kept.count] = (acc_t)with_xhat;
    } else {
        save_gradients(a, p, plain, with_xhat);
    }
}

extern "C" __global__ void __launch_bounds__(LANES *WALKERS) norm_merge(const norm_args a)
{
    overlap_wait();
    merger m = {0, (int)threadIdx.x / LANES, (int)threadIdx.x % LANES, false};
    for (long long first = (long long)blockIdx.x * LANES; first < a.split.kept.count; first += (long long)gridDim.x * LANES) {
        m.kept = first + m.lane;
        m.active = m.kept < a.split.kept.count;
        if constexpr (BACKWARD) merge_gradients(a, m);
        else merge_moments(a, m);
    }
}
