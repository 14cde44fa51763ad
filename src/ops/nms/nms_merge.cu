/* SPDX-License-Identifier: Apache-2.0
 * Pairs of sorted runs of `width` items, merged: each item is put behind as many of the other run as come
 * before it. Reads about log2(width) items for each, mostly from caches. */
#include "ops/nms/nms.cuh"

/* How many of n sorted items come before one. */
INLINE s64 rank_of(const item_t *items, s64 n, item_t item)
{
    s64 low = 0, high = n;
    while (low < high) {
        const s64 middle = (low + high) / 2;
        if (before(items[middle], item))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(BLOCK) nms_merge(const arguments a)
{
    overlap_wait();
    const s64 list = (s64)blockIdx.x / a.parts, i = ((s64)blockIdx.x - list * a.parts) * BLOCK + threadIdx.x;
    if (i >= a.n) return;
    const item_t *items = (const item_t *)a.items[a.from] + list * a.n;
    item_t *to = (item_t *)a.items[1 - a.from] + list * a.n;
    const s64 run = i / a.width, other = run & 1 ? (run - 1) * a.width : (run + 1) * a.width;
    const s64 rest = a.n - other, n = rest < 0 ? 0 : rest < a.width ? rest : a.width;
    const s64 start = run & 1 ? other : run * a.width;
    const item_t item = items[i];
    to[start + (i - run * a.width) + (n > 0 ? rank_of(items + other, n, item) : 0)] = item;
}
