/* SPDX-License-Identifier: Apache-2.0
 * Lists in the order of their entries: each entry counts those of its list that are before it. Lists are
 * short, but for grids that all point to one place; those cost their length squared, shared out among all
 * threads. Constants BLOCK, TAPS; types as in taps.cuh. */
#include "ops/taps/taps.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) taps_order(const mica_taps_args a)
{
    overlap_wait();
    const s64 e = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (e >= a.lists.entries) return;
    const mark cell = ((const mark *)a.lists.cells_of_entries)[e];
    if (cell == NO_CELL) return;
    const mark start = ((const mark *)a.lists.starts)[cell], count = ((const mark *)a.lists.counts)[cell];
    const mark *list = (const mark *)a.lists.placed + start;
    mark before = 0;
    for (mark i = 0; i < count; i++) before += list[i] < (mark)e;
    ((mark *)a.lists.outputs)[start + before] = (mark)(e / TAPS % a.shape.out_count);
    ((real *)a.lists.factors)[start + before] = ((const real *)a.lists.weights)[e];
}
