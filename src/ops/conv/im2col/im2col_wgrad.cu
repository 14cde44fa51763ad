/* SPDX-License-Identifier: Apache-2.0
 * The filter's gradient by Hopper's TMA and tensor cores: rows are channels of b, columns
 * pairs (tap, channel of a) in chunks of 64, terms pixels of b, 64 to a stage; both operands lie in
 * memory term after term (MN-major) or, if PLANES, channel after channel (K-major). Each share of the
 * pixels gives partial sums of its own. The blocks of a cluster that share a tile's pixels add these up
 * and store the result; else im2col_reduce.cu adds them. Tiles of one share are neighbours, so that
 * blocks that run side by side read the same pixels. What fills shared memory goes with BM + BN and bounds the speed of small
 * tiles: the largest use 192 registers for sums. Constants: those of im2col.cuh; WIDTH (columns of
 * an instruction); STREAM; GROUPS; CLUSTER (blocks of a cluster that finish a tile; 0: none does); EARLY (the
 * reduction may come while sums are stored); those of im2col_filter.cuh; mma(). */
#include "kernels/overlap.cuh"
#include "ops/conv/im2col/im2col.cuh"
#include "ops/conv/im2col/im2col_filter.cuh"
#include "ops/conv/im2col/im2col_stream.cuh"

constexpr int LEFT = BM / 64, RIGHT = BN / 64; /* chunks */
constexpr int ACROSS = BN / WIDTH;             /* instructions for all columns */
constexpr int STAGE_BYTES = (BM + BN) * ROW;
constexpr int PARTS = BM / 128; /* 64 rows of the result for each warpgroup */
constexpr int PRODUCERS = 4, HELD = (LEFT + RIGHT + PRODUCERS - 1) / PRODUCERS;
static_assert(BM % 128 == 0 && BN % 64 == 0, "whole chunks for two warpgroups");
static_assert(BN % WIDTH == 0 && WIDTH % 64 == 0 && WIDTH <= 256 && PARTS * BN <= 384, "the accumulators fit");

/* Of sums that are exchanged through the ring: 8 columns more spread rows over all banks. */
constexpr int PITCH = BN + 8, OWN_ROWS = BM / (CLUSTER ? CLUSTER : 1);
static_assert(!CLUSTER || (!STREAM && BM % CLUSTER == 0 && BM * PITCH * 4 <= STAGES * STAGE_BYTES), "they fit");

/* A tile's part: which one, its group, first row in it, first chunk of columns, blocks of pixels. */
struct item {
    int part, group, row, chunk, from, to;
};

/* This block's way through the items: in a stream a piece of all tiles' blocks, one part in a cluster,
 * else the parts with the stride of the grid, those of one share side by side. */
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

/* A tile's blocks are divided evenly, the first parts have one more. */
__device__ __forceinline__ item take(const mica_conv_sm90_wgrad_args &a, walk &w)
{
    const long long tiles = (long long)a.row_tiles * a.col_tiles;
    const u32 at = (u32)w.at; /* but in a stream these are fewer than 2^31 */
    int tile;
    item t;
    if constexpr (STREAM) {
        tile = (int)(w.at / a.blocks);
        const long long first = (long long)tile * a.blocks;
        t.part = (int)blockIdx.x - piece_of(first, (int)gridDim.x, tiles * a.blocks);
        t.from = (int)(w.at - first);
        t.to = (int)min((long long)a.blocks, w.end - first);
        w.at = first + t.to;
    } else {
        const u32 each = (u32)a.blocks / (u32)a.splits, more = (u32)a.blocks - each * (u32)a.splits;
        const u32 fast = CLUSTER ? (u32)a.splits : (u32)tiles, slow = at / fast, rest = at - slow * fast;
        tile = (int)(CLUSTER ? slow : rest);
        t.part = (int)(CLUSTER ? rest : slow);
        t.from = t.part * (int)each + min(t.part, (int)more);
        t.to = t.from + (int)each + (t.part < (int)more);
        w.at += gridDim.x;
    }
    const int row = (int)((u32)tile / (u32)a.col_tiles);
    t.group = GROUPS ? (int)((u32)row / (u32)a.group_tiles) : 0;
    t.row = (row - t.group * a.group_tiles) * BM;
    t.chunk = (tile - row * a.col_tiles) * RIGHT;
    return t;
}

/* What one chunk of a stage is read from: channels of b, or channels of a as a tap sees them. */
struct chunk {
    int channel, tap[3];
    bool exists;
};

__device__ __forceinline__ chunk chunk_at(const mica_conv_sm90_wgrad_args &a, const item &t, int index)
{
    if (index < LEFT) {
        const int row = t.row + 64 * index;
        return chunk{t.group * a.rows + row, {0, 0, 0}, row < a.rows};
    }
    const u32 blocks = ((u32)a.filter.channels + 63) / 64, pair = (u32)(t.chunk + index - LEFT);
    chunk c;
    u32 tap = pair / blocks;
    c.channel = t.group * a.filter.channels + (int)(pair - tap * blocks) * 64;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        const u32 rest = tap / (u32)a.filter.taps[d];
        c.tap[d] = (int)(tap - rest * (u32)a.filter.taps[d]) * a.tap_step[d];
        tap = rest;
    }
    c.exists = tap == 0 && index < LEFT + RIGHT;
    return c;
}

__device__ __forceinline__ void load_chunk(u32 to, const mica_tensor_map *map, u32 bar, const chunk &c, const int at[3],
                                           int n)
{
    if constexpr (PLANES)
        tma_load(to, map, bar, at[2], c.channel, n);
    else
        load_image(to, map, bar, c.channel, at, n, c.tap);
}

/* One thread of each of four warps loads every fourth chunk of a stage: to issue all would take a single
 * one longer than to multiply them. */
__device__ __forceinline__ void produce(const mica_conv_sm90_wgrad_args &a, int warp, u32 stages, u32 full, u32 empty)
{
    ring<STAGES> r = {0, 1};
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
            const u32 to = stages + r.at * STAGE_BYTES + (u32)warp * CHUNK, bar = full + 8 * r.at;
            int place[3], at[3];
            const int n = position(a.count, block * 64, place);
#pragma unroll
            for (int d = 0; d < 3; d++) at[d] = a.start[d] + place[d] * a.step[d];
            mbarrier_wait(empty + 8 * r.at, r.parity);
            /* chunks past the end keep what was there: no result that counts is made of it */
            mbarrier_arrive_expect(bar, bytes);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!chunks[i].exists) continue;
                if (warp + i * PRODUCERS < LEFT)
                    load_chunk(to + i * PRODUCERS * CHUNK, &a.grad, bar, chunks[i], place, n);
                else
                    load_chunk(to + i * PRODUCERS * CHUNK, &a.image, bar, chunks[i], at, n);
            }
        }
    }
}

__device__ __forceinline__ void multiply(float (&sum)[PARTS * ACROSS][WIDTH / 2], u32 left, u32 right, bool more)
{
    constexpr int SIXTEEN = PLANES ? 32 : 16 * ROW; /* bytes from 16 terms to the next */
    const u64 rows = wgmma_operand<ROW>(left, CHUNK, 8 * ROW), cols = wgmma_operand<ROW>(right, CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < 4; z++)
#pragma unroll
        for (int i = 0; i < PARTS * ACROSS; i++)
            mma(sum[i], wgmma_advance(rows, i / ACROSS * CHUNK + z * SIXTEEN),
                wgmma_advance(cols, i % ACROSS * (WIDTH / 64) * CHUNK + z * SIXTEEN), more || z > 0);
    wgmma_commit();
}

__device__ __forceinline__ void store(const mica_conv_sm90_wgrad_args &a, const item &t, int group,
                                      const float (&sum)[PARTS * ACROSS][WIDTH / 2])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    const long long columns = (long long)a.col_tiles * BN;
    const int groups = GROUPS ? a.row_tiles / a.group_tiles : 1;
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++) {
        const int row = t.row + (group * PARTS + i / 2) * 64 + warp * 16 + i % 2 * 8 + lane / 4;
        if (row >= a.rows) continue;
        const long long line = (long long)(t.part * groups + t.group) * a.rows + row;
        float *to = a.partial + (line * columns + t.chunk * 64 + 2 * (lane & 3));
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

/* A cluster of one block is launched without: clusters start slowly. */
__device__ __forceinline__ void meet()
{
    if constexpr (CLUSTER > 1)
        cluster_sync();
    else
        named_barrier_sync(1, 256);
}

__device__ __forceinline__ float4 load_part(u32 from, u32 rank)
{
    if constexpr (CLUSTER > 1) return shared_load_remote(from, rank);
    const uint4 words = shared_load(from);
    float4 part;
    memcpy(&part, &words, sizeof part);
    return part;
}

/* The sums of all blocks, in their order, of this block's rows: four columns to a thread, ABREAST rows at once,
 * and as many loads in flight as there are in a batch. */
__device__ __forceinline__ void store_cluster(const mica_conv_sm90_wgrad_args &a, const item &t, u32 stages)
{
    constexpr int QUADS = BN / 4, ABREAST = 256 / QUADS, BATCH = 4;
    const int thread = (int)threadIdx.x - 128, column = thread % QUADS * 4;
    const u32 blocks = ((u32)a.filter.channels + 63) / 64, pair = (u32)(t.chunk + column / 64), tap = pair / blocks;
    const int c = (int)(pair - tap * blocks) * 64 + column % 64;
    const int *const taps = a.filter.taps;
    const bool exists = tap < (u32)(taps[0] * taps[1] * taps[2]) && c < a.filter.channels;
    if (thread >= ABREAST * QUADS || !exists) return;
    const long long place = filter_place(a.filter, tap, c);
    const int end = min(OWN_ROWS, a.rows - t.row - t.part * OWN_ROWS);
    for (int first = thread / QUADS; first < end; first += BATCH * ABREAST) {
        float4 sum[BATCH];
#pragma unroll
        for (int rank = 0; rank < CLUSTER; rank++)
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int line = t.part * OWN_ROWS + min(first + i * ABREAST, OWN_ROWS - 1);
                const float4 part = load_part(stages + (u32)(line * PITCH + column) * 4, (u32)rank);
                sum[i] = rank ? add(sum[i], part) : part;
            }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int line = first + i * ABREAST;
            const int row = t.group * a.rows + t.row + t.part * OWN_ROWS + line;
            if (line < end) store_channels(a.filter, place + row * a.filter.f.n, sum[i]);
        }
    }
}

__device__ __forceinline__ void consume(const mica_conv_sm90_wgrad_args &a, int group, u32 stages, u32 full, u32 empty)
{
    const bool leader = (threadIdx.x & 127) == 0;
    float sum[PARTS * ACROSS][WIDTH / 2];
    ring<STAGES> r = {0, 0};
    for (walk w = begin(a); w.at < w.end;) {
        const item t = take(a, w);
        int last = -1;
#pragma unroll 1
        for (int block = t.from; block < t.to; block++, r.advance()) {
            const u32 left = stages + r.at * STAGE_BYTES;
            mbarrier_wait(full + 8 * r.at, r.parity);
            multiply(sum, left + group * PARTS * CHUNK, left + LEFT * CHUNK, block > t.from);
            wgmma_wait<1>();
            if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
            last = r.at;
        }
        wgmma_wait<0>();
        if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
        if constexpr (CLUSTER > 0) {
            put_parts(group, stages, sum);
            meet();
            store_cluster(a, t, stages);
            if constexpr (CLUSTER > 1) meet(); /* the others read what is here */
        } else {
            if (EARLY && w.at >= w.end) overlap_allow();
            store(a, t, group, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_sm90_wgrad(const __grid_constant__ mica_conv_sm90_wgrad_args a)
{
    if (threadIdx.x == 32) {
        tma_prefetch(&a.grad);
        tma_prefetch(&a.image);
    }
    const u32 stages = ring_memory(), full = ring_barriers(PRODUCERS, 2), empty = full + 8 * STAGES;
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x % 32 == 0) produce(a, (int)threadIdx.x / 32, stages, full, empty);
        if constexpr (CLUSTER > 1) {
            __syncwarp();
            meet();
            meet();
        }
    } else {
        registers_take<232>();
        consume(a, group, stages, full, empty);
    }
}
