/* SPDX-License-Identifier: Apache-2.0
 * The filter's gradient in three dimensions with up to 32 channels on both sides and stride 1. Terms of
 * the product are the pixels of a tile of b, rows its channels in two planes that follow each other:
 * a plane of a is one tap further to the first than to the second, so that one product gives two taps.
 * Columns are the channels of a at all taps across, which are pixels of one slab that overlap. Each of
 * three warpgroups has a tap down. Tiles begin a plane before b (its zeros), so that each plane is once
 * the second of two; of an odd number of taps the last is formed alone, and the second half of its rows
 * is dropped. Each block writes the sums of its tiles, im2col/im2col_reduce.cu adds them. Constants: those
 * of volume.cuh; mma(). */
#include "kernels/overlap.cuh"
#include "ops/conv/slab/volume.cuh"

constexpr int GROUPS = 3, THREADS = 128 * (GROUPS + 1), SETS = (TAPS_DEEP + 1) / 2, COLUMNS = 32 * TAPS_ACROSS;
constexpr int TILE_BYTES = PIXELS * ROW, SLOT_BYTES = SETS * SLAB_ROOM + 2 * TILE_BYTES;
constexpr int BEFORE = TAPS_DEEP > 1; /* planes before b */
static_assert(TAPS_DOWN <= GROUPS && SETS * COLUMNS / 2 <= 112, "the accumulators fit");

/* The tap that the first plane of b has in a set. The second has the one before, if that is this set's. */
__device__ __forceinline__ constexpr int first_tap(int set)
{
    return 2 * set + 1 < TAPS_DEEP ? 2 * set + 1 : TAPS_DEEP - 1;
}

__device__ __forceinline__ constexpr bool has_second(int set) { return 2 * set + 1 < TAPS_DEEP; }

__device__ __forceinline__ void produce(const conv_volume_args &a, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const int tiles = own_tiles(a);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, (int)blockIdx.x + i * (int)gridDim.x);
        const int slot = i % SLOTS, z = p.z - BEFORE;
        const u32 to = slots + slot * SLOT_BYTES, bar = full + 8 * slot;
        mbarrier_wait(empty + 8 * slot, i / SLOTS & 1 ^ 1);
        mbarrier_arrive_expect(bar, SETS * SLAB_BYTES + 2 * TILE_BYTES);
#pragma unroll
        for (int s = 0; s < SETS; s++)
            tma_load(to + s * SLAB_ROOM, &a.image, bar, 0, p.x + a.start[2], p.y + a.start[1],
                     z + a.start[0] + first_tap(s), p.image);
        tma_load(to + SETS * SLAB_ROOM, &a.other, bar, 0, p.x, p.y, z, p.image);
    }
}

/* Two rows of 8 pixels are the 16 terms of an instruction. */
__device__ __forceinline__ void multiply(float (&sum)[SETS][COLUMNS / 2], int down, u32 slot, bool more)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEIGHT / 2; k++) {
        const u64 left = wgmma_operand<ROW>(slot + SETS * SLAB_ROOM + k * 16 * ROW, TILE_BYTES, 8 * ROW);
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const u32 from = slot + s * SLAB_ROOM + (down * STEP_DOWN + 2 * k) * PITCH * ROW;
            mma(sum[s], left, wgmma_operand<ROW>(from, STEP_ACROSS * ROW, PITCH * ROW), more || k > 0);
        }
    }
    wgmma_commit();
}

__device__ __forceinline__ void store(const conv_volume_args &a, int down, const float (&sum)[SETS][COLUMNS / 2])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3, second = warp / 2;
#pragma unroll
    for (int s = 0; s < SETS; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp % 2 * 16 + half * 8 + lane / 4, deep = first_tap(s) - second;
            if ((second && !has_second(s)) || row >= a.channels) continue;
            const int tap = (deep * TAPS_DOWN + down) * TAPS_ACROSS;
            float *to = a.partial + (((long long)blockIdx.x * a.channels + row) * TAPS_DEEP * TAPS + tap) * 64;
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                *(float2 *)(to + j / 4 * 64 + j % 4 * 8 + 2 * (lane & 3)) =
                    make_float2(sum[s][4 * j + 2 * half], sum[s][4 * j + 2 * half + 1]);
        }
}

__device__ __forceinline__ void consume(const conv_volume_args &a, int down, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0;
    const int tiles = own_tiles(a);
    float sum[SETS][COLUMNS / 2];
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        const int slot = i % SLOTS;
        mbarrier_wait(full + 8 * slot, i / SLOTS & 1);
        multiply(sum, down, slots + slot * SLOT_BYTES, i > 0);
        wgmma_wait<1>();
        if (leader && i > 0) mbarrier_arrive(empty + 8 * ((i - 1) % SLOTS));
    }
    wgmma_wait<0>();
    store(a, down, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_volume_wgrad(const __grid_constant__ conv_volume_args a)
{
    const u32 slots = slot_memory(), full = slot_barriers(TAPS_DOWN);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<32>();
        if (threadIdx.x == 0) produce(a, slots, full);
    } else {
        registers_take<160>();
        if (group < TAPS_DOWN) consume(a, group, slots, full);
    }
}
