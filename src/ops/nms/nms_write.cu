/* SPDX-License-Identifier: Apache-2.0
 * Selected boxes of all lists, one behind the other, and -1 behind them. `parts` blocks to a list, which add
 * up the counts of those before it. Constants beside those of nms.cuh: BATCH (rows of three). */
#include "ops/nms/nms.cuh"

INLINE s64 sum_of_block(s64 v, s64 *shared)
{
    const int thread = threadIdx.x;
    shared[thread] = v;
    for (int by = BLOCK / 2; by > 0; by /= 2) {
        __syncthreads();
        if (thread < by) shared[thread] += shared[thread + by];
    }
    __syncthreads();
    const s64 sum = shared[0];
    __syncthreads();
    return sum;
}

INLINE void put_row(const arguments &a, s64 row, s64 b, s64 c, s64 i)
{
    selected_t *to = (selected_t *)a.selected + row * a.selected_row;
    to[0] = (selected_t)(BATCH ? b : i);
    if (!BATCH) return;
    to[a.selected_column] = (selected_t)c;
    to[2 * a.selected_column] = (selected_t)i;
}

extern "C" __global__ void __launch_bounds__(BLOCK) nms_write(const arguments a)
{
    __shared__ s64 shared[BLOCK];
    overlap_wait();
    const s64 list = (s64)blockIdx.x / a.parts, part = (s64)blockIdx.x - list * a.parts;
    s64 before = 0, all = 0;
    for (s64 l = threadIdx.x; l < a.lists; l += BLOCK) {
        const s64 count = a.kept_count[2 * l];
        before += l < list ? count : 0;
        all += count;
    }
    before = sum_of_block(before, shared);
    all = sum_of_block(all, shared);
    if (blockIdx.x == 0 && threadIdx.x == 0) *(count_t *)a.count = (count_t)all;
    if (list < a.lists) {
        const s64 b = list / a.per_batch, c = list - b * a.per_batch;
        const item_t *items = (const item_t *)a.items[a.from] + list * a.n;
        const int count = a.kept_count[2 * list];
        for (s64 i = part * BLOCK + threadIdx.x; i < count && before + i < a.rows; i += a.parts * BLOCK)
            put_row(a, before + i, b, c, (s64)index_of(items[a.kept[list * a.limit + i]]));
    }
    for (s64 row = all + (s64)blockIdx.x * BLOCK + threadIdx.x; row < a.rows; row += (s64)gridDim.x * BLOCK) put_row(a, row, -1, -1, -1);
}
