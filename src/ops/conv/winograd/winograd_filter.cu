/* SPDX-License-Identifier: Apache-2.0
 * Winograd: a filter's taps to points, planes of them. Constants: those of winograd.cuh; BLOCK; filter_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/winograd/winograd.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_winograd_filter(const __grid_constant__ conv_winograd_args a)
{
    overlap_wait();
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const unsigned row = mica_fastdiv_of(a.columns, i), column = i - row * a.columns.divisor;
    const filter_t *from = (const filter_t *)a.from + row * a.filter_row + column * a.filter_col;
    sum_t g[TAPS][TAPS], u[POINTS][POINTS];
#pragma unroll
    for (int t = 0; t < TAPS * TAPS; t++)
        g[t / TAPS][t % TAPS] = widen<sum_t>(from[t / TAPS * a.filter_s[0] + t % TAPS * a.filter_s[1]]);
    both_axes<filter_to_points>(g, u);
    store_points(a, i, u);
}
