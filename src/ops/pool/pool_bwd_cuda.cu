/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward: one thread gathers VEC channels of an element of dx from the windows over it, in a
 * fixed order; of BAKED windows, those of STRIDE_W elements side by side, which the same windows lie over.
 * An index that is none of its window's taps meets no element. Constants: VEC, BLOCK and those of
 * pool.cuh. */
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

static_assert(CHANNELS || VEC == 1, "vectors of channels");

struct range {
    int_t from, to;
};

template <int AXIS> __device__ __forceinline__ range windows_over(const mica_pool_args &a, int_t i)
{
    range r;
    find_windows<AXIS>(a, i, r.from, r.to);
    return r;
}

constexpr int BESIDE = STRIDE_W; /* 1 where windows are not constants */

/* What a window has: gradients, and (MAX) whose they are. */
struct window {
    value_t g[VEC];
    index_t at[VEC];
};

template <bool WHOLE> __device__ __forceinline__ void read_window(const mica_pool_args &a, const place &p, window &w)
{
    load_some<VEC>((const value_t *)a.in + offset_of(a.y, p), w.g, VEC, WHOLE);
    if constexpr (MODE == MAX) load_some<VEC>((const index_t *)a.indices + offset_of(a.i, p), w.at, VEC, WHOLE);
}

/* To BESIDE elements from `element` on, the first of which is the window's tap `tap`. */
__device__ __forceinline__ void add_window(const window &w, int_t element, int tap, acc_t divisor, acc_t (*sum)[VEC])
{
    const acc_t by = MODE == MAX ? (acc_t)1 : (acc_t)1 / divisor;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        acc_t v = widen<acc_t>(w.g[i]);
        if constexpr (MODE != MAX) v = share_of(v, divisor, by);
#pragma unroll
        for (int e = 0; e < BESIDE; e++) {
            if (BAKED && tap + e >= WINDOW_W) continue;
            if (MODE != MAX || w.at[i] == (index_t)(element + e)) sum[e][i] += v;
        }
    }
}

/* ---- small windows ---- */

/* Windows over an element, at most. */
constexpr int most_over(int window, int stride) { return (window + stride - 1) / stride; }

/* Whether window o, counted from the last that may lie over element i, is one of those over it. */
template <int AXIS> __device__ __forceinline__ bool is_over(const mica_pool_args &a, int_t o, int_t i)
{
    return o >= 0 && o < (int_t)a.axes[AXIS].y && i + pad_of<AXIS>(a) - o * stride_of<AXIS>(a) < window_of<AXIS>(a);
}

/* A row of windows. */
template <bool WHOLE>
__device__ __forceinline__ void take_row(const mica_pool_args &a, const place &p, int_t d, int_t h, int_t element, int taps, acc_t (*sum)[VEC])
{
    constexpr int OVER_W = most_over(WINDOW_W, STRIDE_W), ABREAST = OVER_W < 2 ? 1 : 2;
    const int_t first = (p.w + PAD_W) / STRIDE_W - (OVER_W - 1);
#pragma unroll
    for (int k = 0; k < OVER_W; k += ABREAST) {
        window windows[ABREAST];
        bool there[ABREAST];
#pragma unroll
        for (int j = 0; j < ABREAST; j++) {
            int_t o = first + k + j;
            there[j] = k + j < OVER_W && o >= 0 && o < (int_t)a.axes[2].y;
            if (there[j]) read_window<WHOLE>(a, place{p.n, p.c, d, h, o}, windows[j]);
        }
#pragma unroll
        for (int j = 0; j < ABREAST; j++) {
            if (!there[j]) continue;
            int n = MODE == MAX ? 1 : taps * (int)count_taps<2>(a, find_taps<2>(a, first + k + j));
            add_window(windows[j], element, (OVER_W - 1 - k - j) * STRIDE_W, (acc_t)n, sum);
        }
    }
}

template <bool WHOLE>
__device__ __forceinline__ void gather_baked(const mica_pool_args &a, const place &p, int_t element, acc_t (*sum)[VEC])
{
    constexpr int OVER_D = most_over(WINDOW_D, STRIDE_D), OVER_H = most_over(WINDOW_H, STRIDE_H);
    const int_t first_d = (p.d + PAD_D) / STRIDE_D - (OVER_D - 1), first_h = (p.h + PAD_H) / STRIDE_H - (OVER_H - 1);
#pragma unroll
    for (int i = 0; i < OVER_D; i++) {
        if (!is_over<0>(a, first_d + i, p.d)) continue;
#pragma unroll
        for (int j = 0; j < OVER_H; j++) {
            if (!is_over<1>(a, first_h + j, p.h)) continue;
            int taps = 1;
            if constexpr (MODE != MAX)
                taps = (int)count_taps<0>(a, find_taps<0>(a, first_d + i)) * (int)count_taps<1>(a, find_taps<1>(a, first_h + j));
            take_row<WHOLE>(a, p, first_d + i, first_h + j, element, taps, sum);
        }
    }
}

/* ---- any ---- */

template <bool WHOLE>
__device__ __forceinline__ void gather(const mica_pool_args &a, const place &p, int_t element, acc_t (*sum)[VEC])
{
    range rd = windows_over<0>(a, p.d), rh = windows_over<1>(a, p.h), rw = windows_over<2>(a, p.w);
    for (int_t d = rd.from; d < rd.to; d++) {
        if (!has_tap<0>(a, d, p.d)) continue;
        for (int_t h = rh.from; h < rh.to; h++) {
            if (!has_tap<1>(a, h, p.h)) continue;
            double rows = 1;
            if constexpr (MODE != MAX)
                rows = (double)count_taps<0>(a, find_taps<0>(a, d)) * (double)count_taps<1>(a, find_taps<1>(a, h));
#pragma unroll 2
            for (int_t w = rw.from; w < rw.to; w++) {
                if (!has_tap<2>(a, w, p.w)) continue;
                acc_t n = 1;
                if constexpr (MODE != MAX) n = (acc_t)(rows * (double)count_taps<2>(a, find_taps<2>(a, w)));
                window one;
                read_window<WHOLE>(a, place{p.n, p.c, d, h, w}, one);
                add_window(one, element, 0, n, sum);
            }
        }
    }
}

template <bool WHOLE> __device__ __forceinline__ void collect(const mica_pool_args &a, const place &p, acc_t (*sum)[VEC])
{
    int_t element = (p.d * (int_t)a.axes[1].x + p.h) * (int_t)a.axes[2].x + p.w;
    if constexpr (BAKED) gather_baked<WHOLE>(a, p, element, sum);
    else gather<WHOLE>(a, p, element, sum);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_bwd(const mica_pool_args a)
{
    overlap_wait();
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    place p = find_place(a, (int_t)item);
    if constexpr (BAKED) p.w = (p.w + PAD_W / STRIDE_W) * STRIDE_W - PAD_W; /* may lie before x's first element */
    acc_t sum[BESIDE][VEC];
#pragma unroll
    for (int e = 0; e < BESIDE; e++)
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[e][i] = 0;
    if (a.aligned) collect<true>(a, p, sum);
    else collect<false>(a, p, sum);

#pragma unroll
    for (int e = 0; e < BESIDE; e++, p.w++) {
        if (BAKED && (p.w < 0 || p.w >= (int_t)a.axes[2].x)) continue;
        value_t out[VEC];
        value_t *dx = (value_t *)a.out + offset_of(a.x, p);
        if (a.beta != 0) load_some<VEC>(dx, out, VEC, a.aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++) out[i] = finish(a, sum[e][i], out[i]);
        store_some<VEC>(dx, out, VEC, a.aligned);
    }
}
