/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper, up to the sums of a tile. A persistent block walks over tiles of c; one thread keeps a ring of
 * STAGES, each DEPTH slices of both operands, filled by TMA; GROUPS warpgroups multiply them, each its
 * share of the tile's lines or, if TURNS, whole tiles in ping-pong: one stores while the other multiplies.
 *
 * Prologue: TILE_M (lines that are multiplied) LINES (of them, that are the tile's: the rest is whatever lies there)
 * TILE_N (across) STAGES GROUPS, TURNS, DEPTH, SPLIT (blocks of a cluster), BUFFERS (of 8 KiB for c, of each group),
 * A_MN_MAJOR B_MN_MAJOR (the operands lie along lines or across, not along K; a tf32 one that does goes through
 * registers: BY_REGISTERS), SWAPPED (lines are columns of c), ALONG_LINES (neighbours in c are of different lines),
 * PROMOTE (sums leave the tensor core after every slice: 8-bit floats), LIGHT (c is tiled for TMA, and
 * little follows the sums), RESIDUAL (it comes as c goes: gemm_residual.cuh), BATCH_RANK, HAS_SCALE_A HAS_SCALE_B,
 * PACKED_VECTORS (those of the epilogue), types a_t (the operand of the lines) b_t c_t sum_t out_t, the epilogue's, and
 * mma(sum, a, b, add): m64 by TILE_N, a in registers if BY_REGISTERS. HALVES, from the file that includes this or its
 * prologue: columns of a tile are from both halves of b. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "kernels/wgmma.cuh"
#include "ops/gemm/cuda/gemm_box.cuh"
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/sm90/sm90_args.h"

constexpr int LINE_BYTES = 128; /* of K in a slice */
constexpr int TILE_K = LINE_BYTES / (int)sizeof(a_t);
constexpr int STEPS = 4; /* instructions of 32 bytes of K */
constexpr int CHUNK = TILE_K; /* lines of an operand that lies along them, in 128 bytes */
constexpr bool BY_REGISTERS = A_MN_MAJOR && sizeof(a_t) == 4;
constexpr int A_SLICE = LINES * LINE_BYTES, B_SLICE = TILE_N * LINE_BYTES;
constexpr int A_BYTES = DEPTH * A_SLICE, B_BYTES = DEPTH * B_SLICE;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SHARES = TURNS ? 1 : GROUPS; /* of a tile */
constexpr int GROUP_LINES = TILE_M / SHARES, WAVES = GROUP_LINES / 64;
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int SUMS = TILE_N / 2; /* a thread's, of one wave */
/* Sums pass through shared memory in pieces of 64 x PIECE; the pitch spreads pairs over all banks. */
constexpr int PIECE = TILE_N % 32 ? 16 : 32, PITCH = PIECE + 8, PIECES = TILE_N / PIECE, PIECE_SUMS = PIECE / 2;
constexpr int VECTOR = 4; /* results at a time */
constexpr int BUFFER_BYTES = 8192, STAGING_BYTES = BUFFERS * BUFFER_BYTES;

/* What TMA stores, and loads of a residual: boxes of 64 lines of at most 128 bytes, swizzled. ALONG_LINES:
 * see gemm_along.cuh. */
constexpr int BOX_WIDEST = LINE_BYTES / (int)sizeof(c_t), BOX = TILE_N < BOX_WIDEST ? TILE_N : BOX_WIDEST;
constexpr int BOX_BYTES = BOX * (int)sizeof(c_t), BOXES = (TILE_N + BOX - 1) / BOX;
/* First column of a box: the last one repeats some of its neighbour's, with the same results. */
__device__ constexpr int box_column(int box) { return box * BOX < TILE_N - BOX ? box * BOX : TILE_N - BOX; }

static_assert(STAGING_BYTES >= 64 * PITCH * 4, "room for a piece");
static_assert(sizeof(sum_t) == 4, "sums of 32 bits");
static_assert(GROUP_LINES % 64 == 0 && TILE_N % PIECE == 0, "whole pieces");
static_assert(!RESIDUAL || (LIGHT && SPLIT == 1 && BUFFERS > 1), "a buffer is loaded while another is stored");
static_assert(!RESIDUAL || TILE_N % BOX == 0, "a residual that is c itself is not read again");
static_assert(!TURNS || (GROUPS == 2 && SPLIT == 1 && !PROMOTE), "two take turns at whole tiles");
static_assert(!HALVES || TILE_N % (B_MN_MAJOR ? 128 : 16) == 0, "whole boxes, and eights, of a half");
static_assert(LINES == TILE_M || (LINES < TILE_M && LINES % 8 == 0 && GROUPS == 1 && !A_MN_MAJOR && !LIGHT && BUFFERS > 0),
              "what is read past the lines lies in shared memory");
static_assert(STAGE_BYTES % 1024 == 0, "stages keep the alignment of the swizzle");
static_assert(!A_MN_MAJOR || sizeof(a_t) > 1, "8-bit operands are K-major");
static_assert(!B_MN_MAJOR || sizeof(a_t) == 2, "so are tf32 ones that do not go through registers");
static_assert(!B_MN_MAJOR || TILE_N % CHUNK == 0, "whole chunks across");
static_assert(!BY_REGISTERS || (WAVES == 1 && DEPTH == 1 && !TURNS), "a slice at a time, of a warpgroup's 64 lines");

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
    __device__ void skip(int stages)
    {
        stages += at;
        at = stages % STAGES;
        parity ^= (u32)(stages / STAGES) & 1;
    }
};

/* Ping-pong of two warpgroups whose tiles alternate. Copies need not arrive in order: one that ran ahead to a
 * stage of which the other still waits for the lap before would take that lap for its own (mbarrier.cuh). */
struct turn {
    u32 own, other, parity;

    __device__ turn(const ring &r, int group)
        : own(r.empty + 8 * (STAGES + group)), other(r.empty + 8 * (STAGES + 1 - group)), parity(group ? 0 : 1)
    {
    }
    __device__ void begin()
    {
        if constexpr (TURNS) mbarrier_wait(own, parity);
        parity ^= 1;
    }
    /* By each warp, when it waits for no more stages of this tile. */
    __device__ void end(int lane) const
    {
        if constexpr (TURNS) __syncwarp();
        if (TURNS && lane == 0) mbarrier_arrive(other);
    }
};

struct tile {
    int line, across; /* first of the tile */
    int batch[3];
};

__device__ __forceinline__ tile find_tile(const gemm_sm90_args &args, int number)
{
    const u32 item = mica_fastdiv_of(args.plane, (u32)number), inside = (u32)number - item * args.plane.divisor;
    const u32 band = mica_fastdiv_of(args.band, inside), first = band * args.high.divisor;
    const mica_fastdiv high = first + args.high.divisor > (u32)args.tiles_lines ? args.last_high : args.high;
    const u32 of_band = inside - band * args.band.divisor, across = mica_fastdiv_of(high, of_band);
    tile t = {(int)(first + of_band - across * high.divisor) * LINES, (int)across * TILE_N, {}};
    find_item<BATCH_RANK>(args.gemm.shape, (int)item, t.batch);
    return t;
}

/* Of a warpgroup. */
__device__ __forceinline__ int first_line(const tile &t, int group)
{
    return t.line + (TURNS ? 0 : group * GROUP_LINES);
}

/* One operand's part of a slice. Along K: LINES rows of 128 bytes; along MN: chunks of as many elements, each
 * TILE_K rows. */
template <int LINES, bool MN_MAJOR>
__device__ __forceinline__ void load_operand(u32 to, const mica_tensor_map *map, u32 bar, int line, int k,
                                             const tile &t, const long long *stride)
{
    if constexpr (!MN_MAJOR)
        load_box<BATCH_RANK>(to, map, bar, k, line, t.batch, stride);
    else
#pragma unroll
        for (int i = 0; i < LINES / CHUNK; i++)
            load_box<BATCH_RANK>(to + i * TILE_K * LINE_BYTES, map, bar, line + CHUNK * i, k, t.batch, stride);
}

/* The operand across. HALVES: as many lines of the first half as of the second. */
__device__ __forceinline__ void load_across(const gemm_sm90_args &args, u32 to, u32 bar, int k, const tile &t,
                                            const long long *stride)
{
    if constexpr (!HALVES) {
        load_operand<TILE_N, B_MN_MAJOR>(to, &args.b, bar, t.across, k, t, stride);
    } else {
        constexpr int HALF = TILE_N / 2;
        load_operand<HALF, B_MN_MAJOR>(to, &args.b, bar, t.across / 2, k, t, stride);
        load_operand<HALF, B_MN_MAJOR>(to + HALF * LINE_BYTES, &args.b, bar, args.partner + t.across / 2, k, t, stride);
    }
}

__device__ __forceinline__ void produce(const gemm_sm90_args &args, ring r)
{
    const gemm_shape &s = args.gemm.shape;
    const extent own = stages_of(args.fills, r.rank);
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
                load_across(args, to + A_BYTES + d * B_SLICE, bar, k, t, SWAPPED ? s.a_batch : s.b_batch);
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

/* A thread's part of the lines of a slice that lies along them: of each step of 8 terms, as m64k8 has it, lines
 * lane / 4 and 8 more of its warp's 16, terms lane % 4 and 4 more. `first`: where the first one stands. */
__device__ __forceinline__ u32 first_word(u32 slice, int group, int warp, int lane)
{
    const int line = group * 64 + warp * 16 + lane / 4, term = lane % 4, place = line % CHUNK;
    return slice + line / CHUNK * (TILE_K * LINE_BYTES) + term * LINE_BYTES + (place / 4 ^ term) * 16 + place % 4 * 4;
}
__device__ __forceinline__ void load_words(u32 first, u32 (&words)[STEPS][4])
{
    constexpr u32 LINES_8 = 32, TERMS_4 = 64; /* bits of the swizzle */
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[k][i] = load_shared((first ^ (i % 2 * LINES_8 | i / 2 * TERMS_4)) + (8 * k + i / 2 * 4) * LINE_BYTES);
}

/* Sums of a tile whose lines go through registers: those of a slice are loaded while the one before is multiplied. A
 * slice's instructions end before the next one's begin, or the assembler would put each of them behind the loads. */
template <int N>
__device__ __forceinline__ void multiply_words(sum_t (&sum)[WAVES][N], ring &r, int fills, int group, int lane)
{
    const u32 own = first_word(0, group, (int)threadIdx.x / 32 % 4, lane);
    u32 words[2][STEPS][4];
    mbarrier_wait(r.full + 8 * r.at, r.parity);
    load_words(r.stages + r.at * STAGE_BYTES + own, words[0]);
#pragma unroll 1
    for (int pair = 0; pair < fills; pair += 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (pair + i == fills) break;
            const int at = r.at;
            const u64 b = operand<false>(r.stages + at * STAGE_BYTES + A_BYTES);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++) mma(sum[0], words[i][k], wgmma_advance(b, k * 32), pair + i | k);
            wgmma_commit();
            r.next();
            if (pair + i + 1 < fills) {
                mbarrier_wait(r.full + 8 * r.at, r.parity);
                load_words(r.stages + r.at * STAGE_BYTES + own, words[1 - i]);
            }
            wgmma_wait<0>();
            wgmma_hold(sum[0]);
            release(r, at, lane);
        }
    }
}

/* All slices of a tile in one sum per element. The stage before the one being multiplied is released when
 * its instructions are known to be done. The other warpgroup goes on while the last slice is multiplied. */
template <int N>
__device__ __forceinline__ void multiply(sum_t (&sum)[WAVES][N], ring &r, int fills, int group, int lane, const turn &t)
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
    t.end(lane);
    wgmma_wait<0>();
    release(r, before, lane);
}

/* The tensor core keeps 14 bits of a sum of 8-bit floats: it adds up 128 products, registers the rest. */
template <int N>
__device__ __forceinline__ void multiply_promoted(sum_t (&sum)[WAVES][N], ring &r, int fills, int group, int lane)
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
            sum_t part[N];
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

/* The tiles of a warpgroup: finish(sum, tile) is the epilogue of each. */
template <typename F>
__device__ __forceinline__ void each_tile(const gemm_sm90_args &args, ring r, int group, const F &finish)
{
    const int lane = (int)threadIdx.x % 32, share = TURNS ? 0 : group, step = (int)gridDim.x / SPLIT;
    const extent own = stages_of(args.fills, r.rank);
    const int fills = own.end - own.first;
    sum_t sum[WAVES][SUMS];
    turn mine(r, group);
    int n = (int)blockIdx.x / SPLIT;
    if (TURNS && group == 1) n += step, r.skip(fills);
    for (; n < args.tiles; n += (1 + TURNS) * step) {
        tile t = find_tile(args, n);
        asm volatile("" : "+r"(t.line), "+r"(t.across)); /* here, or it is found behind the sums, before their first store */
        mine.begin();
        if constexpr (PROMOTE)
            multiply_promoted(sum, r, fills, share, lane);
        else if constexpr (BY_REGISTERS)
            multiply_words(sum, r, fills, share, lane);
        else
            multiply(sum, r, fills, share, lane, mine);
        if constexpr (TURNS) r.skip(fills);
        finish(sum, t);
    }
}

/* ---- from sums to c ---- */

/* Where the sums of the eight columns number `eight` of a piece begin. HALVES: the first of a piece are of the
 * first half of the tile, the others of the second. */
__device__ constexpr int first_sum(int piece, int eight)
{
    constexpr int OF_HALF = PIECE / 16;
    return HALVES ? eight / OF_HALF * (SUMS / 2) + piece * (PIECE_SUMS / 2) + eight % OF_HALF * 4
                  : piece * PIECE_SUMS + 4 * eight;
}

/* Piece number `piece` of the sums. The index is known in each copy of the loop's body, so that sums stay
 * in registers. */
__device__ __forceinline__ void stage_piece(const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int piece, int warp,
                                            int lane)
{
    sum_t *to = staging + (warp * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < WAVES * PIECES; i++) {
        if (i != piece) continue;
#pragma unroll
        for (int j = 0; j < PIECE / 8; j++) {
            const sum_t *from = sum[i / PIECES] + first_sum(i % PIECES, j);
            store_vector<2>(to + 8 * j, from);
            store_vector<2>(to + 8 * j + 8 * PITCH, from + 2);
        }
    }
}

__device__ __forceinline__ void store_box(const gemm_sm90_args &args, u32 from, int x, int y, const tile &t)
{
    if constexpr (BATCH_RANK == 0) tma_store(&args.c, from, x, y);
    if constexpr (BATCH_RANK == 1) tma_store(&args.c, from, x, y, t.batch[0]);
    if constexpr (BATCH_RANK == 2) tma_store(&args.c, from, x, y, t.batch[1], t.batch[0]);
    if constexpr (BATCH_RANK == 3) tma_store(&args.c, from, x, y, t.batch[2], t.batch[1], t.batch[0]);
}

#include "ops/gemm/cuda/gemm_residual.cuh"

/* ---- the block ---- */

__device__ __forceinline__ void meet()
{
    if constexpr (SPLIT > 1)
        cluster_sync();
    else
        __syncthreads();
}

/* The whole of a block: a thread of the last warpgroup loads, others carry residuals; the other warpgroups call
 * consume(ring, stages, staging, group, barriers of their buffers). */
template <typename F> __device__ __forceinline__ void load_and_consume(const gemm_sm90_args &args, const F &consume)
{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES + 2 + RESIDUAL_BARRIERS];
    unsigned char *aligned = memory + (-shared_address(memory) & 1023u);
    const u32 full = shared_address(barriers);
    const int rank = SPLIT > 1 ? (int)cluster_rank() : 0;
    const ring r = {shared_address(aligned), full, full + 8 * STAGES, rank, 0, 0};
    const u32 buffers = full + 8 * (2 * STAGES + 2), staging = r.stages + STAGES * STAGE_BYTES;
    if (threadIdx.x == 0) {
        tma_prefetch(&args.a);
        tma_prefetch(&args.b);
        if constexpr (LIGHT) tma_prefetch(&args.c);
        if constexpr (RESIDUAL) {
            tma_prefetch(&args.residual);
            for (int i = 0; i < GROUPS; i++) buffer_barriers(buffers, i).init();
        }
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(r.full + 8 * i, 1);
            mbarrier_init(r.empty + 8 * i, 4 * SHARES);
        }
        for (int i = 0; i < 2; i++) mbarrier_init(r.empty + 8 * (STAGES + i), 4);
        mbarrier_fence_init();
    }
    meet();
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<RESIDUAL ? 40 : 24>();
        const int thread = (int)threadIdx.x - 128 * GROUPS, carried = thread / 32 - 1;
        if (thread == 0) produce(args, r);
        if (RESIDUAL && args.light && thread % 32 == 0 && carried >= 0 && carried < GROUPS)
            carry(args, staging + carried * STAGING_BYTES, buffer_barriers(buffers, carried), carried);
        if constexpr (SPLIT > 1) {
            __syncwarp();
            cluster_sync(); /* of exchange */
        }
    } else {
        if constexpr (GROUPS > 1) registers_take<RESIDUAL ? 232 : 240>();
        consume(r, aligned, aligned + STAGES * STAGE_BYTES + group * STAGING_BYTES, group, buffer_barriers(buffers, group));
    }
    /* Others may still read the sums of this block. */
    if constexpr (SPLIT > 1) {
        __syncwarp();
        meet();
    }
}
