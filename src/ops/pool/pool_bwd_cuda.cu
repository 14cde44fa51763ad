/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward: one thread gathers VEC channels of an element of dx from the windows over it, in a
 * fixed order. An index that is none of its window's taps meets no element. Constants: VEC, BLOCK and
 * those of pool.cuh. */
#include "ops/pool/pool.cuh"

static_assert(CHANNELS || VEC == 1, "vectors of channels");

__device__ __forceinline__ void take_window(const mica_pool_args &a, const place &window, int_t element,
                                            acc_t divisor, acc_t *sum)
{
    value_t g[VEC];
    load_some<VEC>((const value_t *)a.in + offset_of(a.y, window), g, VEC, a.aligned);
    if constexpr (MODE == MAX) {
        const index_t *at = (const index_t *)a.indices + offset_of(a.i, window);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (at[i] == (index_t)element) sum[i] += widen<acc_t>(g[i]);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] += widen<acc_t>(g[i]) / divisor;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) pool_bwd(const mica_pool_args a)
{
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    place p = find_place((int_t)item, (int_t)a.c, (int_t)a.axes[0].x, (int_t)a.axes[1].x, (int_t)a.axes[2].x);
    int_t d0, d1, h0, h1, w0, w1;
    find_windows(a.axes[0], p.d, d0, d1);
    find_windows(a.axes[1], p.h, h0, h1);
    find_windows(a.axes[2], p.w, w0, w1);
    int_t element = (p.d * (int_t)a.axes[1].x + p.h) * (int_t)a.axes[2].x + p.w;
    acc_t sum[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] = 0;

    for (int_t d = d0; d < d1; d++) {
        if (!has_tap(a.axes[0], d, p.d)) continue;
        for (int_t h = h0; h < h1; h++) {
            if (!has_tap(a.axes[1], h, p.h)) continue;
            double rows = 1;
            if constexpr (MODE != MAX)
                rows = count_taps(a.axes[0], find_taps(a.axes[0], d)) *
                       count_taps(a.axes[1], find_taps(a.axes[1], h));
            for (int_t w = w0; w < w1; w++) {
                if (!has_tap(a.axes[2], w, p.w)) continue;
                acc_t n = 1;
                if constexpr (MODE != MAX)
                    n = (acc_t)(rows * count_taps(a.axes[2], find_taps(a.axes[2], w)));
                place window = {p.n, p.c, d, h, w};
                take_window(a, window, element, n, sum);
            }
        }
    }

    value_t out[VEC];
    value_t *dx = (value_t *)a.out + offset_of(a.x, p);
    if (a.beta != 0) load_some<VEC>(dx, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, sum[i], out[i]);
    store_some<VEC>(dx, out, VEC, a.aligned);
}
