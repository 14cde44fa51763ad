/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward: one thread forms VEC channels of a window. Constants: VEC, BLOCK and those of
 * pool.cuh. */
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

static_assert(CHANNELS || VEC == 1, "vectors of channels");

struct window {
    taps d, h, w;
    const value_t *x;    /* the image's first element, of these channels */
    int_t height, width; /* of x */
};

__device__ __forceinline__ void take_vector(const value_t *v, int_t at, acc_t *best, int_t *winner)
{
#pragma unroll
    for (int i = 0; i < VEC; i++) take(widen<acc_t>(v[i]), at, best[i], winner[i]);
}

/* A row of taps is in flight before the first is used; those outside read a neighbour. */
template <bool WHOLE>
__device__ __forceinline__ void take_row(const mica_pool_args &a, const window &n, const value_t *line, int_t row, acc_t *best, int_t *winner)
{
    value_t v[WINDOW_W][VEC];
#pragma unroll
    for (int kw = 0; kw < WINDOW_W; kw++) {
        int_t k = kw < n.w.from ? n.w.from : kw >= n.w.to ? n.w.to - 1 : kw;
        load_some<VEC>(line + (n.w.first + k) * (int_t)a.x[4], v[kw], VEC, WHOLE);
    }
#pragma unroll
    for (int kw = 0; kw < WINDOW_W; kw++)
        if (kw >= n.w.from && kw < n.w.to) take_vector(v[kw], row + n.w.first + kw, best, winner);
}

template <bool WHOLE>
__device__ __forceinline__ void walk(const mica_pool_args &a, const window &n, acc_t *best, int_t *winner)
{
    if (n.w.from >= n.w.to) return;
#pragma unroll(BAKED ? WINDOW_D : 1)
    for (int_t kd = BAKED ? 0 : n.d.from; kd < (BAKED ? WINDOW_D : n.d.to); kd++) {
        if (BAKED && (kd < n.d.from || kd >= n.d.to)) continue;
#pragma unroll(BAKED ? WINDOW_H : 1)
        for (int_t kh = BAKED ? 0 : n.h.from; kh < (BAKED ? WINDOW_H : n.h.to); kh++) {
            if (BAKED && (kh < n.h.from || kh >= n.h.to)) continue;
            int_t zd = n.d.first + kd * n.d.step, zh = n.h.first + kh * n.h.step;
            int_t row = (zd * n.height + zh) * n.width;
            const value_t *line = n.x + zd * (int_t)a.x[2] + zh * (int_t)a.x[3];
            if constexpr (BAKED) {
                take_row<WHOLE>(a, n, line, row, best, winner);
            } else {
                for (int_t kw = n.w.from; kw < n.w.to; kw++) {
                    int_t zw = n.w.first + kw * n.w.step;
                    value_t v[VEC];
                    load_some<VEC>(line + zw * (int_t)a.x[4], v, VEC, WHOLE);
                    take_vector(v, row + zw, best, winner);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool(const mica_pool_args a)
{
    overlap_wait();
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    place p = find_place(a, (int_t)item);
    window n = {find_taps<0>(a, p.d), find_taps<1>(a, p.h), find_taps<2>(a, p.w)};
    n.x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];
    n.height = (int_t)a.axes[1].x, n.width = (int_t)a.axes[2].x;
    acc_t best[VEC];
    int_t winner[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) best[i] = least(), winner[i] = -1;
    if (a.aligned) walk<true>(a, n, best, winner);
    else walk<false>(a, n, best, winner);

    if constexpr (MODE != MAX) {
        double taps = (double)count_taps<0>(a, n.d) * (double)count_taps<1>(a, n.h) * (double)count_taps<2>(a, n.w);
#pragma unroll
        for (int i = 0; i < VEC; i++) best[i] = average(best[i], taps);
    }
    value_t out[VEC];
    value_t *y = (value_t *)a.out + offset_of(a.y, p);
    if (a.beta != 0) load_some<VEC>(y, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, best[i], out[i]);
    store_some<VEC>(y, out, VEC, a.aligned);
    if constexpr (INDICES) {
        index_t at[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) at[i] = (index_t)winner[i];
        store_some<VEC>((index_t *)a.indices + offset_of(a.i, p), at, VEC, a.aligned);
    }
}
