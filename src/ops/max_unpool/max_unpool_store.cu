/* SPDX-License-Identifier: Apache-2.0
 * y: what its winner has in x, 0 where there is none. An element of y per thread. */
#include "ops/max_unpool/max_unpool.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) max_unpool_store(const __grid_constant__ mica_max_unpool_args a)
{
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    overlap_wait();
    if (i >= a.cell_count) return;
    element_place p = element_of((count_t)i, (count_t)a.channels, (count_t)a.cells);
    element_t *to = (element_t *)a.y + offset_of(p, a.plane, a.y_step);
    const winner_t winner = ((const winner_t *)a.winners)[i];
    element_t v = {};
    if (winner >= 0) {
        p.k = (count_t)winner;
        v = ((const element_t *)a.x)[offset_of(p, a.window, a.x_step)];
    }
    *to = v;
}
