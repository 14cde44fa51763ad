/* SPDX-License-Identifier: Apache-2.0
 * Who of a chunk is selected: a block to a list, a warp to 64 boxes. These are decided in turn, by the lowest
 * of those that are left, again and again; then each warp behind drops those that they suppress. */
#include "ops/nms/nms.cuh"

/* Bit b of the words of a warp: lanes have those of b = lane and b = lane + 32. */
struct two_words {
    u64 of[2];
};

INLINE u64 or_of_lanes(u64 v)
{
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v |= __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}

INLINE int count_of(u64 v) { return __popc((u32)v) + __popc((u32)(v >> 32)); }

INLINE int lowest_of(u64 v) { return (u32)v ? __ffs((int)v) - 1 : 31 + __ffs((int)(v >> 32)); }

/* Selects of `left`, at most `room`. */
INLINE u64 select(u64 left, const two_words &rows, int room)
{
    u64 kept = 0;
    while (left != 0 && room > 0) {
        const int bit = lowest_of(left);
        const u64 low = __shfl_sync(0xffffffffu, rows.of[0], bit % 32), high = __shfl_sync(0xffffffffu, rows.of[1], bit % 32);
        kept |= (u64)1 << bit;
        left &= ~((u64)1 << bit | (bit < 32 ? low : high));
        room--;
    }
    return kept;
}

extern "C" __global__ void __launch_bounds__(WORDS * 32) nms_pick(const arguments a)
{
    __shared__ u64 selected[WORDS];
    overlap_wait();
    const s64 list = blockIdx.x, first = a.chunk * CHUNK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned char *gone = a.gone + list * a.n;
    const u64 *rows = a.row + (list * WORDS + warp) * CHUNK;
    const int before = a.chunk > 0 ? a.kept_count[2 * list] : 0;
    int taken = before;
    u64 left = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const s64 i = first + warp * 64 + k * 32 + lane;
        const u64 votes = __ballot_sync(0xffffffffu, i < a.n && !gone[i < a.n ? i : 0]);
        left |= votes << 32 * k;
    }
#pragma unroll 1
    for (int w = 0; w < WORDS; w++) {
        two_words own = {};
        if (w <= warp) own = two_words{rows[w * 64 + lane], rows[w * 64 + 32 + lane]};
        if (w == warp) {
            const u64 found = select(left, own, (int)a.limit - taken);
            if (lane == 0) selected[w] = found;
        }
        __syncthreads();
        const u64 found = selected[w];
        taken += count_of(found);
        if (w >= warp) continue;
        u64 dropped = found >> lane & 1 ? own.of[0] : 0;
        dropped |= found >> (lane + 32) & 1 ? own.of[1] : 0;
        left &= ~or_of_lanes(dropped);
    }
    int rank = before;
    for (int w = 0; w < warp; w++) rank += count_of(selected[w]);
    const u64 found = selected[warp];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int bit = k * 32 + lane;
        if (!(found >> bit & 1)) continue;
        a.kept[list * a.limit + rank + count_of(found & (((u64)1 << bit) - 1))] = (int)(first + warp * 64 + bit);
    }
    if (threadIdx.x == 0) a.kept_count[2 * list] = taken, a.kept_count[2 * list + 1] = before;
}
