/* SPDX-License-Identifier: Apache-2.0
 * The parts of conv_stats, added in their order. Constants: BLOCK, CHANNELS, SUM and SQUARE (whether they are
 * wanted); type stat_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/lowered/stats.cuh"
#include "ops/conv/lowered/passes_args.h"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_stats_sum(const __grid_constant__ conv_stats_args a)
{
    overlap_wait();
    __shared__ totals shared;
    const int lane = (int)threadIdx.x / CHANNELS;
    const s64 channel = (s64)blockIdx.x * CHANNELS + threadIdx.x % CHANNELS;
    double sum = 0, square = 0;
    if (channel < a.channels)
        for (s64 part = lane; part < a.parts; part += LANES) {
            sum += a.partial[2 * part * a.channels + channel];
            square += a.partial[(2 * part + 1) * a.channels + channel];
        }
    add_lanes(shared, sum, square);
    if (lane > 0 || channel >= a.channels) return;
    if constexpr (SUM) ((stat_t *)a.sum)[channel * a.sum_stride] = narrow<stat_t>(sum);
    if constexpr (SQUARE) ((stat_t *)a.square)[channel * a.square_stride] = narrow<stat_t>(square);
}
