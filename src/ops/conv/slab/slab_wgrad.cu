/* SPDX-License-Identifier: Apache-2.0
 * The filter's gradient with up to 64 channels on both sides, or groups of as many: rows are channels of b,
 * columns channels of a, terms the pixels of a tile. A slab of a and a tile of b give all taps; three
 * warpgroups share the taps out. Each block writes the sums of its tiles, im2col/im2col_reduce.cu adds them.
 * Constants: those of slab.cuh; mma(). */
#include "kernels/overlap.cuh"
#include "ops/conv/slab/slab.cuh"

constexpr int GROUPS = 3, THREADS = 128 * (GROUPS + 1), SHARE = (TAPS + GROUPS - 1) / GROUPS;
constexpr int LOAD_BYTES = SLAB_BYTES + (LINE ? LINE * ROWS * ROW : TILE_BYTES);
constexpr int SLOT_BYTES = SLAB_ROOM + TILE_BYTES;
static_assert(EIGHTS % 2 == 0, "16 terms");
static_assert(SHARE <= 3, "the accumulators fit");

__device__ __forceinline__ void produce(const mica_conv_slab_args &a, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const line l = own_line(a);
    const int tiles = own_tiles(a, l);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, l, i);
        const int slot = i % SLOTS;
        const u32 to = slots + slot * SLOT_BYTES, bar = full + 8 * slot;
        mbarrier_wait(empty + 8 * slot, i / SLOTS & 1 ^ 1);
        mbarrier_arrive_expect(bar, LOAD_BYTES);
        load_slab(a, p, l.channel, to, bar);
        tma_load(to + SLAB_ROOM, &a.other, bar, l.channel, p.x, p.y, p.image);
    }
}

/* Positions of the tile past its last row, which is not a whole product: nothing comes there. */
__device__ __forceinline__ void place_tile_zeros(u32 slots)
{
    constexpr int FROM = LINE * ROWS * ROW, BYTES = LINE ? TILE_BYTES - FROM : 0, QUADS = BYTES > 0 ? BYTES / 16 : 1;
    if constexpr (BYTES > 0) {
        const float zeros[4] = {0, 0, 0, 0};
        for (int i = (int)threadIdx.x; i < SLOTS * QUADS; i += THREADS)
            shared_store(slots + i / QUADS * SLOT_BYTES + SLAB_ROOM + FROM + i % QUADS * 16, zeros);
        async_fence();
    }
}

/* Where a warpgroup's taps begin in a slab. Shares past the last tap repeat it. */
struct own_taps {
    u32 at[SHARE], pitch[SHARE];
};

__device__ __forceinline__ own_taps taps_of(int group)
{
    own_taps t;
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        const int own = min(group * SHARE + s, TAPS - 1);
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            if (tap == own) t.at[s] = (u32)tap_bytes(tap), t.pitch[s] = (u32)tap_pitch(tap);
    }
    return t;
}

/* Two groups of 8 positions are the 16 terms of an instruction. */
__device__ __forceinline__ void multiply(float (&sum)[SHARE][32], const own_taps &t, u32 slab, u32 tile, bool more)
{
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < EIGHTS / 2; z++) {
        const u64 left = wgmma_operand<ROW>(tile + z * 16 * ROW, 64 * ROW, 8 * ROW);
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            const u32 from = slab + t.at[s] + z * 2 * t.pitch[s];
            mma(sum[s], left, wgmma_operand<ROW>(from, 64 * ROW, t.pitch[s]), more || z > 0);
        }
    }
    wgmma_commit();
}

/* Of groups, what belongs to one. */
__device__ __forceinline__ void store(const mica_conv_slab_args &a, const line &l, int group,
                                      const float (&sum)[SHARE][32])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3, pair = 2 * (lane & 3);
#pragma unroll
    for (int s = 0; s < SHARE; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *const own = sum[s] + 2 * half;
            const int tap = group * SHARE + s, row = warp * 16 + half * 8 + lane / 4;
            if (tap >= TAPS || l.channel + row >= a.channels) continue;
            const long long at = (long long)l.first * a.channels + l.channel + row;
            float *const to = a.partial + (at * TAPS + tap) * WIDTH;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (WIDTH == 64 || (8 * j + pair) / WIDTH == row / WIDTH)
                    *(float2 *)(to + (8 * j + pair) % WIDTH) = make_float2(own[4 * j], own[4 * j + 1]);
        }
}

__device__ __forceinline__ void consume(const mica_conv_slab_args &a, int group, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0;
    const line l = own_line(a);
    const int tiles = own_tiles(a, l);
    const own_taps taps = taps_of(group);
    float sum[SHARE][32];
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        const int slot = i % SLOTS;
        const u32 slab = slots + slot * SLOT_BYTES;
        mbarrier_wait(full + 8 * slot, i / SLOTS & 1);
        multiply(sum, taps, slab, slab + SLAB_ROOM, i > 0);
        wgmma_wait<1>();
        if (leader && i > 0) mbarrier_arrive(empty + 8 * ((i - 1) % SLOTS));
    }
    wgmma_wait<0>();
    if constexpr (TAPS == 1) overlap_allow(); /* with more it takes longer */
    store(a, l, group, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_slab_wgrad(const __grid_constant__ mica_conv_slab_args a)
{
    const u32 slots = slot_memory();
    place_zeros(slots, SLOTS, SLOT_BYTES);
    place_tile_zeros(slots);
    const u32 full = slot_barriers(GROUPS);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<32>();
        if (threadIdx.x == 0) produce(a, slots, full);
    } else {
        registers_take<160>();
        consume(a, group, slots, full);
    }
}
