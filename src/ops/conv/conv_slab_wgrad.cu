/* SPDX-License-Identifier: Apache-2.0
 * The filter's gradient with up to 64 channels on both sides and stride 1: rows are channels of b,
 * columns channels of a, terms the pixels of a tile. A slab of a and a tile of b give all taps; three
 * warpgroups share the taps out. Each block writes the sums of its tiles, conv_sm90_reduce.cu adds
 * them. Constants: those of conv_slab.cuh; mma(). */
#include "cuda/device/overlap.cuh"
#include "ops/conv/conv_slab.cuh"

constexpr int GROUPS = 3, THREADS = 128 * (GROUPS + 1), SHARE = (TAPS + GROUPS - 1) / GROUPS;
constexpr int SLOT_BYTES = SLAB_BYTES + TILE_BYTES;
static_assert(SHARE <= 3, "the accumulators fit");

__device__ __forceinline__ void produce(const mica_conv_slab_args &a, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const int tiles = own_tiles(a);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, (int)blockIdx.x + i * (int)gridDim.x);
        const int slot = i % SLOTS;
        const u32 to = slots + slot * SLOT_BYTES, bar = full + 8 * slot;
        mbarrier_wait(empty + 8 * slot, i / SLOTS & 1 ^ 1);
        mbarrier_arrive_expect(bar, SLOT_BYTES);
        tma_load(to, &a.image, bar, 0, p.x + a.start[1], p.y + a.start[0], p.image);
        tma_load(to + SLAB_BYTES, &a.other, bar, 0, p.x, p.y, p.image);
    }
}

/* Two rows of 8 pixels are the 16 terms of an instruction. Shares past the last tap repeat it. */
__device__ __forceinline__ void multiply(float (&sum)[SHARE][32], int group, u32 slab, u32 tile, bool more)
{
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < HEIGHT / 2; z++) {
        const u64 left = wgmma_operand<ROW>(tile + z * 16 * ROW, 64 * ROW, 8 * ROW);
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            const u32 from = slab + (u32)tap_bytes(min(group * SHARE + s, TAPS - 1)) + z * 2 * PITCH * ROW;
            mma(sum[s], left, wgmma_operand<ROW>(from, 64 * ROW, PITCH * ROW), more || z > 0);
        }
    }
    wgmma_commit();
}

__device__ __forceinline__ void store(const mica_conv_slab_args &a, int group, const float (&sum)[SHARE][32])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
#pragma unroll
    for (int s = 0; s < SHARE; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int tap = group * SHARE + s, row = warp * 16 + half * 8 + lane / 4;
            if (tap >= TAPS || row >= a.channels) continue;
            float *to = a.partial + (((long long)blockIdx.x * a.channels + row) * TAPS + tap) * 64 + 2 * (lane & 3);
#pragma unroll
            for (int j = 0; j < 8; j++)
                *(float2 *)(to + 8 * j) = make_float2(sum[s][4 * j + 2 * half], sum[s][4 * j + 2 * half + 1]);
        }
}

__device__ __forceinline__ void consume(const mica_conv_slab_args &a, int group, u32 slots, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0;
    const int tiles = own_tiles(a);
    float sum[SHARE][32];
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        const int slot = i % SLOTS;
        const u32 slab = slots + slot * SLOT_BYTES;
        mbarrier_wait(full + 8 * slot, i / SLOTS & 1);
        multiply(sum, group, slab, slab + SLAB_BYTES, i > 0);
        wgmma_wait<1>();
        if (leader && i > 0) mbarrier_arrive(empty + 8 * ((i - 1) % SLOTS));
    }
    wgmma_wait<0>();
    store(a, group, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_slab_wgrad(const __grid_constant__ mica_conv_slab_args a)
{
    const u32 slots = slot_memory(), full = slot_barriers(GROUPS);
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
