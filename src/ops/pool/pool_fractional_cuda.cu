/* SPDX-License-Identifier: Apache-2.0
 * Fractional max pooling forward: one thread forms a window, which starts where its plane's samples say.
 * Bound by memory where the cache answers windows that overlap. Constants: those of pool_fractional.cuh. */
#include "ops/pool/pool_fractional.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) pool_fractional(const __grid_constant__ mica_pool_fractional_args f)
{
    const mica_pool_args &a = f.pool;
    overlap_wait();
    const long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    const place p = find_place(a, (int_t)item);
    const mica_pool_steps steps_d = steps_of<0>(f, p), steps_h = steps_of<1>(f, p), steps_w = steps_of<2>(f, p);
    const int_t d = (int_t)mica_pool_start(&steps_d, p.d), h = (int_t)mica_pool_start(&steps_h, p.h);
    const int_t w = (int_t)mica_pool_start(&steps_w, p.w);
    const value_t *x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];
    acc_t best = least();
    int_t winner = -1;
#pragma unroll(BAKED ? WINDOW_D : 1)
    for (int_t kd = 0; kd < window_of<0>(a); kd++)
#pragma unroll(BAKED ? WINDOW_H : 1)
        for (int_t kh = 0; kh < window_of<1>(a); kh++) {
            const int_t row = ((d + kd) * (int_t)a.axes[1].x + h + kh) * (int_t)a.axes[2].x;
            const value_t *line = x + (d + kd) * (int_t)a.x[2] + (h + kh) * (int_t)a.x[3];
#pragma unroll(BAKED ? WINDOW_W : 1)
            for (int_t kw = 0; kw < window_of<2>(a); kw++)
                take(widen<acc_t>(line[(w + kw) * (int_t)a.x[4]]), row + w + kw, best, winner);
        }
    value_t *y = (value_t *)a.out + offset_of(a.y, p), old = {};
    if (a.beta != 0) old = *y;
    *y = finish(a, best, old);
    if constexpr (INDICES) ((index_t *)a.indices)[offset_of(a.i, p)] = (index_t)winner;
}
