/* SPDX-License-Identifier: Apache-2.0
 * wgrad's sums into the filter, four channels at a time. Constants: VECTOR (4: channels of the filter
 * lie side by side; else 1); out_t. */
#pragma once
#include "cuda/device/vector.cuh"
#include "ops/conv/conv_sm90_args.h"

__device__ __forceinline__ float4 add(const float4 &p, const float4 &q)
{
    return make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
}

/* Channels c to c + 3 of a tap of row `row`. */
__device__ __forceinline__ void store_channels(const mica_conv_sm90_filter &a, int row, int tap, int c,
                                               const float4 &sum)
{
    const int t2 = tap % a.taps[2], rest = tap / a.taps[2], t1 = rest % a.taps[1], t0 = rest / a.taps[1];
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    out_t *to = (out_t *)a.out + (a.f_base + row * a.f.n + c * a.f.c + t0 * a.f.s[0] + t1 * a.f.s[1] + t2 * a.f.s[2]);
    out_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float e = a.alpha * v[i];
        if (a.beta != 0) e += a.beta * widen<float>(to[i * a.f.c]);
        r[i] = narrow<out_t>(e);
    }
    if constexpr (VECTOR == 4) {
        store_vector<4>(to, r);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i * a.f.c] = r[i];
    }
}
