/* SPDX-License-Identifier: Apache-2.0
 * The filter's gradient by Hopper's copy engine and matrix units: rows are channels of b, columns
 * pairs (tap, channel of a) in chunks of 64, terms pixels of b, 64 to a stage; both operands lie in
 * memory term after term (MN-major). Each share of the pixels gives partial sums of its own. The blocks
 * of a cluster that share a tile's pixels add these up and store the result; else
 * conv_sm90_reduce.cu adds them. Tiles of one share are neighbours, so that blocks that run side by
 * side read the same pixels. What fills shared memory goes with BM + BN and bounds the speed of small
 * tiles: the largest use 192 registers for sums. Constants: those of conv_sm90.cuh; WIDTH (columns of
 * an instruction); STREAM; CLUSTER (blocks of a cluster that finish a tile; 0: none does); those of
 * conv_sm90_filter.cuh; mma(). */
#include "ops/conv/conv_sm90.cuh"
#include "ops/conv/conv_sm90_filter.cuh"
#include "ops/conv/conv_sm90_stream.cuh"

constexpr int LEFT = BM / 64, RIGHT = BN / 64; /* chunks */
constexpr int ACROSS = BN / WIDTH;             /* instructions for all columns */
constexpr int STAGE_BYTES = (BM + BN) * ROW;
constexpr int PARTS = BM / 128; /* 64 rows of the result for each warpgroup */
constexpr int PRODUCERS = 4, HELD = (LEFT + RIGHT + PRODUCERS - 1) / PRODUCERS;
static_assert(BM % 128 == 0 && BN % 64 == 0, "whole chunks for two warpgroups");
static_assert(BN % WIDTH == 0 && WIDTH % 64 == 0 && WIDTH <= 256 && PARTS * BN <= 384, "the accumulators fit");

/* Of sums on their way through the ring: 8 columns more spread rows over all banks. */
constexpr int PITCH = BN + 8, OWN_ROWS = BM / (CLUSTER ? CLUSTER : 1);
static_assert(!CLUSTER || (!STREAM && BM % CLUSTER == 0 && BM * PITCH * 4 <= STAGES * STAGE_BYTES), "they fit");

/* A tile's part: which one, first row, first chunk of columns, blocks of pixels. */
struct item {
    int part, row, chunk, from, to;
};

/* This block's way through the items: in a stream a piece of all tiles' blocks, one part in a cluster,
 * else every so many of the parts, those of one share side by side. */
struct walk {
    long long at, end;
};

__device__ __forceinline__ walk begin(const mica_conv_sm90_wgrad_args &a)
{
    const long long tiles = (long long)a.row_tiles * a.col_tiles;
    if (CLUSTER) return walk{(long long)blockIdx.x, (long long)blockIdx.x + 1};
    if (!STREAM) return walk{(long long)blockIdx.x, tiles * a.splits};
    const long long length = tiles * a.blocks;
    return walk{length * blockIdx.x / gridDim.x, length * (blockIdx.x + 1) / gridDim.x};
}

__device__ __forceinline__ item take(const mica_conv_sm90_wgrad_args &a, walk &w)
{
    const long long tiles = (long long)a.row_tiles * a.col_tiles;
    const int tile = (int)(STREAM ? w.at / a.blocks : CLUSTER ? w.at / a.splits : w.at % tiles);
    item t;
    t.row = tile / a.col_tiles * BM;
    t.chunk = tile % a.col_tiles * RIGHT;
    if (STREAM) {
        const long long first = (long long)tile * a.blocks;
        t.part = (int)blockIdx.x - piece_of(first, (int)gridDim.x, tiles * a.blocks);
        t.from = (int)(w.at - first);
        t.to = (int)min((long long)a.blocks, w.end - first);
        w.at = first + t.to;
    } else {
        t.part = (int)(CLUSTER ? w.at % a.splits : w.at / tiles);
        t.from = (int)((long long)a.blocks * t.part / a.splits);
        t.to = (int)((long long)a.blocks * (t.part + 1) / a.splits);
        w.at += gridDim.x;
    }
    return t;
}

/* What one chunk of a stage is read from: channels of b, or channels of a as a tap sees them. */
struct chunk {
    int channel, tap[3];
    bool exists;
};

__device__ __forceinline__ chunk chunk_at(const mica_conv_sm90_wgrad_args &a, const item &t, int index)
{
    if (index < LEFT) return chunk{t.row + 64 * index, {0, 0, 0}, t.row + 64 * index < a.rows};
    const int blocks = (a.channels + 63) / 64, pair = t.chunk + index - LEFT;
    chunk c;
    int tap = pair / blocks;
    c.channel = pair % blocks * 64;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        c.tap[d] = tap % a.taps[d] * a.tap_step[d];
        tap /= a.taps[d];
    }
    c.exists = tap == 0 && index < LEFT + RIGHT;
    return c;
}

/* One thread of each of four warps loads every fourth chunk of a stage: to issue all would take a single
 * one longer than to multiply them. */
__device__ __forceinline__ void produce(const mica_conv_sm90_wgrad_args &a, int warp, u32 stages, u32 full, u32 empty)
{
    ring r = {0, 1};
    for (walk w = begin(a); w.at < w.end;) {
        const item t = take(a, w);
        chunk chunks[HELD];
        int bytes = 0;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            chunks[i] = chunk_at(a, t, warp + i * PRODUCERS);
            bytes += chunks[i].exists ? CHUNK : 0;
        }
        for (int block = t.from; block < t.to; block++, r.advance()) {
            const u32 to = stages + r.stage * STAGE_BYTES + (u32)warp * CHUNK, bar = full + 8 * r.stage;
            int place[3], at[3];
            const int n = position(a.count, block * 64, place);
#pragma unroll
            for (int d = 0; d < 3; d++) at[d] = a.start[d] + place[d] * a.step[d];
            mbarrier_wait(empty + 8 * r.stage, r.parity);
            /* chunks past the end keep what was there: no result that counts is made of it */
            mbarrier_arrive_expect(bar, bytes);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!chunks[i].exists) continue;
                if (warp + i * PRODUCERS < LEFT)
                    load_image(to + i * PRODUCERS * CHUNK, &a.grad, bar, chunks[i].channel, place, n, chunks[i].tap);
                else
                    load_image(to + i * PRODUCERS * CHUNK, &a.image, bar, chunks[i].channel, at, n, chunks[i].tap);
            }
        }
    }
}

__device__ __forceinline__ void multiply(float (&sum)[PARTS * ACROSS][WIDTH / 2], u32 left, u32 right, bool more)
{
    const u64 rows = wgmma_operand<ROW>(left, CHUNK, 8 * ROW), cols = wgmma_operand<ROW>(right, CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < 4; z++)
#pragma unroll
        for (int i = 0; i < PARTS * ACROSS; i++)
            mma(sum[i], wgmma_advance(rows, i / ACROSS * CHUNK + z * 16 * ROW),
                wgmma_advance(cols, i % ACROSS * (WIDTH / 64) * CHUNK + z * 16 * ROW), more || z > 0);
    wgmma_commit();
}

__device__ __forceinline__ void store(const mica_conv_sm90_wgrad_args &a, const item &t, int group,
                                      const float (&sum)[PARTS * ACROSS][WIDTH / 2])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    const long long columns = (long long)a.col_tiles * BN;
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++) {
        const int row = t.row + (group * PARTS + i / 2) * 64 + warp * 16 + i % 2 * 8 + lane / 4;
        if (row >= a.rows) continue;
        float *to = a.partial + ((t.part * (long long)a.rows + row) * columns + t.chunk * 64 + 2 * (lane & 3));
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float *from = sum[i / 2 * ACROSS + j / (WIDTH / 8)] + 4 * (j % (WIDTH / 8)) + i % 2 * 2;
            *(float2 *)(to + 8 * j) = make_float2(from[0], from[1]);
        }
    }
}

/* Into the ring, which nobody reads any more. */
__device__ __forceinline__ void put_parts(int group, u32 stages, const float (&sum)[PARTS * ACROSS][WIDTH / 2])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    named_barrier_sync(1, 256);
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++) {
        const int row = (group * PARTS + i / 2) * 64 + warp * 16 + i % 2 * 8 + lane / 4;
        const u32 to = stages + (u32)(row * PITCH + 2 * (lane & 3)) * 4;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float *from = sum[i / 2 * ACROSS + j / (WIDTH / 8)] + 4 * (j % (WIDTH / 8)) + i % 2 * 2;
            shared_store_pair(to + (u32)j * 32, from);
        }
    }
}

/* The sums of all blocks, in their order, of this block's rows. */
__device__ __forceinline__ void store_cluster(const mica_conv_sm90_wgrad_args &a, const item &t, u32 stages)
{
    constexpr int QUADS = BN / 4;
    const int thread = (int)threadIdx.x - 128, blocks = (a.channels + 63) / 64;
    const int taps = a.taps[0] * a.taps[1] * a.taps[2];
#pragma unroll 4
    for (int i = thread; i < OWN_ROWS * QUADS; i += 256) {
        const int line = t.part * OWN_ROWS + i / QUADS, column = i % QUADS * 4, row = t.row + line;
        const u32 from = stages + (u32)(line * PITCH + column) * 4;
        float4 sum = shared_load_remote(from, 0);
#pragma unroll
        for (int rank = 1; rank < CLUSTER; rank++) sum = add(sum, shared_load_remote(from, (u32)rank));
        const int pair = t.chunk + column / 64, tap = pair / blocks, c = pair % blocks * 64 + column % 64;
        if (row < a.rows && tap < taps && c < a.channels) store_channels(a.filter, row, tap, c, sum);
    }
}

__device__ __forceinline__ void consume(const mica_conv_sm90_wgrad_args &a, int group, u32 stages, u32 full, u32 empty)
{
    const bool leader = (threadIdx.x & 127) == 0;
    float sum[PARTS * ACROSS][WIDTH / 2];
    ring r = {0, 0};
    for (walk w = begin(a); w.at < w.end;) {
        const item t = take(a, w);
        int last = -1;
#pragma unroll 1
        for (int block = t.from; block < t.to; block++, r.advance()) {
            const u32 left = stages + r.stage * STAGE_BYTES;
            mbarrier_wait(full + 8 * r.stage, r.parity);
            multiply(sum, left + group * PARTS * CHUNK, left + LEFT * CHUNK, block > t.from);
            wgmma_wait<1>();
            if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
            last = r.stage;
        }
        wgmma_wait<0>();
        if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
        if constexpr (CLUSTER > 0) {
            put_parts(group, stages, sum);
            cluster_sync();
            store_cluster(a, t, stages);
            cluster_sync(); /* the others read what is here */
        } else {
            store(a, t, group, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_sm90_wgrad(const __grid_constant__ mica_conv_sm90_wgrad_args a)
{
    const u32 stages = ring_memory(), full = ring_barriers(PRODUCERS, 2), empty = full + 8 * STAGES;
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x % 32 == 0) produce(a, (int)threadIdx.x / 32, stages, full, empty);
        if constexpr (CLUSTER > 0) {
            __syncwarp();
            cluster_sync();
            cluster_sync();
        }
    } else {
        registers_take<232>();
        consume(a, group, stages, full, empty);
    }
}
