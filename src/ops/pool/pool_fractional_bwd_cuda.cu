/* SPDX-License-Identifier: Apache-2.0
 * Fractional max pooling backward: one thread gathers an element of dx from the windows over it, which are
 * found from its plane's samples, in a fixed order. An index that is none of its window's taps meets no
 * element. Constants: those of pool_fractional.cuh. */
#include "ops/pool/pool_fractional.cuh"

/* Windows [from, to) over element i. */
template <int AXIS>
__device__ __forceinline__ void windows_over(const mica_pool_fractional_args &f, const place &p, int_t i, int_t &from, int_t &to)
{
    if constexpr (AXIS < 3 - AXES) {
        from = 0, to = 1;
    } else {
        const mica_pool_steps s = steps_of<AXIS>(f, p);
        from = (int_t)mica_pool_behind(&s, (long long)i - window_of<AXIS>(f.pool));
        to = (int_t)mica_pool_behind(&s, i);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) pool_fractional_bwd(const __grid_constant__ mica_pool_fractional_args f)
{
    const mica_pool_args &a = f.pool;
    overlap_wait();
    const long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    const place p = find_place(a, (int_t)item);
    const int_t element = (p.d * (int_t)a.axes[1].x + p.h) * (int_t)a.axes[2].x + p.w;
    int_t d_from, d_to, h_from, h_to, w_from, w_to;
    windows_over<0>(f, p, p.d, d_from, d_to);
    windows_over<1>(f, p, p.h, h_from, h_to);
    windows_over<2>(f, p, p.w, w_from, w_to);
    acc_t sum = 0;
    for (int_t d = d_from; d < d_to; d++)
        for (int_t h = h_from; h < h_to; h++)
            for (int_t w = w_from; w < w_to; w++) {
                const place from = {p.n, p.c, d, h, w};
                if (((const index_t *)a.indices)[offset_of(a.i, from)] != (index_t)element) continue;
                sum += widen<acc_t>(((const value_t *)a.in)[offset_of(a.y, from)]);
            }
    value_t *dx = (value_t *)a.out + offset_of(a.x, p), old = {};
    if (a.beta != 0) old = *dx;
    *dx = finish(a, sum, old);
}
