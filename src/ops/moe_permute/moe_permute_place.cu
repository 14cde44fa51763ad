/* SPDX-License-Identifier: Apache-2.0
 * The row of each choice: as many of its expert come before it. A warp to a chunk, 32 choices at a time,
 * whose ranks are counted lane by lane: the order is that of the choices. Constants: EXPERTS; types
 * offset_t, row_t, place_t. */
#include "ops/moe_permute/moe_permute.cuh"

extern "C" __global__ void __launch_bounds__(32) moe_permute_place(const arguments a)
{
    overlap_wait();
    __shared__ s64 next[EXPERTS]; /* of the expert's choices, counted from its first */
    const int lane = threadIdx.x;
    const s64 first = blockIdx.x * a.chunk, end = first + a.chunk < a.choices ? first + a.chunk : a.choices;
    for (int e = lane; e < a.experts; e += 32) next[e] = a.counts[(s64)e * a.chunks + blockIdx.x];
    __syncwarp();
    for (s64 at = first; at < end; at += 32) {
        const s64 c = at + lane;
        const int e = expert_of(a, c, end);
        int before = 0, same = 0;
#pragma unroll
        for (int l = 0; l < 32; l++) {
            const bool equal = __shfl_sync(0xffffffffu, e, l) == e;
            before += equal && l < lane;
            same += equal;
        }
        s64 rank = 0, row = -1;
        if (e >= 0) {
            rank = next[e] + before;
            if (!a.capacity || rank < a.capacity) row = (s64)((const offset_t *)a.offsets)[e * a.offset_expert] + rank;
        }
        __syncwarp();
        if (e >= 0 && before == same - 1) next[e] = rank + 1;
        if (c < end) ((place_t *)a.places)[choice_offset(a, c, a.place_token, a.place_slot)] = (place_t)row;
        if (row >= 0) ((row_t *)a.rows)[row * a.row_row] = (row_t)c;
        __syncwarp();
    }
}
