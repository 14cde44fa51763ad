/* SPDX-License-Identifier: Apache-2.0
 * Where the list of each cell begins: a block adds up the counts of its cells and takes that much. Which
 * memory it gets may vary, what lists hold does not. Constant BLOCK; types as in taps.cuh. */
#include "ops/taps/taps.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) taps_open(const mica_taps_args a)
{
    __shared__ mark sums[2][BLOCK];
    __shared__ mark first;
    overlap_wait();
    const s64 cell = (s64)blockIdx.x * BLOCK + threadIdx.x;
    mark *counts = (mark *)a.lists.counts;
    const mark own = cell < a.lists.cells ? counts[cell] : 0;
    int now = 0;
    sums[0][threadIdx.x] = own;
    for (int by = 1; by < BLOCK; by *= 2) {
        __syncthreads();
        const mark before = (int)threadIdx.x >= by ? sums[now][threadIdx.x - by] : 0;
        sums[1 - now][threadIdx.x] = sums[now][threadIdx.x] + before;
        now = 1 - now;
    }
    if (threadIdx.x == BLOCK - 1) first = atomicAdd(counts + a.lists.cells, sums[now][BLOCK - 1]);
    __syncthreads();
    if (cell < a.lists.cells) ((mark *)a.lists.starts)[cell] = first + sums[now][threadIdx.x] - own;
}
