/* SPDX-License-Identifier: Apache-2.0
 * Convolution with stride 1, forward and dgrad, in two and three dimensions, of any number of channels: slabs
 * of 64 channels of a plane, each read through all taps of that plane, while the filter's taps pass through
 * a ring beside them. Rows of the product are 64 channels of the result, columns the pixels of a tile. Two
 * warpgroups ping-pong, so that one stores while the other multiplies; the last slab of a tile
 * becomes the tile that is stored.
 * Constants: those of slab_store.cuh, STRIDE 1 and WIDTH 64; AXES; STAGES of the ring; LAST (steps of 16
 * channels in the last 64 that are read); FILTER_MN (rows are what lies side by side in the filter, else
 * terms); mma(). */
#include "kernels/overlap.cuh"
#include "ops/conv/slab/slab_store.cuh"
#include "ops/conv/slab/ping_pong.cuh"

constexpr int THREADS = 384;
static_assert(STRIDE_DOWN == 1 && STRIDE_ACROSS == 1 && WIDTH == 64, "one lattice, one group");
static_assert(LAST >= 1 && LAST <= 4 && !STATS, "steps of a slab; sums are for tiles of the same channels");

/* What a block does one after the other: neighbouring blocks have the channels of one tile. first, end: the
 * planes it reads, as taps; those outside the image are left out. */
struct item {
    place at;
    int channel, first, end;
};

__device__ __forceinline__ item item_at(const mica_conv_slab_args &a, int index)
{
    const int tile = index / a.chunks, each = a.across * a.down, plane = tile / each, rest = tile % each;
    const int image = plane / a.planes, z = plane - image * a.planes, from = z + a.plane_start;
    item t = {{image, z, rest / a.across * ROWS, rest % a.across * 8}, (index - tile * a.chunks) * 64, 0, 1};
    if constexpr (AXES == 3) {
        if (from < 0) t.first = min((a.plane_step - 1 - from) / a.plane_step, a.plane_taps - 1);
        /* one at least: the result needs its place */
        t.end = max(min((a.planes_read - 1 - from) / a.plane_step + 1, a.plane_taps), t.first + 1);
    }
    return t;
}

__device__ __forceinline__ int slabs_of(const mica_conv_slab_args &a, const item &t)
{
    return (t.end - t.first) * a.blocks;
}

/* ---- shared memory: barriers of slabs, of the ring, and of ping-pong ---- */

struct barriers {
    u32 slab_full, slab_empty, full, empty, turns;
};

__device__ __forceinline__ barriers make_barriers()
{
    __shared__ __align__(8) u64 memory[2 * SLOTS + 2 * STAGES + 2];
    const u32 first = shared_address(memory);
    const barriers b = {first, first + 8 * SLOTS, first + 16 * SLOTS, first + 16 * SLOTS + 8 * STAGES,
                        first + 16 * SLOTS + 16 * STAGES};
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * SLOTS + 2 * STAGES; i++) mbarrier_init(first + 8 * i, 1);
        for (int i = 0; i < 2; i++) mbarrier_init(b.turns + 8 * i, 4);
        mbarrier_fence_init();
    }
    __syncthreads();
    return b;
}

/* ---- loads ---- */

__device__ __forceinline__ void load_image(const mica_conv_slab_args &a, const item &t, int plane, int block, u32 to,
                                           u32 bar)
{
    const int x = t.at.x + a.start[1], y = t.at.y + a.start[0], z = t.at.z + a.plane_start + plane * a.plane_step;
    mbarrier_arrive_expect(bar, SLAB_BYTES);
    if constexpr (AXES == 3)
        tma_load(to, &a.image[0], bar, block * 64, x, y, z, t.at.image);
    else
        tma_load(to, &a.image[0], bar, block * 64, x, y, t.at.image);
}

__device__ __forceinline__ void load_tap(const mica_conv_slab_args &a, const item &t, int plane, int block, int tap,
                                         u32 to, u32 bar)
{
    const int inner = FILTER_MN ? t.channel : block * 64, outer = FILTER_MN ? block * 64 : t.channel;
    const int deep = a.plane_filter + plane * a.plane_filter_step;
    mbarrier_arrive_expect(bar, TAP_BYTES);
    if constexpr (AXES == 3)
        tma_load(to, &a.other, bar, inner, filter_across(a, tap), filter_down(a, tap), deep, outer);
    else
        tma_load(to, &a.other, bar, inner, filter_across(a, tap), filter_down(a, tap), outer);
}

__device__ __forceinline__ void prefetch_residual(const mica_conv_slab_args &a, const item &t)
{
    if constexpr (AXES == 3)
        tma_prefetch_box(&a.residual_map, t.channel, t.at.x, t.at.y, t.at.z, t.at.image);
    else
        tma_prefetch_box(&a.residual_map, t.channel, t.at.x, t.at.y, t.at.image);
}

__device__ __forceinline__ void load_residual(const mica_conv_slab_args &a, const item &t, u32 to, u32 bar)
{
    if constexpr (AXES == 3)
        tma_load(to, &a.residual_map, bar, t.channel, t.at.x, t.at.y, t.at.z, t.at.image);
    else
        tma_load(to, &a.residual_map, bar, t.channel, t.at.x, t.at.y, t.at.image);
}

__device__ __forceinline__ void produce(const mica_conv_slab_args &a, u32 slabs, u32 stages, const barriers &b)
{
    ring<SLOTS> s = {0, 1};
    ring<STAGES> f = {0, 1};
    for (int index = (int)blockIdx.x; index < a.tiles * a.chunks; index += (int)gridDim.x) {
        const item t = item_at(a, index);
        if (RESIDUAL_MAP && a.wide) prefetch_residual(a, t);
        for (int plane = t.first; plane < t.end; plane++)
            for (int block = 0; block < a.blocks; block++, s.advance()) {
                mbarrier_wait(b.slab_empty + 8 * s.at, s.parity);
                load_image(a, t, plane, block, slabs + s.at * SLAB_ROOM, b.slab_full + 8 * s.at);
                for (int tap = 0; tap < TAPS; tap++, f.advance()) {
                    mbarrier_wait(b.empty + 8 * f.at, f.parity);
                    load_tap(a, t, plane, block, tap, stages + f.at * TAP_BYTES, b.full + 8 * f.at);
                }
            }
    }
}

/* ---- products ---- */

/* Of a warpgroup; last: what it read before and has not given back yet, -1: nothing. */
struct progress {
    ring<SLOTS> slab;
    ring<STAGES> stage;
    int last_slab, last_stage;
};

__device__ __forceinline__ void give_back(u32 empty, int &last)
{
    if (last >= 0 && (threadIdx.x & 127) == 0) mbarrier_arrive(empty + 8 * last);
    last = -1;
}

/* All taps of a slab that has come, STEPS x 16 channels. */
template <int STEPS>
__device__ __forceinline__ void multiply(float (&sum)[PIXELS / 2], progress &p, u32 slab, u32 stages, const barriers &b,
                                         bool more)
{
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const u32 filter = stages + p.stage.at * TAP_BYTES;
        mbarrier_wait(b.full + 8 * p.stage.at, p.stage.parity);
        wgmma_fence();
        const u64 left = wgmma_operand<ROW>(filter, FILTER_MN ? TAP_BYTES : 16, 8 * ROW);
        const u64 right = wgmma_operand<ROW>(slab + tap_bytes(t), 16, tap_pitch(t));
#pragma unroll
        for (int z = 0; z < STEPS; z++)
            mma(sum, wgmma_advance(left, FILTER_MN ? z * 16 * ROW : z * 32), wgmma_advance(right, z * 32),
                more || t + z > 0);
        wgmma_commit();
        wgmma_wait<1>();
        give_back(b.empty, p.last_stage);
        if (t == 0) give_back(b.slab_empty, p.last_slab);
        p.last_stage = p.stage.at;
        p.stage.advance();
    }
}

/* The sum of a tile's `count` slabs, of which the last stays; then() follows the last stage that is waited for. */
template <typename F>
__device__ __forceinline__ u32 accumulate(const mica_conv_slab_args &a, float (&sum)[PIXELS / 2], int count, progress &p,
                                          u32 slabs, u32 stages, const barriers &b, const F &then)
{
    u32 slab = slabs;
    int block = 0;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        slab = slabs + p.slab.at * SLAB_ROOM;
        mbarrier_wait(b.slab_full + 8 * p.slab.at, p.slab.parity);
        if (LAST < 4 && ++block == a.blocks) {
            multiply<LAST>(sum, p, slab, stages, b, i > 0);
            block = 0;
        } else {
            multiply<4>(sum, p, slab, stages, b, i > 0);
        }
        p.last_slab = p.slab.at;
        p.slab.advance();
    }
    then();
    wgmma_wait<0>();
    give_back(b.empty, p.last_stage);
    return slab;
}

__device__ __forceinline__ void store(const mica_conv_slab_args &a, const item &t, u32 from)
{
    if constexpr (AXES == 3)
        tma_store(&a.result, from, t.channel, t.at.x, t.at.y, t.at.z, t.at.image);
    else
        tma_store(&a.result, from, t.channel, t.at.x, t.at.y, t.at.image);
    tma_commit();
    tma_wait_read<0>(); /* the slab's place is the next one's */
}

/* brought: this warpgroup's barrier of residuals. */
__device__ __forceinline__ void consume(const mica_conv_slab_args &a, int group, u32 slabs, u32 stages,
                                        const barriers &b, u32 brought)
{
    const bool leader = (threadIdx.x & 127) == 0, others = RESIDUAL || a.beta != 0;
    float sum[PIXELS / 2];
    channel_terms terms[2];
    channel_sums none;
    progress p = {{0, 0}, {0, 0}, -1, -1};
    turn order(b.turns, group);
    int whose = 0;
    u32 parity = 0;
    for (int index = (int)blockIdx.x; index < a.tiles * a.chunks; index += (int)gridDim.x, whose ^= 1) {
        const item t = item_at(a, index);
        const int count = slabs_of(a, t);
        if (whose != group) {
            p.slab.skip(count);
            p.stage.skip(count * TAPS);
            continue;
        }
        order.begin();
        const u32 slab = accumulate(a, sum, count, p, slabs, stages, b, [&] { order.end(); });
        load_own_terms(a, own_channel(t.channel), terms);
        named_barrier_sync(group + 1, 128); /* all warps have read the slab */
        if (RESIDUAL_MAP && a.wide) {
            bring_residual(leader, brought, parity, BOX_BYTES, [&] { load_residual(a, t, slab, brought); });
            place_results<WIDE>(a, t.at, t.channel, slab, terms, sum, none);
        } else if (others)
            place_results<SINGLE>(a, t.at, t.channel, slab, terms, sum, none);
        else
            place_results<NOTHING>(a, t.at, t.channel, slab, terms, sum, none);
        async_fence();
        named_barrier_sync(group + 1, 128);
        if (leader) store(a, t, slab);
        give_back(b.slab_empty, p.last_slab);
    }
    if (leader) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_slab_stream(const __grid_constant__ mica_conv_slab_args a)
{
    const u32 stages = slot_memory(), slabs = stages + STAGES * TAP_BYTES;
    place_zeros(slabs, SLOTS, SLAB_ROOM);
    const u32 brought = RESIDUAL_MAP ? residual_barriers() : 0;
    const barriers b = make_barriers();
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, slabs, stages, b);
    } else {
        registers_take<232>();
        consume(a, group, slabs, stages, b, brought + 8 * group);
    }
}
