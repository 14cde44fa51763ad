/* SPDX-License-Identifier: Apache-2.0
 * The sum of wgrad's partial sums in a fixed order, and its way into the filter: four channels to a
 * thread, SHARES threads to a sum, neighbours at neighbouring channels. Constants: BLOCK; SHARES; VECTOR
 * (4: channels of the filter lie side by side; else 1); out_t. */
#include "cuda/device/vector.cuh"
#include "ops/conv/conv_sm90_stream.cuh"

constexpr int SUMS = BLOCK / SHARES;

__device__ __forceinline__ float4 add(const float4 &p, const float4 &q)
{
    return make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
}

__device__ __forceinline__ void store(const mica_conv_sm90_reduce_args &a, out_t *to, const float4 &sum)
{
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
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

extern "C" __global__ void __launch_bounds__(BLOCK) conv_sm90_reduce(const mica_conv_sm90_reduce_args a)
{
    __shared__ float4 part[SHARES][SUMS];
    const int lane = (int)threadIdx.x % SUMS, share = (int)threadIdx.x / SUMS;
    const int index = (int)blockIdx.x * SUMS + lane;
    const bool exists = index < a.count;
    /* index counts (row, tap, four channels) */
    const int c = index % (a.channels / 4) * 4, pair = index / (a.channels / 4);
    const int taps = a.taps[0] * a.taps[1] * a.taps[2], tap = pair % taps, row = pair / taps;
    const int column = tap * ((a.channels + 63) / 64 * 64) + c;
    const float *from = a.partial + ((long long)row * a.columns + column);
    float4 sum = make_float4(0, 0, 0, 0);
    if (exists) {
        int parts = a.splits;
        if (a.stream.pieces > 0)
            parts = parts_of(a.stream, row / a.stream.tile_rows * a.stream.col_tiles + column / a.stream.tile_cols);
#pragma unroll 4
        for (int i = share; i < parts; i += SHARES) sum = add(sum, *(const float4 *)(from + i * a.split_stride));
    }
    part[share][lane] = sum;
    __syncthreads();
    if (share > 0 || !exists) return;
#pragma unroll
    for (int i = 1; i < SHARES; i++) sum = add(sum, part[i][lane]);
    const int t2 = tap % a.taps[2], rest = tap / a.taps[2], t1 = rest % a.taps[1], t0 = rest / a.taps[1];
    store(a, (out_t *)a.out + (a.f_base + row * a.f.n + c * a.f.c + t0 * a.f.s[0] + t1 * a.f.s[1] + t2 * a.f.s[2]), sum);
}
