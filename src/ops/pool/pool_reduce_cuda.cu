/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward over large windows: GROUP threads per window (columns), or the warps of a block on the
 * windows of 32 * VEC channels (CHANNELS). Partial results merge in a fixed order. Constants: WARPS,
 * GROUP (at most 32), FLAT (a window is all of x's plane, whose elements are evenly spaced), STAGED (planes
 * lie packed: a block first takes all of its windows' to shared memory), VEC (elements of an access:
 * channels; in columns taps) and those of pool.cuh. */
#include "kernels/chunk.cuh"
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

static_assert(CHANNELS || VEC == 1 || FLAT, "taps of a vector lie together");
static_assert(!STAGED || (FLAT && !CHANNELS && VEC == 1), "taps are read one by one, from shared memory");

constexpr int WARP = 32, WALKERS = CHANNELS ? WARPS : GROUP;
constexpr int WINDOWS = WARP * WARPS / GROUP; /* of a block, in columns */
constexpr int LANES = CHANNELS ? VEC : 1; /* results of a thread */

/* Of equal values the lower index, whatever the order of merging. */
__device__ __forceinline__ void merge(acc_t v, int_t at, acc_t &best, int_t &winner)
{
    if constexpr (MODE != MAX) {
        best += v;
        return;
    }
    if constexpr (INDICES) {
        if (at < 0) return;
        bool same = v == best || (v != v && best != best);
        if (winner >= 0 && same && at < winner) winner = at;
        if (winner < 0) best = v, winner = at;
    }
    if (!(v <= best) && best == best) {
        best = v;
        winner = at;
    }
}

__device__ __forceinline__ void store(const mica_pool_args &a, const place &p, double n, acc_t *best, const int_t *winner)
{
    value_t out[LANES], *y = (value_t *)a.out + offset_of(a.y, p);
    if (a.beta != 0) load_some<LANES>(y, out, LANES, a.aligned);
#pragma unroll
    for (int i = 0; i < LANES; i++)
        out[i] = finish(a, MODE == MAX ? best[i] : average(best[i], n), out[i]);
    store_some<LANES>(y, out, LANES, a.aligned);
    if constexpr (INDICES)
#pragma unroll
        for (int i = 0; i < LANES; i++) ((index_t *)a.indices)[offset_of(a.i, p) + i] = (index_t)winner[i];
}

/* The thread's share of a window whose taps are `step` apart. */
template <bool WHOLE>
__device__ __forceinline__ void walk_flat(const value_t *x, int_t step, int_t n, int walker, acc_t *best, int_t *winner)
{
    constexpr int TAPS = CHANNELS ? 1 : VEC;
#pragma unroll 4
    for (int_t t = walker * TAPS; t < n; t += WALKERS * TAPS) {
        value_t v[VEC];
        load_some<VEC>(x + t * step, v, VEC, WHOLE);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            take(widen<acc_t>(v[i]), CHANNELS ? t : t + i, best[CHANNELS ? i : 0], winner[CHANNELS ? i : 0]);
    }
}

__device__ __forceinline__ void walk_taps(const mica_pool_args &a, const value_t *x, const taps &d, const taps &h, const taps &w, int walker, acc_t *best, int_t *winner)
{
    int_t nh = h.to - h.from, nw = w.to - w.from, n = (d.to - d.from) * nh * nw;
    for (int_t t = walker; t < n; t += WALKERS) {
        int_t rest = t, kw = next_digit(rest, nw), kh = next_digit(rest, nh);
        int_t zd = d.first + (d.from + rest) * d.step, zh = h.first + (h.from + kh) * h.step;
        int_t zw = w.first + (w.from + kw) * w.step;
        int_t at = (zd * (int_t)a.axes[1].x + zh) * (int_t)a.axes[2].x + zw;
        value_t v[VEC];
        load_some<VEC>(x + zd * (int_t)a.x[2] + zh * (int_t)a.x[3] + zw * (int_t)a.x[4], v, VEC, a.aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++) take(widen<acc_t>(v[i]), at, best[i], winner[i]);
    }
}

/* Takes the block's planes to shared memory, and the thread's share of its window from there. */
__device__ __forceinline__ void walk_staged(const mica_pool_args &a, int walker, acc_t *best, int_t *winner)
{
    extern __shared__ __align__(16) unsigned char memory[];
    const int n = (int)a.plane, thread = threadIdx.y * WARP + threadIdx.x;
    const long long first = (long long)blockIdx.x * WINDOWS, left = a.count - first;
    const int windows = left < WINDOWS ? (int)left : WINDOWS;
    chunk_read<WARP * WARPS>((value_t *)memory, (const value_t *)a.in + first * n, windows * n, a.aligned, thread);
    chunk_wait();
    if (thread / GROUP < windows)
        walk_flat<false>((const value_t *)memory + thread / GROUP * n, 1, n, walker, best, winner);
}

/* Whether this thread has the results. */
__device__ __forceinline__ bool join(acc_t *best, int_t *winner)
{
    if constexpr (CHANNELS) {
        __shared__ acc_t parts[WARPS][WARP * VEC];
        __shared__ int_t places[INDICES ? WARPS : 1][WARP * VEC];
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            parts[threadIdx.y][i * WARP + threadIdx.x] = best[i];
            if (INDICES) places[threadIdx.y][i * WARP + threadIdx.x] = winner[i];
        }
        __syncthreads();
        if (threadIdx.y != 0) return false;
        for (int w = 1; w < WARPS; w++)
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                int lane = i * WARP + (int)threadIdx.x;
                merge(parts[w][lane], INDICES ? places[w][lane] : 0, best[i], winner[i]);
            }
        return true;
    } else {
#pragma unroll
        for (int step = GROUP / 2; step > 0; step /= 2) {
            acc_t v = __shfl_down_sync(0xffffffffu, best[0], step, GROUP);
            int_t at = INDICES ? __shfl_down_sync(0xffffffffu, winner[0], step, GROUP) : 0;
            merge(v, at, best[0], winner[0]);
        }
        return threadIdx.x % GROUP == 0;
    }
}

extern "C" __global__ void __launch_bounds__(WARP *WARPS, 1) pool_reduce(const mica_pool_args a)
{
    overlap_wait();
    long long item = CHANNELS ? (long long)blockIdx.x
                              : (long long)blockIdx.x * WINDOWS + (threadIdx.y * WARP + threadIdx.x) / GROUP;
    bool active = item < a.count;
    place p = {0, 0, 0, 0, 0};
    if (active) p = find_place(a, (int_t)item);
    if (CHANNELS) p.c = p.c * WARP + threadIdx.x;
    active &= p.c < (int_t)a.c;
    taps d = find_taps<0>(a, p.d), h = find_taps<1>(a, p.h), w = find_taps<2>(a, p.w);
    const value_t *x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];

    acc_t best[LANES];
    int_t winner[LANES];
#pragma unroll
    for (int i = 0; i < LANES; i++) best[i] = least(), winner[i] = -1;
    int walker = CHANNELS ? threadIdx.y : threadIdx.x % GROUP;
    if constexpr (STAGED) {
        walk_staged(a, walker, best, winner);
    } else if (active) {
        if constexpr (FLAT) {
            int_t n = (int_t)(a.axes[0].x * a.axes[1].x * a.axes[2].x), step = (int_t)a.x[4];
            if (a.aligned) walk_flat<true>(x, step, n, walker, best, winner);
            else walk_flat<false>(x, step, n, walker, best, winner);
        } else {
            walk_taps(a, x, d, h, w, walker, best, winner);
        }
    }
    if (!join(best, winner) || !active) return;
    double n = (double)count_taps<0>(a, d) * (double)count_taps<1>(a, h) * (double)count_taps<2>(a, w);
    store(a, p, n, best, winner);
}
