/* SPDX-License-Identifier: Apache-2.0
 * Convolution with up to 64 channels on both sides, or groups of as many, forward and dgrad: the whole
 * filter stays in shared memory, the image passes through it once as slabs. Rows of the product are channels
 * of the result, columns the pixels of a tile. Two warpgroups ping-pong: one stores
 * while the other multiplies; a slab that has been read becomes the tile that is stored.
 * Constants: those of slab_store.cuh; FILTER_MN (rows are what lies side by side in the filter, else
 * terms); mma(). */
#include "kernels/overlap.cuh"
#include "kernels/shared.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/slab/slab_store.cuh"

constexpr int THREADS = 384;

/* ---- the filter ---- */

__device__ __forceinline__ void load_filter(const mica_conv_slab_args &a, const line &l, u32 filter, u32 ready)
{
    mbarrier_arrive_expect(ready, TAPS * TAP_BYTES);
    for (int t = 0; t < TAPS; t++)
        tma_load(filter + t * TAP_BYTES, &a.other, ready, 0, filter_across(a, t), filter_down(a, t), l.channel);
}

/* Groups of fewer than 64 channels: by both warpgroups, swizzled as TMA does it, with zeros where a
 * row (a channel of b) and the channels of a belong to different groups. */
__device__ __forceinline__ void place_filter(const mica_conv_slab_args &a, const line &l, u32 filter)
{
    constexpr int EACH = WIDTH < 8 ? WIDTH : 8, PIECES = 64 * WIDTH / EACH; /* channels at once; of a tap, such */
    constexpr int BATCH = 8;                                               /* loads in flight at once */
    const int thread = (int)threadIdx.x - 128;
    const u32 zeros[4] = {0, 0, 0, 0};
    for (int i = thread; i < TAPS * 64 * 8; i += 256) shared_store(filter + i * 16, zeros);
    named_barrier_sync(3, 256);
    for (int first = thread; first < TAPS * PIECES; first += BATCH * 256) {
        in_t v[BATCH][EACH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = first + j * 256, t = i / PIECES, row = i % PIECES * EACH / WIDTH;
            if (i < TAPS * PIECES && l.channel + row < a.channels)
                load_vector<EACH>((const in_t *)a.narrow + (l.channel + row) * a.narrow_strides[0] +
                                      filter_down(a, t) * a.narrow_strides[1] +
                                      filter_across(a, t) * a.narrow_strides[2] + i * EACH % WIDTH,
                                  v[j]);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = first + j * 256, t = i / PIECES, row = i % PIECES * EACH / WIDTH;
            const u32 byte = (u32)(row / WIDTH * WIDTH + i * EACH % WIDTH) * 2;
            const u32 to = filter + t * TAP_BYTES + row * ROW + ((byte >> 4 ^ row & 7) << 4) + (byte & 15);
            if (i >= TAPS * PIECES || l.channel + row >= a.channels) continue;
            float words[EACH / 2];
            memcpy(words, v[j], sizeof words);
            if constexpr (EACH == 8)
                shared_store(to, words);
            else
                shared_store_pair(to, words);
        }
    }
    async_fence();
    named_barrier_sync(3, 256);
}

__device__ __forceinline__ void produce(const mica_conv_slab_args &a, u32 filter, u32 slabs, u32 full)
{
    const u32 empty = full + 8 * SLOTS, ready = empty + 8 * SLOTS;
    const line l = own_line(a);
    if (WIDTH == 64) load_filter(a, l, filter, ready);
    const int tiles = own_tiles(a, l);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, l, i);
        const int slot = i % SLOTS;
        mbarrier_wait(empty + 8 * slot, i / SLOTS & 1 ^ 1);
        mbarrier_arrive_expect(full + 8 * slot, SLAB_BYTES);
        load_slab(a, p, l.channel, slabs + slot * SLAB_ROOM, full + 8 * slot);
        if (RESIDUAL_MAP && a.wide) tma_prefetch_box(&a.residual_map, l.channel, p.x, p.y, p.image);
    }
}

__device__ __forceinline__ void multiply(float (&sum)[PIXELS / 2], u32 filter, u32 slab)
{
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const u64 left = wgmma_operand<ROW>(filter + t * TAP_BYTES, FILTER_MN ? TAP_BYTES : 16, 8 * ROW);
        const u64 right = wgmma_operand<ROW>(slab + tap_bytes(t), 16, tap_pitch(t));
#pragma unroll
        for (int z = 0; z < 4; z++)
            mma(sum, wgmma_advance(left, FILTER_MN ? z * 16 * ROW : z * 32), wgmma_advance(right, z * 32), t + z > 0);
    }
    wgmma_commit();
}

/* ---- the two roles ---- */

/* brought: this warpgroup's barrier of residuals. */
__device__ __forceinline__ void consume(const mica_conv_slab_args &a, int group, u32 filter, u32 slabs, u32 full,
                                        u32 brought)
{
    const u32 empty = full + 8 * SLOTS, ready = empty + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0;
    const line l = own_line(a);
    const int tiles = own_tiles(a, l);
    const bool others = RESIDUAL || a.beta != 0;
    channel_terms terms[2];
    float sum[PIXELS / 2];
    channel_sums totals = {};
    int last = -1;
    u32 parity = 0;
    load_own_terms(a, own_channel(l.channel), terms);
    if constexpr (WIDTH == 64)
        mbarrier_wait(ready, 0);
    else
        place_filter(a, l, filter);
    for (int i = group; i < tiles; i += 2) {
        const int slot = i % SLOTS;
        const u32 slab = slabs + slot * SLAB_ROOM;
        const place p = tile_at(a, l, i);
        mbarrier_wait(full + 8 * slot, i / SLOTS & 1);
        multiply(sum, filter, slab);
        if (leader && last >= 0) {
            tma_wait_read<0>();
            mbarrier_arrive(empty + 8 * last);
        }
        wgmma_wait<0>();
        named_barrier_sync(group + 1, 128); /* all warps have read the slab */
        if (RESIDUAL_MAP && a.wide) {
            bring_residual(leader, brought, parity, BOX_BYTES, [&] {
                tma_load(slab, &a.residual_map, brought, l.channel, p.x, p.y, p.image);
            });
            place_results<WIDE>(a, p, l.channel, slab, terms, sum, totals);
        } else if (others)
            place_results<SINGLE>(a, p, l.channel, slab, terms, sum, totals);
        else
            place_results<NOTHING>(a, p, l.channel, slab, terms, sum, totals);
        async_fence();
        named_barrier_sync(group + 1, 128);
        if (leader) {
            tma_store(&a.result, slab, l.channel, p.x, p.y, p.image);
            tma_commit();
        }
        last = slot;
    }
    if (leader && last >= 0) {
        tma_wait_read<0>();
        mbarrier_arrive(empty + 8 * last);
        tma_wait<0>();
    }
    if constexpr (STATS) store_sums(a, l, group, totals);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_slab(const __grid_constant__ mica_conv_slab_args a)
{
    const u32 filter = slot_memory(), slabs = filter + TAPS * TAP_BYTES;
    place_zeros(slabs, SLOTS, SLAB_ROOM);
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
