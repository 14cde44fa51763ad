/* SPDX-License-Identifier: Apache-2.0
 * Winograd: from points to the taps of a filter's gradient. Constants: those of winograd.cuh; BLOCK;
 * filter_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/winograd/winograd.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_winograd_wgrad(const __grid_constant__ conv_winograd_args a)
{
    overlap_wait();
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const unsigned row = mica_fastdiv_of(a.columns, i), column = i - row * a.columns.divisor;
    filter_t *to = (filter_t *)a.to + row * a.filter_row + column * a.filter_col;
    sum_t m[POINTS][POINTS], g[TAPS][TAPS];
    load_points(a, i, m);
    both_axes<points_to_filter>(m, g);
#pragma unroll
    for (int t = 0; t < TAPS * TAPS; t++) {
        filter_t *out = to + t / TAPS * a.filter_s[0] + t % TAPS * a.filter_s[1];
        sum_t v = g[t / TAPS][t % TAPS] * (sum_t)a.alpha;
        if (a.beta != 0) v += (sum_t)a.beta * widen<sum_t>(*out);
        *out = narrow<filter_t>(v);
    }
}
