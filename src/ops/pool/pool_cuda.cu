/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward: one thread forms VEC channels of a window. Constants: VEC, INDICES (written too),
 * BLOCK and those of pool.cuh. */
#include "ops/pool/pool.cuh"

static_assert(CHANNELS || VEC == 1, "vectors of channels");

__device__ __forceinline__ void take_vector(const mica_pool_args &a, const value_t *x, int_t at,
                                            acc_t *best, int_t *winner)
{
    value_t v[VEC];
    load_some<VEC>(x, v, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) take(widen<acc_t>(v[i]), at, best[i], winner[i]);
}

extern "C" __global__ void __launch_bounds__(BLOCK) pool(const mica_pool_args a)
{
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    place p = find_place((int_t)item, (int_t)a.c, (int_t)a.axes[0].y, (int_t)a.axes[1].y, (int_t)a.axes[2].y);
    taps d = find_taps(a.axes[0], p.d), h = find_taps(a.axes[1], p.h), w = find_taps(a.axes[2], p.w);
    acc_t best[VEC];
    int_t winner[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) best[i] = least(), winner[i] = -1;

    const value_t *x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];
    int_t height = (int_t)a.axes[1].x, width = (int_t)a.axes[2].x;
    for (int_t kd = d.from; kd < d.to; kd++)
        for (int_t kh = h.from; kh < h.to; kh++) {
            int_t zd = d.first + kd * d.step, zh = h.first + kh * h.step;
            int_t row = (zd * height + zh) * width;
            const value_t *line = x + zd * (int_t)a.x[2] + zh * (int_t)a.x[3];
            for (int_t kw = w.from; kw < w.to; kw++) {
                int_t zw = w.first + kw * w.step;
                take_vector(a, line + zw * (int_t)a.x[4], row + zw, best, winner);
            }
        }

    if constexpr (MODE != MAX) {
        double n = count_taps(a.axes[0], d) * count_taps(a.axes[1], h) * count_taps(a.axes[2], w);
#pragma unroll
        for (int i = 0; i < VEC; i++) best[i] = n > 0 ? best[i] / (acc_t)n : (acc_t)0;
    }
    value_t out[VEC];
    value_t *y = (value_t *)a.out + offset_of(a.y, p);
    if (a.beta != 0) load_some<VEC>(y, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, best[i], out[i]);
    store_some<VEC>(y, out, VEC, a.aligned);
    if constexpr (INDICES) {
        index_t *to = (index_t *)a.indices + offset_of(a.i, p);
#pragma unroll
        for (int i = 0; i < VEC; i++) to[i] = (index_t)winner[i];
    }
}
