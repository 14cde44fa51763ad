/* SPDX-License-Identifier: Apache-2.0
 * Convolution in three dimensions with up to 32 channels on both sides, forward and dgrad with stride
 * 1: the filter stays in shared memory, and the planes of the image pass through it as slabs. Two planes
 * of results are formed at once: rows of the product are the channels of the one, then those of the
 * other, and columns their pixels. To the first a plane of the image is one tap further than to the
 * second: with the filter's planes side by side in memory, last one first and zeros around, what a plane
 * meets are 64 rows in a row. A tile reads TAPS_DEEP + 1 planes; two warpgroups ping-pong, so
 * that one stores while the other multiplies, and the last two slabs become the planes that are stored.
 * Constants: those of volume.cuh, half of the SLOTS for each warpgroup; STEPS, of 16 terms;
 * FILTER_MN (rows are what lies side by side in the filter, else terms); those of place.cuh; mma(). */
#include "kernels/overlap.cuh"
#include "ops/conv/slab/volume.cuh"
#include "ops/conv/slab/place.cuh"

constexpr int THREADS = 384, PLANES = 2, RING = SLOTS / 2, READ = TAPS_DEEP + PLANES - 1;
constexpr int BLOCKS = TAPS_DEEP + 2, BLOCK_BYTES = 32 * ROW;
static_assert(RING >= PLANES + 1, "a slab comes while others are stored");

/* Bytes from the slab's first pixel to that of a tap. */
__device__ __forceinline__ constexpr int tap_bytes(int tap)
{
    return (tap / TAPS_ACROSS * STEP_DOWN * PITCH + tap % TAPS_ACROSS * STEP_ACROSS) * ROW;
}

/* Where the n-th slab of a warpgroup lies, and which filling of its slot it is. */
struct slot_of {
    int slot, parity;
    __device__ __forceinline__ slot_of(int group, int n) : slot(group * RING + n % RING), parity(n / RING & 1) {}
};

/* Of each tap across and down: zeros, the filter's planes from the last to the first, zeros. What is
 * past the filter's ends is zero to TMA. */
__device__ __forceinline__ void load_filter(const conv_volume_args &a, u32 filter, u32 ready)
{
    mbarrier_arrive_expect(ready, TAPS * BLOCKS * BLOCK_BYTES);
    for (int t = 0; t < TAPS; t++)
        for (int i = 0; i < BLOCKS; i++) {
            const int deep = a.tap[0] + (TAPS_DEEP - i) * a.tap_step[0];
            const int down = a.tap[1] + t / TAPS_ACROSS * a.tap_step[1];
            const int across = a.tap[2] + t % TAPS_ACROSS * a.tap_step[2];
            tma_load(filter + (t * BLOCKS + i) * BLOCK_BYTES, &a.other, ready, 0, across, down, deep, 0);
        }
}

__device__ __forceinline__ void produce(const conv_volume_args &a, u32 filter, u32 slabs, u32 full)
{
    const u32 empty = full + 8 * SLOTS;
    load_filter(a, filter, empty + 8 * SLOTS);
    const int tiles = own_tiles(a);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, (int)blockIdx.x + i * (int)gridDim.x);
        for (int z = 0; z < READ; z++) {
            const slot_of s(i % 2, i / 2 * READ + z);
            mbarrier_wait(empty + 8 * s.slot, s.parity ^ 1);
            mbarrier_arrive_expect(full + 8 * s.slot, SLAB_BYTES);
            tma_load(slabs + s.slot * SLAB_ROOM, &a.image, full + 8 * s.slot, 0, p.x + a.start[2],
                     p.y + a.start[1], PLANES * p.z + a.start[0] + z, p.image);
        }
        for (int z = 0; z < PLANES && RESIDUAL_MAP && a.wide; z++)
            tma_prefetch_box(&a.residual_map, 0, p.x, p.y, PLANES * p.z + z, p.image);
    }
}

/* One plane of the image; filter: the rows that it meets. */
__device__ __forceinline__ void multiply(float (&sum)[PIXELS / 2], u32 filter, u32 slab, bool more)
{
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const u64 left = wgmma_operand<ROW>(filter + t * BLOCKS * BLOCK_BYTES, FILTER_MN ? BLOCK_BYTES : 16, 8 * ROW);
        const u64 right = wgmma_operand<ROW>(slab + tap_bytes(t), 16, PITCH * ROW);
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            mma(sum, wgmma_advance(left, FILTER_MN ? k * 16 * ROW : k * 32), wgmma_advance(right, k * 32),
                more || t + k > 0);
    }
    wgmma_commit();
}

/* ---- results ---- */

/* One result of this thread's plane z. Pixels past the image and channels past the last are computed and
 * not stored; SINGLE: its place in memory must exist. */
template <reading OTHERS>
__device__ __forceinline__ float finish(const conv_volume_args &a, const place &p, int y, int x, int channel,
                                        const channel_terms &terms, float sum, float residual)
{
    float v = a.alpha * sum;
    if constexpr (OTHERS == SINGLE) {
        if (channel >= a.channels || p.z >= a.size[0] || y >= a.size[1] || x >= a.size[2]) return 0;
        residual = add_others(a, p.image, p.z, y, x, channel, v);
    }
    return apply_terms(a.epilogue, terms, v, residual);
}

/* The first of this thread's two channels; the other is 8 further. */
__device__ __forceinline__ int own_channel() { return ((int)threadIdx.x >> 5 & 1) * 16 + ((int)threadIdx.x & 31) / 4; }

/* p: this thread's plane, tile: its slot. */
template <reading OTHERS>
__device__ __forceinline__ void place_results(const conv_volume_args &a, const place &p, u32 tile,
                                              const channel_terms (&terms)[2], const float (&sum)[PIXELS / 2])
{
    const int lane = (int)threadIdx.x & 31, half = (int)threadIdx.x >> 5 & 1;
    const int channel = own_channel(), x = p.x + 2 * (lane & 3);
    place_pixels<HEIGHT, OTHERS>(tile, half, sum, [&](int j, int i, const float *two, u32 residual) {
        return finish_pair([&](int e) {
            return finish<OTHERS>(a, p, p.y + j, x + e, channel + 8 * i, terms[i], two[e],
                                  OTHERS == WIDE ? residual_in(residual, e) : 0);
        });
    });
}

/* The slots of a warpgroup's last tile are free once TMA has read them. */
__device__ __forceinline__ void release_stored(u32 empty, const int (&stored)[PLANES])
{
    tma_wait_read<0>();
#pragma unroll
    for (int i = 0; i < PLANES; i++) mbarrier_arrive(empty + 8 * stored[i]);
}

/* brought: this warpgroup's barrier of residuals. */
__device__ __forceinline__ void consume(const conv_volume_args &a, int group, u32 filter, u32 slabs, u32 full,
                                        u32 brought)
{
    const u32 empty = full + 8 * SLOTS, ready = empty + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0, others = RESIDUAL || a.beta != 0;
    const int tiles = own_tiles(a), plane = uniform((int)threadIdx.x >> 6 & 1);
    channel_terms terms[2];
    float sum[PIXELS / 2];
    int stored[PLANES] = {};
    u32 parity = 0;
    load_own_terms(a, own_channel(), terms);
    mbarrier_wait(ready, 0);
    for (int i = group; i < tiles; i += 2) {
        for (int z = 0; z < READ; z++) {
            const slot_of s(group, i / 2 * READ + z);
            mbarrier_wait(full + 8 * s.slot, s.parity);
            multiply(sum, filter + (TAPS_DEEP - z) * BLOCK_BYTES, slabs + s.slot * SLAB_ROOM, z > 0);
            if (z == 0) {
                if (leader && i > group) release_stored(empty, stored);
            } else {
                wgmma_wait<1>();
                if (leader && z < READ - 1) mbarrier_arrive(empty + 8 * stored[1]);
            }
            stored[0] = stored[1];
            stored[1] = s.slot;
        }
        wgmma_wait<0>();
        named_barrier_sync(group + 1, 128); /* all warps have read the slabs */
        place p = tile_at(a, (int)blockIdx.x + i * (int)gridDim.x);
        p.z = PLANES * p.z + plane;
        const u32 to = slabs + (plane ? stored[1] : stored[0]) * SLAB_ROOM;
        if (RESIDUAL_MAP && a.wide) {
            bring_residual(leader, brought, parity, PLANES * PIXELS * ROW, [&] {
#pragma unroll
                for (int z = 0; z < PLANES; z++)
                    tma_load(slabs + stored[z] * SLAB_ROOM, &a.residual_map, brought, 0, p.x, p.y, p.z + z, p.image);
            });
            place_results<WIDE>(a, p, to, terms, sum);
        } else if (others)
            place_results<SINGLE>(a, p, to, terms, sum);
        else
            place_results<NOTHING>(a, p, to, terms, sum);
        async_fence();
        named_barrier_sync(group + 1, 128);
        if (leader) {
#pragma unroll
            for (int z = 0; z < PLANES; z++)
                tma_store(&a.result, slabs + stored[z] * SLAB_ROOM, 0, p.x, p.y, p.z + z, p.image);
            tma_commit();
        }
    }
    if (leader && group < tiles) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_volume(const __grid_constant__ conv_volume_args a)
{
    const u32 filter = slot_memory(), slabs = filter + TAPS * BLOCKS * BLOCK_BYTES;
    const u32 brought = RESIDUAL_MAP ? residual_barriers() : 0, full = slot_barriers(1);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, filter, slabs, full);
    } else {
        registers_take<232>();
        consume(a, group, filter, slabs, full, brought + 8 * group);
    }
}
