/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward over large windows: a warp per window (columns), or the warps of a block on the
 * windows of 32 channels (CHANNELS). Partial results merge in a fixed order. Constants: WARPS, INDICES
 * and those of pool.cuh. */
#include "ops/pool/pool.cuh"

constexpr int WARP = 32;

/* Of equal values the lower index, whatever the order of merging. */
__device__ __forceinline__ void merge(acc_t v, int_t at, acc_t &best, int_t &winner)
{
    if constexpr (MODE != MAX) {
        best += v;
        return;
    }
    if (at < 0) return;
    bool same = v == best || (v != v && best != best);
    bool beats = !(v <= best) && best == best;
    if (winner < 0 || beats || (same && at < winner)) {
        best = v;
        winner = at;
    }
}

__device__ __forceinline__ void store(const mica_pool_args &a, const place &p, const taps &d, const taps &h,
                                      const taps &w, acc_t best, int_t winner)
{
    if constexpr (MODE != MAX) {
        double n = count_taps(a.axes[0], d) * count_taps(a.axes[1], h) * count_taps(a.axes[2], w);
        best = n > 0 ? best / (acc_t)n : (acc_t)0;
    }
    value_t *y = (value_t *)a.out + offset_of(a.y, p);
    *y = finish(a, best, a.beta != 0 ? *y : value_t());
    if constexpr (INDICES) ((index_t *)a.indices)[offset_of(a.i, p)] = (index_t)winner;
}

extern "C" __global__ void __launch_bounds__(WARP *WARPS) pool_reduce(const mica_pool_args a)
{
    int lane = threadIdx.x, warp = threadIdx.y;
    long long item = CHANNELS ? (long long)blockIdx.x : (long long)blockIdx.x * WARPS + warp;
    int_t groups = CHANNELS ? ((int_t)a.c + WARP - 1) / WARP : (int_t)a.c;
    bool active = item < a.count;
    place p = {0, 0, 0, 0, 0};
    if (active)
        p = find_place((int_t)item, groups, (int_t)a.axes[0].y, (int_t)a.axes[1].y, (int_t)a.axes[2].y);
    if (CHANNELS) p.c = p.c * WARP + lane;
    active &= p.c < (int_t)a.c;
    taps d = find_taps(a.axes[0], p.d), h = find_taps(a.axes[1], p.h), w = find_taps(a.axes[2], p.w);
    int_t nh = h.to - h.from, nw = w.to - w.from, n = active ? (d.to - d.from) * nh * nw : 0;
    const value_t *x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];

    acc_t best = least();
    int_t winner = -1;
    for (int_t t = CHANNELS ? warp : lane; t < n; t += CHANNELS ? WARPS : WARP) {
        int_t rest = t, kw = next_digit(rest, nw), kh = next_digit(rest, nh);
        int_t zd = d.first + (d.from + rest) * d.step, zh = h.first + (h.from + kh) * h.step;
        int_t zw = w.first + (w.from + kw) * w.step;
        value_t v = x[zd * (int_t)a.x[2] + zh * (int_t)a.x[3] + zw * (int_t)a.x[4]];
        take(widen<acc_t>(v), (zd * (int_t)a.axes[1].x + zh) * (int_t)a.axes[2].x + zw, best, winner);
    }

    if constexpr (CHANNELS) {
        __shared__ acc_t parts[WARPS][WARP];
        __shared__ int_t places[WARPS][WARP];
        parts[warp][lane] = best;
        places[warp][lane] = winner;
        __syncthreads();
        if (warp != 0 || !active) return;
        for (int i = 1; i < WARPS; i++) merge(parts[i][lane], places[i][lane], best, winner);
    } else {
        for (int step = WARP / 2; step > 0; step /= 2) {
            acc_t v = __shfl_down_sync(0xffffffffu, best, step);
            int_t at = __shfl_down_sync(0xffffffffu, winner, step);
            merge(v, at, best, winner);
        }
        if (lane != 0 || !active) return;
    }
    store(a, p, d, h, w, best, winner);
}
