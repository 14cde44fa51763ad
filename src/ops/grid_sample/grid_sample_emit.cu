/* SPDX-License-Identifier: Apache-2.0
 * Taps of outputs, for the gradient of x: ops/taps/taps.h. Constants and types of grid_sample.cuh and of
 * taps.cuh. */
#include "ops/grid_sample/grid_sample.cuh"
#include "ops/taps/taps.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) grid_sample_emit(const mica_grid_sample_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.shape.n * a.shape.out_count) return;
    const output_t o = find_output(a, i);
    const axes_t t = axes_of(a, o);
    long long step[AXES];
    s64 size = 1;
#pragma unroll
    for (int d = AXES - 1; d >= 0; d--) step[d] = size, size *= a.shape.in[d];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const s64 cell = tap_place<s64>(t, k, step);
        taps_emit(a.lists, i * TAPS + k, cell < 0 ? -1 : o.n * a.shape.in_count + cell, tap_weight(t, k, -1));
    }
}
