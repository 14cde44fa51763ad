/* SPDX-License-Identifier: Apache-2.0
 * The sum of wgrad's partial sums in a fixed order, and its way into the filter: four channels to a
 * thread, SHARES threads to a sum, neighbours at neighbouring channels. Constants: BLOCK; SHARES; those of
 * im2col_filter.cuh. */
#include "kernels/overlap.cuh"
#include "ops/conv/im2col/im2col_filter.cuh"
#include "ops/conv/im2col/im2col_stream.cuh"

constexpr int SUMS = BLOCK / SHARES;

extern "C" __global__ void __launch_bounds__(BLOCK) conv_sm90_reduce(const mica_conv_sm90_reduce_args a)
{
    __shared__ float4 part[SHARES][SUMS];
    const int lane = (int)threadIdx.x % SUMS, share = (int)threadIdx.x / SUMS;
    const int index = (int)blockIdx.x * SUMS + lane;
    const bool exists = index < a.count;
    /* index counts (row, tap, four channels) */
    const mica_conv_sm90_filter &f = a.filter;
    const int c = index % (f.channels / 4) * 4, pair = index / (f.channels / 4);
    const int taps = f.taps[0] * f.taps[1] * f.taps[2], tap = pair % taps, row = pair / taps;
    const int column = tap * a.pitch + c;
    const float *from = a.partial + ((long long)row * a.columns + column);
    int parts = a.splits;
    if (a.stream.pieces > 0) parts = parts_of(a.stream, tile_of(a.stream, row, column));
    overlap_wait();
    float4 sum = make_float4(0, 0, 0, 0);
    if (exists)
#pragma unroll 4
        for (int i = share; i < parts; i += SHARES) sum = add(sum, *(const float4 *)(from + i * a.split_stride));
    part[share][lane] = sum;
    __syncthreads();
    if (share > 0 || !exists) return;
#pragma unroll
    for (int i = 1; i < SHARES; i++) sum = add(sum, part[i][lane]);
    store_channels(f, filter_place(f, (u32)tap, c) + row * f.f.n, sum);
}
