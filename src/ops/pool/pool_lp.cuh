/* SPDX-License-Identifier: Apache-2.0
 * Powers and roots of norms over windows. Constants: POWER (p if it is a whole number of at most 8, else
 * 0: pow), SIGNED (powers of x, not of |x|), RESCALE, VEC, BLOCK and those of pool.cuh, of which windows are
 * not BAKED. */
#pragma once
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

static_assert(!BAKED && (CHANNELS || VEC == 1), "vectors of channels");

__device__ __forceinline__ float pow_of(float v, float p) { return powf(v, p); }
__device__ __forceinline__ double pow_of(double v, double p) { return pow(v, p); }

template <int N> __device__ __forceinline__ acc_t whole_power(acc_t v)
{
    acc_t r = 1;
#pragma unroll
    for (int i = 0; i < N; i++) r = i ? r * v : v;
    return r;
}

/* What sums of powers grow by: taps over those in x. */
__device__ __forceinline__ acc_t rescale_of(const mica_pool_args &a, const taps &d, const taps &h, const taps &w)
{
    if constexpr (ADAPTIVE || !RESCALE) return 1;
    const double whole = (double)window_of<0>(a) * (double)window_of<1>(a) * (double)window_of<2>(a);
    const double there = (double)(d.to - d.from) * (double)(h.to - h.from) * (double)(w.to - w.from);
    return there > 0 ? (acc_t)(whole / there) : (acc_t)1;
}
