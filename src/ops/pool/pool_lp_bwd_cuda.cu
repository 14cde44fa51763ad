/* SPDX-License-Identifier: Apache-2.0
 * Lp pooling backward: one thread gathers VEC channels of an element of dx from the windows over it, in a
 * fixed order: dy |x / y|^(p - 1) with the sign of x. Floor: bytes / bandwidth, where the cache answers the
 * windows that elements share. Constants: those of pool_lp.cuh. */
#include "ops/pool/pool_lp.cuh"

__device__ __forceinline__ acc_t slope(acc_t x, acc_t y, acc_t p)
{
    if constexpr (POWER == 1) {
        if constexpr (SIGNED) return 1;
        return x > 0 ? (acc_t)1 : x < 0 ? (acc_t)-1 : x;
    } else {
        const acc_t base = SIGNED ? x : abs_of(x), ratio = base / y;
        if (y == 0 || (!SIGNED && x == 0)) return 0;
        acc_t s;
        if constexpr (POWER > 0) s = whole_power<POWER - 1>(ratio);
        else s = pow_of(ratio, p - 1);
        return !SIGNED && x < 0 ? -s : s;
    }
}

/* dy times the slope: where windows cancel, the power may overflow and the product not. */
__device__ __forceinline__ acc_t product(acc_t dy, acc_t x, acc_t y, acc_t p)
{
    const acc_t s = slope(x, y, p), size = abs_of(s);
    if (!SIGNED || !(size > 1 && size - size != 0)) return dy * s;
    const acc_t half = pow_of(abs_of(x / y), (p - 1) / 2);
    return s < 0 ? dy * half * -half : dy * half * half;
}

__device__ __forceinline__ void gather(const mica_pool_lp_args &all, const place &p, const value_t *x, acc_t *sum)
{
    const mica_pool_args &a = all.pool;
    int_t d_from, d_to, h_from, h_to, w_from, w_to;
    find_windows<0>(a, p.d, d_from, d_to);
    find_windows<1>(a, p.h, h_from, h_to);
    find_windows<2>(a, p.w, w_from, w_to);
    for (int_t d = d_from; d < d_to; d++) {
        if (!has_tap<0>(a, d, p.d)) continue;
        for (int_t h = h_from; h < h_to; h++) {
            if (!has_tap<1>(a, h, p.h)) continue;
#pragma unroll 2
            for (int_t w = w_from; w < w_to; w++) {
                if (!has_tap<2>(a, w, p.w)) continue;
                const place from = {p.n, p.c, d, h, w};
                value_t dy[VEC], y[VEC];
                load_some<VEC>((const value_t *)a.in + offset_of(a.y, from), dy, VEC, a.aligned);
                load_some<VEC>((const value_t *)all.output + offset_of(all.output_strides, from), y, VEC, a.aligned);
                acc_t by = 1;
                if constexpr (RESCALE) by = rescale_of(a, find_taps<0>(a, d), find_taps<1>(a, h), find_taps<2>(a, w));
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const acc_t v = RESCALE ? widen<acc_t>(dy[i]) * by : widen<acc_t>(dy[i]);
                    sum[i] += product(v, widen<acc_t>(x[i]), widen<acc_t>(y[i]), (acc_t)all.p);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_lp_bwd(const __grid_constant__ mica_pool_lp_args all)
{
    const mica_pool_args &a = all.pool;
    overlap_wait();
    const long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    const place p = find_place(a, (int_t)item);
    value_t x[VEC], out[VEC], *dx = (value_t *)a.out + offset_of(a.x, p);
    acc_t sum[VEC];
    load_some<VEC>((const value_t *)all.input + offset_of(all.input_strides, p), x, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] = 0;
    gather(all, p, x, sum);
    if (a.beta != 0) load_some<VEC>(dx, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, sum[i], out[i]);
    store_some<VEC>(dx, out, VEC, a.aligned);
}
