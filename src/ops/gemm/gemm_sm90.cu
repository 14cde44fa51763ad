/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper. A persistent block walks over tiles of c; one thread keeps a ring of STAGES, each DEPTH
 * slices of both operands, filled by the copy engine, GROUPS warpgroups multiply them, each its share of the tile's
 * lines, and take the sums through shared memory to c, while the ring fills for the next tile.
 *
 * Where tiles are few, the blocks of a cluster share out K of one tile, and each finishes its part of the sums.
 * Operands are not multicast: blocks side by side that read the same lines are served as fast without it.
 *
 * Prologue: TILE_M (lines) TILE_N (across) STAGES GROUPS, DEPTH, SPLIT (blocks of a cluster), BUFFERS (of 8 KiB for c, of each group),
 * A_MN_MAJOR B_MN_MAJOR (the operands lie along lines or across, not along K), SWAPPED (lines are columns
 * of c), PROMOTE (sums leave the tensor core after every slice: 8-bit floats), LIGHT (c is tiled for the
 * copy engine, and little follows the sums), BATCH_RANK, HAS_SCALE_A HAS_SCALE_B, types a_t (the operand of
 * the lines) b_t c_t sum_t out_t, the epilogue's, and mma(sum, a, b, add): m64 by TILE_N. */
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/gemm/gemm_device.cuh"
#include "ops/gemm/gemm_sm90_args.h"

constexpr int LINE_BYTES = 128; /* of K in a slice */
constexpr int TILE_K = LINE_BYTES / (int)sizeof(a_t);
constexpr int STEPS = 4; /* instructions of 32 bytes of K */
constexpr int A_SLICE = TILE_M * LINE_BYTES, B_SLICE = TILE_N * LINE_BYTES;
constexpr int A_BYTES = DEPTH * A_SLICE, B_BYTES = DEPTH * B_SLICE;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int GROUP_LINES = TILE_M / GROUPS, WAVES = GROUP_LINES / 64;
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int SUMS = TILE_N / 2; /* a thread's, of one wave */
/* Sums pass through shared memory in pieces of 64 x PIECE; the pitch spreads pairs over all banks. */
constexpr int PIECE = TILE_N % 32 ? 16 : 32, PITCH = PIECE + 8, PIECES = TILE_N / PIECE, PIECE_SUMS = PIECE / 2;
constexpr int VECTOR = 4;
/* What the copy engine stores: boxes of 64 lines of at most 128 bytes, swizzled. */
constexpr int BUFFER_BYTES = 8192, STAGING_BYTES = BUFFERS * BUFFER_BYTES;
constexpr int BOX_WIDEST = LINE_BYTES / (int)sizeof(c_t), BOX = TILE_N < BOX_WIDEST ? TILE_N : BOX_WIDEST;
constexpr int BOX_BYTES = BOX * (int)sizeof(c_t), BOXES = (TILE_N + BOX - 1) / BOX;
/* First column of a box: the last one repeats some of its neighbour's, with the same results. */
__device__ constexpr int box_column(int box) { return box * BOX < TILE_N - BOX ? box * BOX : TILE_N - BOX; }

static_assert(STAGING_BYTES >= 64 * PITCH * 4, "room for a piece");
static_assert(!LIGHT || (BOX_BYTES & (BOX_BYTES - 1)) == 0, "a swizzle of this width");
static_assert(sizeof(sum_t) == 4, "sums of 32 bits");
static_assert(GROUP_LINES % 64 == 0 && TILE_N % PIECE == 0, "whole pieces");
static_assert(STAGE_BYTES % 1024 == 0, "stages keep the alignment of the swizzle");
static_assert(!(A_MN_MAJOR || B_MN_MAJOR) || sizeof(a_t) == 2, "8-bit and tf32 operands are K-major");
static_assert(!B_MN_MAJOR || TILE_N % 64 == 0, "whole chunks across");
static_assert(SPLIT == 1 || !LIGHT, "sums of a split tile are finished in parts");
static_assert(SPLIT == 1 || TILE_M * TILE_N * 4 <= STAGES * STAGE_BYTES, "the ring holds a tile's sums");

struct ring {
    u32 stages, full, empty;
    int rank; /* of this block in its cluster */
    int at;
    u32 parity;

    __device__ void next()
    {
        if (++at < STAGES) return;
        at = 0;
        parity ^= 1;
    }
};

struct tile {
    int line, across; /* first of the tile */
    int batch[3];
};

__device__ __forceinline__ tile find_tile(const gemm_sm90_args &args, int number)
{
    tile t = {};
    const int plane = args.tiles_lines * args.tiles_across;
    int item = number / plane, inside = number - item * plane;
    const int band = inside / (args.band * args.tiles_across), first = band * args.band;
    inside -= first * args.tiles_across;
    const int high = min(args.tiles_lines - first, args.band);
    t.line = (first + inside % high) * TILE_M;
    t.across = inside / high * TILE_N;
#pragma unroll
    for (int i = BATCH_RANK - 1; i >= 0; i--) {
        const int count = (int)args.gemm.shape.batch[i], above = item / count;
        t.batch[i] = item - above * count;
        item = above;
    }
    return t;
}

/* Batch coordinates of an operand: 0 where it is broadcast. */
__device__ __forceinline__ void load_box(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, const tile &t,
                                         const long long *stride)
{
    int z[3];
#pragma unroll
    for (int i = 0; i < BATCH_RANK; i++) z[i] = stride[i] ? t.batch[i] : 0;
    if constexpr (BATCH_RANK == 0) tma_load(to, map, bar, x, y);
    if constexpr (BATCH_RANK == 1) tma_load(to, map, bar, x, y, z[0]);
    if constexpr (BATCH_RANK == 2) tma_load(to, map, bar, x, y, z[1], z[0]);
    if constexpr (BATCH_RANK == 3) tma_load(to, map, bar, x, y, z[2], z[1], z[0]);
}

/* One operand's part of a slice. Along K: LINES rows of 128 bytes; along MN: chunks of 64 elements, each
 * TILE_K rows of 128 bytes. */
template <int LINES, bool MN_MAJOR>
__device__ __forceinline__ void load_operand(u32 to, const mica_tensor_map *map, u32 bar, int line, int k,
                                             const tile &t, const long long *stride)
{
    if constexpr (!MN_MAJOR)
        load_box(to, map, bar, k, line, t, stride);
    else
#pragma unroll
        for (int i = 0; i < LINES / 64; i++)
            load_box(to + i * TILE_K * LINE_BYTES, map, bar, line + 64 * i, k, t, stride);
}

/* The stages of K that are this block's. */
struct extent {
    int first, end;
};

__device__ __forceinline__ extent stages_of(const gemm_sm90_args &args, int rank)
{
    if constexpr (SPLIT == 1) return extent{0, args.fills};
    const int each = args.fills / SPLIT, more = args.fills % SPLIT;
    const int first = rank * each + min(rank, more);
    return extent{first, first + each + (rank < more)};
}

__device__ __forceinline__ void produce(const gemm_sm90_args &args, ring r)
{
    const gemm_shape &s = args.gemm.shape;
    const extent own = stages_of(args, r.rank);
    r.parity = 1;
    for (int n = (int)blockIdx.x / SPLIT; n < args.tiles; n += (int)gridDim.x / SPLIT) {
        const tile t = find_tile(args, n);
        for (int fill = own.first; fill < own.end; fill++) {
            const u32 bar = r.full + 8 * r.at, to = r.stages + r.at * STAGE_BYTES;
            mbarrier_wait(r.empty + 8 * r.at, r.parity);
            mbarrier_arrive_expect(bar, (u32)args.stage_bytes);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int k = (fill * DEPTH + d) * TILE_K;
                load_operand<TILE_M, A_MN_MAJOR>(to + d * A_SLICE, &args.a, bar, t.line, k, t,
                                                 SWAPPED ? s.b_batch : s.a_batch);
                load_operand<TILE_N, B_MN_MAJOR>(to + A_BYTES + d * B_SLICE, &args.b, bar, t.across, k, t,
                                                 SWAPPED ? s.a_batch : s.b_batch);
            }
            r.next();
        }
    }
}

template <bool MN_MAJOR> __device__ __forceinline__ u64 operand(u32 address)
{
    return MN_MAJOR ? wgmma_operand<128>(address, TILE_K * LINE_BYTES, 8 * LINE_BYTES)
                    : wgmma_operand<128>(address, 16, 8 * LINE_BYTES);
}
/* Bytes to the next 32 bytes of K. */
template <bool MN_MAJOR> constexpr u32 step_bytes() { return MN_MAJOR ? 16 * LINE_BYTES : 32; }
/* Bytes from 64 lines to the next. */
constexpr u32 WAVE_BYTES = 64 * LINE_BYTES;

/* A warp no longer reads this stage. */
__device__ __forceinline__ void release(const ring &r, int stage, int lane)
{
    if (lane == 0) mbarrier_arrive(r.empty + 8 * stage);
}

/* All slices of a tile in one sum per element. The stage before the one being multiplied is released when
 * its instructions are known to be done. */
__device__ __forceinline__ void multiply(sum_t (&sum)[WAVES][SUMS], ring &r, int fills, int group, int lane)
{
    int before = -1;
#pragma unroll 1
    for (int fill = 0; fill < fills; fill++) {
        mbarrier_wait(r.full + 8 * r.at, r.parity);
        const u32 at = r.stages + r.at * STAGE_BYTES;
        const u64 a = operand<A_MN_MAJOR>(at + group * WAVES * WAVE_BYTES), b = operand<B_MN_MAJOR>(at + A_BYTES);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH * STEPS; i++) {
            const int d = i / STEPS, k = i % STEPS;
#pragma unroll
            for (int w = 0; w < WAVES; w++)
                mma(sum[w], wgmma_advance(a, d * A_SLICE + k * step_bytes<A_MN_MAJOR>() + w * WAVE_BYTES),
                    wgmma_advance(b, d * B_SLICE + k * step_bytes<B_MN_MAJOR>()), fill | i);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0) release(r, before, lane);
        before = r.at;
        r.next();
    }
    wgmma_wait<0>();
    release(r, before, lane);
}

/* The tensor core keeps 14 bits of a sum of 8-bit floats: it adds up 128 products, registers the rest. */
__device__ __forceinline__ void multiply_promoted(sum_t (&sum)[WAVES][SUMS], ring &r, int fills, int group, int lane)
{
#pragma unroll
    for (int w = 0; w < WAVES; w++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sum[w][i] = 0;
#pragma unroll 1
    for (int fill = 0; fill < fills; fill++) {
        mbarrier_wait(r.full + 8 * r.at, r.parity);
        const u32 at = r.stages + r.at * STAGE_BYTES;
        const u64 a = operand<false>(at + group * WAVES * WAVE_BYTES), b = operand<false>(at + A_BYTES);
#pragma unroll
        for (int part_of_stage = 0; part_of_stage < DEPTH * WAVES; part_of_stage++) {
            const int w = part_of_stage % WAVES, d = part_of_stage / WAVES;
            sum_t part[SUMS];
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                mma(part, wgmma_advance(a, d * A_SLICE + k * 32 + w * WAVE_BYTES),
                    wgmma_advance(b, d * B_SLICE + k * 32), k);
            wgmma_commit();
            wgmma_wait<0>();
            if (part_of_stage == DEPTH * WAVES - 1) release(r, r.at, lane);
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[w][i] += part[i];
        }
        r.next();
    }
}

/* ---- from sums to c ---- */

/* Piece number `piece` of the sums. The index is known in each copy of the loop's body, so that sums stay
 * in registers. */
__device__ __forceinline__ void stage_piece(const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int piece, int warp,
                                            int lane)
{
    sum_t *to = staging + (warp * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < WAVES * PIECES; i++) {
        if (i != piece) continue;
        const sum_t *from = sum[i / PIECES] + i % PIECES * PIECE_SUMS;
#pragma unroll
        for (int j = 0; j < PIECE / 8; j++) {
            store_vector<2>(to + 8 * j, from + 4 * j);
            store_vector<2>(to + 8 * j + 8 * PITCH, from + 4 * j + 2);
        }
    }
}

__device__ __forceinline__ c_t finish_one(const gemm_sm90_args &args, const place &p, s64 line, s64 across, sum_t sum,
                                          const c_t *c)
{
    return finish(args.gemm, p, SWAPPED ? across : line, SWAPPED ? line : across, sum, c);
}

/* Four neighbours across. */
__device__ __forceinline__ void finish_vector(const gemm_sm90_args &args, const place &p, s64 line, s64 across,
                                              const sum_t *sum)
{
    c_t *c = (c_t *)args.gemm.c + p.c + line * args.c_line + across * args.c_across;
    if (args.whole && across + VECTOR <= args.across) {
        c_t v[VECTOR];
        if (args.gemm.beta != 0) load_vector<VECTOR>(c, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = finish_one(args, p, line, across + i, sum[i], &v[i]);
        store_vector<VECTOR>(c, v);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (across + i < args.across)
                c[i * args.c_across] = finish_one(args, p, line, across + i, sum[i], c + i * args.c_across);
    }
}

/* Another block's word at the same place. */
__device__ __forceinline__ sum_t read_remote(const sum_t *p, int rank)
{
    u32 word;
    asm volatile("{ .reg .b32 r;\n"
                 "mapa.shared::cluster.u32 r, %1, %2;\n"
                 "ld.shared::cluster.u32 %0, [r]; }" : "=r"(word) : "r"(shared_address(p)), "r"(rank) : "memory");
    sum_t v;
    memcpy(&v, &word, sizeof v);
    return v;
}

/* Adds up the sums that the blocks of a cluster have of one tile. Each block finishes some of the pieces and
 * reads these from the others, in order of their ranks. The rings are idle meanwhile: with K shared out, a
 * block has one tile. */
__device__ __forceinline__ void exchange(sum_t (&sum)[WAVES][SUMS], const ring &r, sum_t *shared)
{
    constexpr int THREADS_HERE = 128 * GROUPS;
    const int thread = (int)threadIdx.x;
    sum_t *mine = shared + thread;
    named_barrier_sync(3, THREADS_HERE); /* the other warpgroup may still multiply */
#pragma unroll
    for (int i = 0; i < WAVES * SUMS; i++) mine[i * THREADS_HERE] = sum[i / SUMS][i % SUMS];
    cluster_sync();
#pragma unroll
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        if (piece % SPLIT != r.rank) continue;
#pragma unroll
        for (int j = 0; j < PIECE_SUMS; j++) {
            const int i = piece * PIECE_SUMS + j;
            sum_t total = read_remote(mine + i * THREADS_HERE, 0);
#pragma unroll
            for (int rank = 1; rank < SPLIT; rank++) total += read_remote(mine + i * THREADS_HERE, rank);
            sum[i / SUMS][i % SUMS] = total;
        }
    }
}

__device__ __forceinline__ void finish_tile(const gemm_sm90_args &args, const tile &t,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int group, int rank)
{
    constexpr int ACROSS = PIECE / VECTOR, EACH = 64 / (128 / ACROSS); /* vectors of a row, of a thread */
    const gemm_shape &s = args.gemm.shape;
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int column = thread % ACROSS * VECTOR, row = thread / ACROSS;
    place p = {};
#pragma unroll
    for (int i = 0; i < BATCH_RANK; i++) {
        p.c += t.batch[i] * s.c_batch[i];
        p.r += t.batch[i] * s.r_batch[i];
    }
#pragma unroll 1
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        const int line = t.line + group * GROUP_LINES + piece / PIECES * 64, across = t.across + piece % PIECES * PIECE;
        if (line >= args.lines || across >= args.across || (SPLIT > 1 && piece % SPLIT != rank)) continue;
        stage_piece(sum, staging, piece, warp, lane);
        named_barrier_sync(1 + group, 128);
#pragma unroll 1
        for (int i = 0; i < EACH; i++) {
            const int y = i * (128 / ACROSS) + row;
            sum_t v[VECTOR];
            load_vector<VECTOR>(staging + y * PITCH + column, v);
            if (line + y < args.lines && across + column < args.across)
                finish_vector(args, p, line + y, across + column, v);
        }
        named_barrier_sync(1 + group, 128);
    }
}

/* ---- the same by the copy engine ---- */

__device__ __forceinline__ void store_box(const gemm_sm90_args &args, u32 from, int x, int y, const tile &t)
{
    if constexpr (BATCH_RANK == 0) tma_store(&args.c, from, x, y);
    if constexpr (BATCH_RANK == 1) tma_store(&args.c, from, x, y, t.batch[0]);
    if constexpr (BATCH_RANK == 2) tma_store(&args.c, from, x, y, t.batch[1], t.batch[0]);
    if constexpr (BATCH_RANK == 3) tma_store(&args.c, from, x, y, t.batch[2], t.batch[1], t.batch[0]);
}

/* Sums of BOX columns in the order of the swizzle. The channel is clamped: what lies outside c is
 * computed too, and not stored. */
__device__ __forceinline__ void fill_box(const gemm_sm90_args &args, unsigned char *to, const sum_t *sum, int line,
                                         int across, int warp, int lane)
{
    constexpr int ROWS_OF_UNIT = LINE_BYTES / BOX_BYTES, UNITS = BOX_BYTES / 16;
    const int last_line = (int)args.lines - 1, last_across = (int)args.across - 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp * 16 + lane / 4 + 8 * half, turn = row / ROWS_OF_UNIT % UNITS;
#pragma unroll
        for (int j = 0; j < BOX / 8; j++) {
            const int column = 8 * j + lane % 4 * 2, byte = column * (int)sizeof(c_t);
            c_t pair[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                pair[i] = finish_one(args, place{}, min(line + row, last_line), min(across + column + i, last_across),
                                     sum[4 * j + 2 * half + i], nullptr);
            store_vector<2>((c_t *)(to + row * BOX_BYTES + (byte / 16 ^ turn) * 16 + byte % 16), pair);
        }
    }
}

__device__ __forceinline__ void store_tile(const gemm_sm90_args &args, const tile &t, const sum_t (&sum)[WAVES][SUMS],
                                           unsigned char *staging, int group)
{
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    __builtin_assume(args.gemm.beta == 0);
    int stored = 0; /* boxes outside of c take no buffer */
    if (thread == 0) tma_wait_read<0>();
    named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int i = 0; i < WAVES * BOXES; i++) {
        const int line = t.line + group * GROUP_LINES + i / BOXES * 64, across = t.across + box_column(i % BOXES);
        if (line >= args.lines || across >= args.across) continue;
        unsigned char *to = staging + stored % BUFFERS * BUFFER_BYTES;
        if (stored++ >= BUFFERS) {
            if (thread == 0) tma_wait_read<BUFFERS - 1>();
            named_barrier_sync(1 + group, 128);
        }
        fill_box(args, to, sum[i / BOXES] + box_column(i % BOXES) / 2, line, across, warp, lane);
        async_fence();
        named_barrier_sync(1 + group, 128);
        if (thread == 0) {
            store_box(args, shared_address(to), across, line, t);
            tma_commit();
        }
    }
}

__device__ __forceinline__ void consume(const gemm_sm90_args &args, ring r, unsigned char *stages,
                                        unsigned char *staging, int group)
{
    const int lane = (int)threadIdx.x % 32;
    const extent own = stages_of(args, r.rank);
    sum_t sum[WAVES][SUMS];
    for (int n = (int)blockIdx.x / SPLIT; n < args.tiles; n += (int)gridDim.x / SPLIT) {
        if constexpr (PROMOTE)
            multiply_promoted(sum, r, own.end - own.first, group, lane);
        else
            multiply(sum, r, own.end - own.first, group, lane);
        if constexpr (SPLIT > 1) exchange(sum, r, (sum_t *)stages);
        const tile t = find_tile(args, n);
        if (LIGHT && args.light)
            store_tile(args, t, sum, staging, group);
        else
            finish_tile(args, t, sum, (sum_t *)staging, group, r.rank);
    }
    if (LIGHT && threadIdx.x % 128 == 0) tma_wait<0>();
}

__device__ __forceinline__ void meet()
{
    if constexpr (SPLIT > 1)
        cluster_sync();
    else
        __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_sm90(const __grid_constant__ gemm_sm90_args args)
{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    unsigned char *aligned = memory + (-shared_address(memory) & 1023u);
    const u32 full = shared_address(barriers);
    const int rank = SPLIT > 1 ? (int)cluster_rank() : 0;
    const ring r = {shared_address(aligned), full, full + 8 * STAGES, rank, 0, 0};
    if (threadIdx.x == 0) {
        tma_prefetch(&args.a);
        tma_prefetch(&args.b);
        if constexpr (LIGHT) tma_prefetch(&args.c);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(r.full + 8 * i, 1);
            mbarrier_init(r.empty + 8 * i, 4 * GROUPS);
        }
        mbarrier_fence_init();
    }
    meet();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<24>();
        if (threadIdx.x == 128 * GROUPS) produce(args, r);
        if constexpr (SPLIT > 1) {
            __syncwarp();
            cluster_sync(); /* of exchange */
        }
    } else {
        if constexpr (GROUPS > 1) registers_take<240>();
        consume(args, r, aligned, aligned + STAGES * STAGE_BYTES + group * STAGING_BYTES, group);
    }
    /* Others may still read the sums of this block. */
    if constexpr (SPLIT > 1) {
        __syncwarp();
        meet();
    }
}
