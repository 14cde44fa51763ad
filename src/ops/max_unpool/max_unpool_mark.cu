/* SPDX-License-Identifier: Apache-2.0
 * For each element of y the last of x that goes there: a maximum of positions, which does not depend on the
 * order of the threads. An element of x per thread. */
#include "ops/max_unpool/max_unpool.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) max_unpool_mark(const __grid_constant__ mica_max_unpool_args a)
{
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    overlap_wait();
    if (i >= a.update_count) return;
    const element_place p = element_of((count_t)i, (count_t)a.channels, (count_t)a.updates);
    const long long cell = (long long)((const index_t *)a.indices)[offset_of(p, a.window, a.index_step)];
    if (cell < 0 || cell >= a.cells) return;
    const long long at = CHANNELS_LAST
                             ? ((long long)p.n * a.cells + cell) * a.channels + (long long)p.c
                             : ((long long)p.n * a.channels + (long long)p.c) * a.cells + cell;
    atomicMax((winner_t *)a.winners + at, (winner_t)p.k);
}
