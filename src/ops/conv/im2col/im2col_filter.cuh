/* SPDX-License-Identifier: Apache-2.0
 * wgrad's sums into the filter, four channels at a time. Constants: VECTOR (4: channels of the filter
 * lie side by side; else 1); out_t. */
#pragma once
#include "kernels/vector.cuh"
#include "ops/conv/im2col/im2col_args.h"

__device__ __forceinline__ float4 add(const float4 &p, const float4 &q)
{
    return make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
}

/* Where channel c of a tap lies, in row 0. */
__device__ __forceinline__ long long filter_place(const mica_conv_sm90_filter &a, u32 tap, int c)
{
    const u32 n2 = (u32)a.taps[2], n1 = (u32)a.taps[1], t2 = tap % n2, rest = tap / n2, t1 = rest % n1, t0 = rest / n1;
    return a.f_base + c * a.f.c + t0 * a.f.s[0] + t1 * a.f.s[1] + t2 * a.f.s[2];
}

/* Four channels from `place` on. */
__device__ __forceinline__ void store_channels(const mica_conv_sm90_filter &a, long long place, const float4 &sum)
{
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    out_t *to = (out_t *)a.out + place;
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
