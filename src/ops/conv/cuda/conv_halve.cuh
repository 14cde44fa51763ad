/* SPDX-License-Identifier: Apache-2.0
 * Warp reduce-scatter by shuffles: after log2(n) steps a lane holds 1/n of the sums, complete. */
#pragma once

/* Of N sums, a lane and the one `far` from it each keep the half that is theirs, of both. The upper
 * half is that of the upper lane. */
template <int N> __device__ __forceinline__ void halve(float *v, int far)
{
    const bool upper = (int)threadIdx.x & far;
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
        const float keep = upper ? v[e + N / 2] : v[e], give = upper ? v[e] : v[e + N / 2];
        v[e] = keep + __shfl_xor_sync(0xffffffffu, give, far);
    }
}
