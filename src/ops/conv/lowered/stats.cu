/* SPDX-License-Identifier: Apache-2.0
 * Sums and sums of squares of y by channel: a block adds one part of the pixels of CHANNELS channels, in
 * double, in an order that depends on nothing but the sizes. Constants: BLOCK, CHANNELS (neighbouring threads
 * read neighbouring channels; 1: neighbouring pixels); type y_t. */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/lowered/stats.cuh"
#include "ops/conv/lowered/passes_args.h"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_stats(const __grid_constant__ conv_stats_args a)
{
    overlap_wait();
    __shared__ totals shared;
    const int lane = (int)threadIdx.x / CHANNELS;
    const s64 channel = (s64)blockIdx.x * CHANNELS + threadIdx.x % CHANNELS, part = blockIdx.y;
    const s64 end = min((part + 1) * a.each, a.layout.count);
    double sum = 0, square = 0;
    if (channel < a.channels)
        for (s64 i = part * a.each + lane; i < end; i += LANES) {
            s64 at;
            layout_offsets<1>(a.layout, i, &at);
            const double v = widen<double>(((const y_t *)a.y)[at + channel * a.channel_stride]);
            sum += v;
            square += v * v;
        }
    add_lanes(shared, sum, square);
    if (lane > 0 || channel >= a.channels) return;
    a.partial[2 * part * a.channels + channel] = sum;
    a.partial[(2 * part + 1) * a.channels + channel] = square;
}
