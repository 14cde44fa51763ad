/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward: one thread gathers VEC channels of an element of dx from the windows over it, in a
 * fixed order. An index that is none of its window's taps meets no element. Constants: VEC, BLOCK and
 * those of pool.cuh. */
#include "cuda/device/overlap.cuh"
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

template <bool WHOLE>
__device__ __forceinline__ void take_window(const mica_pool_args &a, const place &window, int_t element, acc_t divisor, acc_t *sum)
{
    value_t g[VEC];
    load_some<VEC>((const value_t *)a.in + offset_of(a.y, window), g, VEC, WHOLE);
    if constexpr (MODE == MAX) {
        index_t at[VEC];
        load_some<VEC>((const index_t *)a.indices + offset_of(a.i, window), at, VEC, WHOLE);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (at[i] == (index_t)element) sum[i] += widen<acc_t>(g[i]);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] += widen<acc_t>(g[i]) / divisor;
    }
}

template <bool WHOLE>
__device__ __forceinline__ void gather(const mica_pool_args &a, const place &p, acc_t *sum)
{
    range rd = windows_over<0>(a, p.d), rh = windows_over<1>(a, p.h), rw = windows_over<2>(a, p.w);
    int_t element = (p.d * (int_t)a.axes[1].x + p.h) * (int_t)a.axes[2].x + p.w;
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
                place window = {p.n, p.c, d, h, w};
                take_window<WHOLE>(a, window, element, n, sum);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_bwd(const mica_pool_args a)
{
    overlap_wait();
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    place p = find_place((int_t)item, (int_t)a.c, (int_t)a.axes[0].x, (int_t)a.axes[1].x, (int_t)a.axes[2].x);
    acc_t sum[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] = 0;
    if (a.aligned) gather<true>(a, p, sum);
    else gather<false>(a, p, sum);

    value_t out[VEC];
    value_t *dx = (value_t *)a.out + offset_of(a.x, p);
    if (a.beta != 0) load_some<VEC>(dx, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, sum[i], out[i]);
    store_some<VEC>(dx, out, VEC, a.aligned);
}
