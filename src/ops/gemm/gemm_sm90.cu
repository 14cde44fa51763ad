/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper. A persistent block walks over tiles of c; one thread keeps a ring of STAGES slices of
 * both operands filled by the copy engine, GROUPS warpgroups multiply them, each its share of the tile's
 * lines, and take the sums through shared memory to c, while the ring fills for the next tile.
 *
 * Prologue: TILE_M (lines) TILE_N (across) STAGES GROUPS, BUFFERS (of 8 KiB for c, of each group),
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
constexpr int A_BYTES = TILE_M * LINE_BYTES, B_BYTES = TILE_N * LINE_BYTES;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int GROUP_LINES = TILE_M / GROUPS, WAVES = GROUP_LINES / 64;
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int SUMS = TILE_N / 2; /* a thread's, of one wave */
/* Sums pass through shared memory in pieces of 64 x PIECE; the pitch spreads pairs over all banks. */
constexpr int PIECE = 32, PITCH = PIECE + 8, PIECES = TILE_N / PIECE, PIECE_SUMS = PIECE / 2;
constexpr int VECTOR = 4;
/* What the copy engine stores: boxes of 64 lines of at most 128 bytes, swizzled. */
constexpr int BUFFER_BYTES = 8192, STAGING_BYTES = BUFFERS * BUFFER_BYTES;
constexpr int BOX_WIDEST = LINE_BYTES / (int)sizeof(c_t), BOX = TILE_N % BOX_WIDEST ? TILE_N % BOX_WIDEST : BOX_WIDEST;
constexpr int BOX_BYTES = BOX * (int)sizeof(c_t), BOXES = TILE_N / BOX;

static_assert(STAGING_BYTES >= 64 * PITCH * 4, "room for a piece");
static_assert(!LIGHT || (BOX_BYTES & (BOX_BYTES - 1)) == 0, "a swizzle of this width");
static_assert(sizeof(sum_t) == 4, "sums of 32 bits");
static_assert(GROUP_LINES % 64 == 0 && TILE_N % PIECE == 0, "whole pieces");
static_assert(STAGE_BYTES % 1024 == 0, "stages keep the alignment of the swizzle");
static_assert(!(A_MN_MAJOR || B_MN_MAJOR) || sizeof(a_t) == 2, "8-bit and tf32 operands are K-major");
static_assert(!B_MN_MAJOR || TILE_N % 64 == 0, "whole chunks across");

struct ring {
    u32 stages, full, empty;
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

__device__ __forceinline__ void produce(const gemm_sm90_args &args, ring r)
{
    const gemm_shape &s = args.gemm.shape;
    r.parity = 1;
    for (int n = (int)blockIdx.x; n < args.tiles; n += (int)gridDim.x) {
        const tile t = find_tile(args, n);
        for (int slice = 0; slice < args.slices; slice++) {
            const u32 bar = r.full + 8 * r.at, to = r.stages + r.at * STAGE_BYTES;
            mbarrier_wait(r.empty + 8 * r.at, r.parity);
            mbarrier_arrive_expect(bar, (u32)args.stage_bytes);
            load_operand<TILE_M, A_MN_MAJOR>(to, &args.a, bar, t.line, slice * TILE_K, t,
                                             SWAPPED ? s.b_batch : s.a_batch);
            load_operand<TILE_N, B_MN_MAJOR>(to + A_BYTES, &args.b, bar, t.across, slice * TILE_K, t,
                                             SWAPPED ? s.a_batch : s.b_batch);
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

/* All slices of a tile in one sum per element. The slice before the one being multiplied is released when
 * its instructions are known to be done. */
__device__ __forceinline__ void multiply(sum_t (&sum)[WAVES][SUMS], ring &r, int slices, int group, int lane)
{
    int before = -1;
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        mbarrier_wait(r.full + 8 * r.at, r.parity);
        const u32 at = r.stages + r.at * STAGE_BYTES;
        const u64 a = operand<A_MN_MAJOR>(at + group * WAVES * WAVE_BYTES), b = operand<B_MN_MAJOR>(at + A_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int w = 0; w < WAVES; w++)
                mma(sum[w], wgmma_advance(a, k * step_bytes<A_MN_MAJOR>() + w * WAVE_BYTES),
                    wgmma_advance(b, k * step_bytes<B_MN_MAJOR>()), slice | k);
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
__device__ __forceinline__ void multiply_promoted(sum_t (&sum)[WAVES][SUMS], ring &r, int slices, int group, int lane)
{
#pragma unroll
    for (int w = 0; w < WAVES; w++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sum[w][i] = 0;
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        mbarrier_wait(r.full + 8 * r.at, r.parity);
        const u32 at = r.stages + r.at * STAGE_BYTES;
        const u64 a = operand<false>(at + group * WAVES * WAVE_BYTES), b = operand<false>(at + A_BYTES);
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            sum_t part[SUMS];
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                mma(part, wgmma_advance(a, k * 32 + w * WAVE_BYTES), wgmma_advance(b, k * 32), k);
            wgmma_commit();
            wgmma_wait<0>();
            if (w == WAVES - 1) release(r, r.at, lane);
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

__device__ __forceinline__ void finish_tile(const gemm_sm90_args &args, const tile &t,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int group)
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
        if (line >= args.lines || across >= args.across) continue;
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
    if (thread == 0) tma_wait_read<0>();
    named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int i = 0; i < WAVES * BOXES; i++) {
        const int line = t.line + group * GROUP_LINES + i / BOXES * 64, across = t.across + i % BOXES * BOX;
        if (line >= args.lines || across >= args.across) continue;
        unsigned char *to = staging + i % BUFFERS * BUFFER_BYTES;
        if (i >= BUFFERS) {
            if (thread == 0) tma_wait_read<BUFFERS - 1>();
            named_barrier_sync(1 + group, 128);
        }
        fill_box(args, to, sum[i / BOXES] + i % BOXES * BOX / 2, line, across, warp, lane);
        async_fence();
        named_barrier_sync(1 + group, 128);
        if (thread == 0) {
            store_box(args, shared_address(to), across, line, t);
            tma_commit();
        }
    }
}

__device__ __forceinline__ void consume(const gemm_sm90_args &args, ring r, unsigned char *staging, int group)
{
    const int lane = (int)threadIdx.x % 32;
    sum_t sum[WAVES][SUMS];
    for (int n = (int)blockIdx.x; n < args.tiles; n += (int)gridDim.x) {
        if constexpr (PROMOTE)
            multiply_promoted(sum, r, args.slices, group, lane);
        else
            multiply(sum, r, args.slices, group, lane);
        const tile t = find_tile(args, n);
        if (LIGHT && args.light)
            store_tile(args, t, sum, staging, group);
        else
            finish_tile(args, t, sum, (sum_t *)staging, group);
    }
    if (LIGHT && threadIdx.x % 128 == 0) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_sm90(const __grid_constant__ gemm_sm90_args args)
{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    unsigned char *aligned = memory + (-shared_address(memory) & 1023u);
    const u32 full = shared_address(barriers);
    const ring r = {shared_address(aligned), full, full + 8 * STAGES, 0, 0};
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
    __syncthreads();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<24>();
        if (threadIdx.x == 128 * GROUPS) produce(args, r);
    } else {
        if constexpr (GROUPS > 1) registers_take<240>();
        consume(args, r, aligned + STAGES * STAGE_BYTES + group * STAGING_BYTES, group);
    }
}
