/* SPDX-License-Identifier: Apache-2.0
 * Any strides: a thread has one element of the result, or VEC channels of it. Floor: the bytes at copy
 * bandwidth; what neighbours read, too, comes from the cache. Constants of resize.cuh, 0 for many weights;
 * CHANNELS (neighbouring threads are neighbours in C, else in W), VEC, EXTRAPOLATES, BLOCK. */
#include "ops/resize/resize.cuh"

static_assert(CHANNELS || VEC == 1, "vectors of channels");

/* What has no weight is not read: it may be infinite. */
__device__ __forceinline__ void add_few(const value_t *line, int_t step, const acc_t *w, acc_t by, bool whole, acc_t *sum)
{
    constexpr int MOST = MOST_W ? MOST_W : 1;
    lanes<value_t, VEC> r[MOST]; /* on their way before the first is used */
#pragma unroll
    for (int k = 0; k < MOST; k++)
        if (w[k] != 0) r[k] = fetch<VEC>(line + k * step, whole);
#pragma unroll
    for (int k = 0; k < MOST; k++) {
        if (w[k] == 0) continue;
        acc_t v[VEC];
        unpack(r[k], v);
        const acc_t weight = by * w[k];
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] = fma(weight, v[i], sum[i]);
    }
}

__device__ __forceinline__ void add_many(const value_t *line, int_t step, const acc_t *w, int_t most, acc_t by, bool whole, acc_t *sum)
{
#pragma unroll 1
    for (int_t k = 0; k < most; k++) {
        if (w[k] == 0) continue;
        acc_t v[VEC];
        unpack(fetch<VEC>(line + k * step, whole), v);
        const acc_t weight = by * w[k];
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] = fma(weight, v[i], sum[i]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) resize_points(const __grid_constant__ mica_resize_args a)
{
    overlap_wait();
    const s64 item = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    int_t rest = (int_t)item, c = 0;
    if (CHANNELS) c = next_digit<3>(a, rest);
    const int_t w = next_digit<2>(a, rest), h = next_digit<1>(a, rest), d = next_digit<0>(a, rest);
    if (!CHANNELS) c = next_digit<3>(a, rest);
    const int_t n = rest;
    const int_t first_d = ((const int_t *)a.table[0].first)[d], first_h = ((const int_t *)a.table[1].first)[h];
    const int_t first_w = ((const int_t *)a.table[2].first)[w];
    const bool none = (first_d | first_h | first_w) < 0;
    acc_t sum[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] = EXTRAPOLATES && none ? (acc_t)a.extrapolation : (acc_t)0;
    if (!none) {
        const value_t *x = (const value_t *)a.in + n * (int_t)a.from[0] + c * (int_t)a.from[1] +
                           first_d * (int_t)a.from[2] + first_h * (int_t)a.from[3] + first_w * (int_t)a.from[4];
        const int_t most_d = MOST_W ? MOST_D : (int_t)a.table[0].most, most_h = MOST_W ? MOST_H : (int_t)a.table[1].most;
        const acc_t *of_d = (const acc_t *)a.table[0].weights + (s64)d * most_d;
        const acc_t *of_h = (const acc_t *)a.table[1].weights + (s64)h * most_h;
        const acc_t *of_w = (const acc_t *)a.table[2].weights + (s64)w * a.table[2].most;
        acc_t kept[MOST_W ? MOST_W : 1];
        if constexpr (MOST_W) load_vector<MOST_W>(of_w, kept);
#pragma unroll(MOST_W ? MOST_D : 1)
        for (int_t i = 0; i < most_d; i++) {
            const acc_t by_d = of_d[i];
            if (by_d == 0) continue;
#pragma unroll(MOST_W ? MOST_H : 1)
            for (int_t k = 0; k < most_h; k++) {
                const acc_t by = by_d * of_h[k];
                if (by == 0) continue;
                const value_t *line = x + i * (int_t)a.from[2] + k * (int_t)a.from[3];
                if constexpr (MOST_W) add_few(line, (int_t)a.from[4], kept, by, a.whole, sum);
                else add_many(line, (int_t)a.from[4], of_w, (int_t)a.table[2].most, by, a.whole, sum);
            }
        }
    }
    value_t *y = (value_t *)a.out + n * (int_t)a.to[0] + c * (int_t)a.to[1] + d * (int_t)a.to[2] + h * (int_t)a.to[3] +
                 w * (int_t)a.to[4];
    store_elements<value_t, VEC>(y, a.whole, sum);
}
