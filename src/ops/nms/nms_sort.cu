/* SPDX-License-Identifier: Apache-2.0
 * Items of TILE boxes, sorted: a block to a tile, bitonic. Each item is read and written once. Constants
 * beside those of nms.cuh: TILE. */
#include "ops/nms/nms.cuh"

INLINE item_t load_item(const arguments &a, s64 list, s64 i)
{
    if (i >= a.n) return make_item((real)0, false, 0xffffffffu);
    const s64 b = list / a.per_batch, c = list - b * a.per_batch;
    const real v = widen<real>(((const box_t *)a.scores)[b * a.score_batch + c * a.score_class + i * a.score_n]);
    const real least = (real)a.score;
    const bool there = v > least || (least == -(real)INFINITY_F && v == v);
    return make_item(v, there, (u64)i);
}

extern "C" __global__ void __launch_bounds__(TILE / 2) nms_sort(const arguments a)
{
    overlap_wait();
    __shared__ item_t items[TILE];
    const s64 list = (s64)blockIdx.x / a.tiles, first = ((s64)blockIdx.x - list * a.tiles) * TILE;
    const int thread = threadIdx.x;
    for (int i = thread; i < TILE; i += TILE / 2) items[i] = load_item(a, list, first + i);
#pragma unroll 1
    for (int size = 2; size <= TILE; size *= 2)
#pragma unroll 1
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            const int i = 2 * thread - (thread & (step - 1)), j = i + step;
            const item_t one = items[i], other = items[j];
            if (before(other, one) == !(i & size)) items[i] = other, items[j] = one;
        }
    __syncthreads();
    item_t *to = (item_t *)a.items[0] + list * a.n + first;
    for (int i = thread; i < TILE && first + i < a.n; i += TILE / 2) to[i] = items[i];
}
