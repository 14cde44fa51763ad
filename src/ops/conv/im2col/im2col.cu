/* SPDX-License-Identifier: Apache-2.0
 * Convolution by Hopper's TMA and tensor cores, forward and dgrad: rows are pixels of the
 * result, columns its channels, terms (tap, 64 channels of the image that is read). One warp loads
 * BM pixels as a tap sees them (im2col) and BN columns of the filter into a ring of stages; two
 * warpgroups multiply: each half of the rows or, if TURNS, whole tiles in ping-pong: one stores while the
 * other multiplies. Blocks persist, so that the next tile's loads run while results are stored.
 * Constants: AXES of the image; tile BM x BN; STAGES; SPLITS (blocks of a cluster that share a tile's
 * steps, each then adds up and stores some columns; 1: none); TURNS; those of im2col_direct.cuh and
 * im2col_store.cuh; type in_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/im2col/im2col_direct.cuh"
#include "ops/conv/im2col/im2col_store.cuh"

constexpr int IMAGE_BYTES = BM * ROW;
constexpr int STAGE_BYTES = IMAGE_BYTES + BN * ROW;
constexpr int PARTS = TURNS ? BM / 64 : BM / 128; /* 64 rows of the result for each warpgroup */
static_assert(BM % (64 * PARTS) == 0 && BN % 64 == 0, "whole chunks");
static_assert(SPLITS == 1 || (!TURNS && !STATS), "one or the other");
static_assert(BN <= 256 && PARTS * BN <= 256, "the accumulators fit");

/* A tile: its class, first pixel in it and first column. */
struct place {
    int index, row, col;
};

__device__ __forceinline__ place find(const mica_conv_sm90_args &a, int tile)
{
    int index = 0;
    while (index + 1 < a.class_count && tile >= a.classes[index + 1].first_tile) index++;
    tile -= a.classes[index].first_tile;
    return place{index, tile / a.col_tiles * BM, tile % a.col_tiles * BN};
}

/* ---- loads ---- */

__device__ __forceinline__ void load_stage(const mica_conv_sm90_args &a, const place &p, const int at[3], int n,
                                           const int tap[3], int k, u32 to, u32 bar)
{
    const mica_conv_class &c = a.classes[p.index];
    int away[3], filter[3];
#pragma unroll
    for (int d = 0; d < 3; d++) {
        away[d] = tap[d] * a.tap_step[d];
        filter[d] = c.filter[d] + tap[d] * c.filter_step[d];
    }
    mbarrier_arrive_expect(bar, STAGE_BYTES);
    load_image(to, &a.image[p.index], bar, k, at, n, away);
    load_columns(a, to + IMAGE_BYTES, bar, p.col, filter, k);
}

__device__ __forceinline__ step step_at(const mica_conv_class &c, int terms, int index)
{
    if (SPLITS == 1) return step{{0, 0, 0}, 0};
    const u32 blocks = ((u32)terms + 63) / 64, pair = (u32)index / blocks;
    const u32 row = pair / (u32)c.taps[2], plane = row / (u32)c.taps[1];
    return step{{(int)plane, (int)(row - plane * (u32)c.taps[1]), (int)(pair - row * (u32)c.taps[2])},
                (int)((u32)index - pair * blocks) * 64};
}

/* This block's steps of a tile. */
struct share {
    int from, to;
};

__device__ __forceinline__ share share_of(const mica_conv_sm90_args &a, const mica_conv_class &c)
{
    const int steps = c.taps[0] * c.taps[1] * c.taps[2] * ((a.terms + 63) / 64);
    if (SPLITS == 1) return share{0, steps};
    const int rank = (int)cluster_rank();
    return share{steps * rank / SPLITS, steps * (rank + 1) / SPLITS};
}

__device__ __forceinline__ void produce(const mica_conv_sm90_args &a, u32 stages, u32 full, u32 empty)
{
    ring<STAGES> r = {0, 1};
    for (int tile = (int)blockIdx.x / SPLITS; tile < a.tiles; tile += (int)gridDim.x / SPLITS) {
        const place p = find(a, tile);
        const mica_conv_class &c = a.classes[p.index];
        const share own = share_of(a, c);
        if (own.from == own.to) continue;
        int at[3];
        const int n = position(c.count, p.row, at);
#pragma unroll
        for (int d = 0; d < 3; d++) at[d] = c.start[d] + at[d] * a.step[d];
        step t = step_at(c, a.terms, own.from);
        for (int i = own.from; i < own.to; i++, r.advance(), t.advance(c, a.terms)) {
            mbarrier_wait(empty + 8 * r.at, r.parity);
            load_stage(a, p, at, n, t.tap, t.k, stages + r.at * STAGE_BYTES, full + 8 * r.at);
        }
    }
}

/* ---- sums that the blocks of a cluster share ---- */

/* Columns of which each block adds up all the parts, and the threads' places for these. */
constexpr int OWN = BN / 8 / SPLITS, PLACES = PARTS * BN / 8;
static_assert(BN / 8 % SPLITS == 0 && (SPLITS == 1 || PLACES * 256 * 16 <= STAGES * STAGE_BYTES), "it fits the ring");

__device__ __forceinline__ u32 part_address(u32 stages, int group, int place)
{
    return stages + (u32)((group * PLACES + place) * 128 + (threadIdx.x & 127)) * 16;
}

/* Into the ring, which nobody reads any more. */
__device__ __forceinline__ void put_parts(int group, u32 stages, const float (&sum)[PARTS][BN / 2])
{
    named_barrier_sync(1, 256);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            shared_store(part_address(stages, group, i * (BN / 8) + j), sum[i] + 4 * j);
}

/* This block's columns of the sum, in the order of the blocks. */
__device__ __forceinline__ void add_parts(int group, u32 stages, int i, float (&v)[OWN][4])
{
    const int first = i * (BN / 8) + (int)cluster_rank() * OWN;
#pragma unroll
    for (int rank = 0; rank < SPLITS; rank++)
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const float4 part = shared_load_remote(part_address(stages, group, first + j), (u32)rank);
            v[j][0] = rank ? v[j][0] + part.x : part.x;
            v[j][1] = rank ? v[j][1] + part.y : part.y;
            v[j][2] = rank ? v[j][2] + part.z : part.z;
            v[j][3] = rank ? v[j][3] + part.w : part.w;
        }
}

template <reading OTHERS>
__device__ __forceinline__ void store_parts(const mica_conv_sm90_args &a, const place &p, int group, u32 stages)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const int row = p.row + (group * PARTS + i) * 64 + warp * 16 + lane / 4;
        const target t[2] = {target_of(a, a.classes[p.index], row), target_of(a, a.classes[p.index], row + 8)};
        float v[OWN][4];
        add_parts(group, stages, i, v);
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const int c = p.col + 8 * ((int)cluster_rank() * OWN + j) + 2 * (lane & 3);
            channel_terms terms[2];
            column_sums<2> none;
            load_pair_terms(a, c, terms);
            store_columns<OTHERS>(a, t[0], c, terms, v[j], none);
            store_columns<OTHERS>(a, t[1], c, terms, v[j] + 2, none);
        }
    }
}

/* ---- the two roles ---- */

/* The sum of this block's steps; then() follows the last of their stages, which is still being multiplied. */
template <typename F>
__device__ __forceinline__ void accumulate(float (&sum)[PARTS][BN / 2], ring<STAGES> &r, int steps, int group,
                                           u32 stages, u32 full, u32 empty, const F &then)
{
    const bool leader = (threadIdx.x & 127) == 0;
    int last = -1;
    if (steps == 0)
#pragma unroll
        for (int i = 0; i < PARTS * BN / 2; i++) sum[i / (BN / 2)][i % (BN / 2)] = 0;
#pragma unroll 1
    for (int k = 0; k < steps; k++, r.advance()) {
        const u32 image = stages + r.at * STAGE_BYTES;
        mbarrier_wait(full + 8 * r.at, r.parity);
        multiply(sum, image + group * PARTS * CHUNK, image + IMAGE_BYTES, k > 0);
        wgmma_wait<1>();
        if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
        last = r.at;
    }
    then();
    wgmma_wait<0>();
    if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
}

__device__ __forceinline__ void consume(const mica_conv_sm90_args &a, int group, u32 stages, u32 full, u32 empty)
{
    const u32 all = stages + STAGES * STAGE_BYTES, staging = all + (threadIdx.x / 32 - 4) * (16 * PITCH);
    float sum[PARTS][BN / 2];
    statistics stats;
    if constexpr (STATS) clear(stats);
    ring<STAGES> r = {0, 0};
    const int own = TURNS ? 0 : group; /* which part of a tile */
    turn t(full + 8 * (2 * STAGES + 1), group);
    int whose = 0;
    for (int tile = (int)blockIdx.x; tile < a.tiles; tile += (int)gridDim.x, whose ^= TURNS) {
        const place p = find(a, tile);
        const int steps = share_of(a, a.classes[p.index]).to;
        if (TURNS && whose != group) {
            r.skip(steps);
            continue;
        }
        if (RESIDUAL_WIDE && a.wide) request_residual(a, corner{p.index, p.row + own * PARTS * 64, p.col}, PARTS);
        if (TURNS) t.begin();
        accumulate(sum, r, steps, own, stages, full, empty, [&] {
            if (TURNS) t.end();
        });
        store(a, corner{p.index, p.row + own * PARTS * 64, p.col}, staging, sum, stats);
    }
    if constexpr (STATS) store_statistics(a, all, 16 * PITCH, stats);
}

/* One tile for the whole cluster. */
__device__ __forceinline__ void consume_share(const mica_conv_sm90_args &a, int group, u32 stages, u32 full, u32 empty)
{
    const place p = find(a, (int)blockIdx.x / SPLITS);
    const share own = share_of(a, a.classes[p.index]);
    ring<STAGES> r = {0, 0};
    {
        float sum[PARTS][BN / 2];
        accumulate(sum, r, own.to - own.from, group, stages, full, empty, [] {});
        put_parts(group, stages, sum);
    }
    cluster_sync();
    if (RESIDUAL || a.beta != 0)
        store_parts<SINGLE>(a, p, group, stages);
    else
        store_parts<NOTHING>(a, p, group, stages);
    cluster_sync(); /* the others read what is here */
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_sm90(const __grid_constant__ mica_conv_sm90_args a)
{
    if (threadIdx.x == 32) {
        tma_prefetch(&a.image[0]);
        tma_prefetch(&a.filter);
    }
    const u32 stages = ring_memory(), full = ring_barriers(1, TURNS ? 1 : 2), empty = full + 8 * STAGES;
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, stages, full, empty);
        if constexpr (SPLITS > 1) {
            __syncwarp();
            cluster_sync();
            cluster_sync();
        }
    } else {
        registers_take<232>();
        if constexpr (SPLITS > 1)
            consume_share(a, group, stages, full, empty);
        else
            consume(a, group, stages, full, empty);
    }
}
