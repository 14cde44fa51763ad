/* SPDX-License-Identifier: Apache-2.0
 * Entries into the lists of their cells, as they came. Constant BLOCK; types as in taps.cuh. */
#include "ops/taps/taps.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) taps_place(const mica_taps_args a)
{
    overlap_wait();
    const s64 e = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (e >= a.lists.entries) return;
    const mark cell = ((const mark *)a.lists.cells_of_entries)[e];
    if (cell == NO_CELL) return;
    ((mark *)a.lists.placed)[((const mark *)a.lists.starts)[cell] + ((const mark *)a.lists.slots)[e]] = (mark)e;
}
