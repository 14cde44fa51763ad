/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on Hopper, and gemm with scales of blocks. A persistent block walks over the tiles of all
 * groups, whose sizes it reads itself; one warp keeps a ring of STAGES slices of both operands filled by
 * TMA, TEAMS warpgroups multiply them, each its share of the tile's rows, and take the sums
 * through shared memory to c, while the ring fills for the next tile.
 *
 * Runs of rows begin anywhere: a tile's box reaches into the rows of the next group, whose sums are
 * not stored. Runs of terms end anywhere: what a slice has of the next group is overwritten by zeros.
 * Scales of blocks come into the ring beside a slice's operands, by another warp.
 *
 * Prologue: TILE_M TILE_N STAGES TEAMS, BUFFERS (of 8 KiB for c, of each team), A_MN_MAJOR B_MN_MAJOR (the
 * operands lie along rows or columns, not along K), PROMOTE (sums leave the tensor core after every slice:
 * 8-bit floats), BLOCKS (and are scaled then), LIGHT (c is tiled for TMA, and little follows
 * the sums), HAS_SCALE_A HAS_SCALE_B, those of cuda/grouped_gemm_device.cuh, types a_t b_t c_t sum_t out_t, the
 * epilogue's, and mma(sum, a, b, add): m64 by TILE_N, or by one of its PARTS. */
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"
#include "kernels/overlap.cuh"
#include "kernels/tma.cuh"
#include "kernels/vector.cuh"
#include "kernels/wgmma.cuh"
#include "ops/grouped_gemm/cuda/grouped_gemm_device.cuh"
#include "ops/grouped_gemm/sm90/sm90_args.h"

constexpr int LINE_BYTES = 128; /* of K in a slice */
constexpr int TILE_K = LINE_BYTES / (int)sizeof(a_t);
constexpr int STEPS = 4; /* instructions of 32 bytes of K */
constexpr int A_BYTES = TILE_M * LINE_BYTES, B_BYTES = TILE_N * LINE_BYTES;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int TEAM_ROWS = TILE_M / TEAMS, WAVES = TEAM_ROWS / 64;
constexpr int THREADS = 128 * (TEAMS + 1);
constexpr int SUMS = TILE_N / 2; /* a thread's, of one wave */
/* Sums that leave the tensor core after every slice do so in parts of at most 192 columns (part_of of sm90.c). */
constexpr int PARTS = PROMOTE && TILE_N > 192 ? 2 : 1, PART_SUMS = SUMS / PARTS;
constexpr int TEAM_BARRIER = 1, ALL_TEAMS_BARRIER = 1 + TEAMS, TURN_BARRIER = 2 + TEAMS;
/* Sums pass through shared memory in pieces of 64 x PIECE; the pitch spreads pairs over all banks. */
constexpr int PIECE = 32, PITCH = PIECE + 8, PIECES = TILE_N / PIECE, PIECE_SUMS = PIECE / 2;
constexpr int VECTOR = 4;
/* What TMA stores: boxes of 64 rows of at most 128 bytes, swizzled. */
constexpr int BUFFER_BYTES = 8192, STAGING_BYTES = BUFFERS * BUFFER_BYTES;
constexpr int BOX_WIDEST = LINE_BYTES / (int)sizeof(c_t), BOX = TILE_N % BOX_WIDEST ? TILE_N % BOX_WIDEST : BOX_WIDEST;
constexpr int BOX_BYTES = BOX * (int)sizeof(c_t), BOXES = TILE_N / BOX;
/* Columns that share a scale in every tile, and how many such scales a tile has; bytes of a stage's scales: of
 * the rows, then of the columns. */
constexpr int SCALED_COLUMNS = TILE_N % 128 == 0 ? 128 : TILE_N % 64 == 0 ? 64 : 32, SCALES_B = TILE_N / SCALED_COLUMNS;
constexpr int SCALE_BYTES = BLOCKS ? (TILE_M + 4) * 4 : 0;

static_assert(STAGING_BYTES >= 64 * PITCH * 4, "room for a piece");
static_assert(!LIGHT || (BOX_BYTES & (BOX_BYTES - 1)) == 0, "a swizzle of this width");
static_assert(sizeof(sum_t) == 4, "sums of 32 bits");
static_assert(TEAM_ROWS % 64 == 0 && TILE_N % PIECE == 0, "whole pieces");
static_assert(STAGE_BYTES % 1024 == 0, "stages keep the alignment of the swizzle");
static_assert(!(A_MN_MAJOR || B_MN_MAJOR) || sizeof(a_t) == 2, "8-bit and tf32 operands are K-major");
static_assert(!B_MN_MAJOR || TILE_N % 64 == 0, "whole chunks across");
/* TMA begins at multiples of 16 bytes along a line, and a run begins anywhere. */
static_assert(FORM != FORM_TERMS || (A_MN_MAJOR && B_MN_MAJOR), "terms are lines");
static_assert(FORM != FORM_ROWS || !A_MN_MAJOR, "rows are lines");
static_assert(!BLOCKS || PROMOTE, "scales of blocks are for 8-bit floats");
static_assert(!PROMOTE || WAVES == 1, "a second sum is held");
static_assert(SCALES_B <= 4, "room for the scales of columns");

typedef group_walk<int> walk_t;

struct ring {
    u32 stages, full, empty;
    u32 count; /* of slices: one register rather than two for the place and the parity */

    __device__ int at() const { return (int)(count % STAGES); }
    __device__ u32 parity() const { return count / STAGES % 2; }
    __device__ void next() { count++; }
};

/* The producer finds tiles and hands them on through SLOTS slots, each with a `full` and an `empty` barrier
 * as stages have. */
constexpr int SLOTS = 4;
/* Lanes of a warp that say so when it has read what stands in a stage or slot: one, behind __syncwarp. racecheck does not
 * follow that, and gets all of them (tests/sanitize/run): 2 to 4 % slower on an H200. */
constexpr int ARRIVING = 1;

struct tile {
    int line, across; /* first of the tile, in its group */
    int group, from;  /* the group's number, and its first row or term */
    int rows, terms;  /* of the group */
    int slices;
    bool there;
};

/* By whole warps. */
__device__ __forceinline__ tile find_tile(const grouped_sm90_args &args, walk_t &walk, int number)
{
    const walk_t::found g = walk.find(args.grouped, number, args.tiles_lines, args.tiles_across);
    tile t = {};
    t.there = g.there;
    if (!g.there) return t;
    t.group = g.group;
    t.from = g.from;
    t.rows = FORM == FORM_TERMS ? (int)args.grouped.gemm.shape.m : g.rows;
    t.terms = g.rows;
    t.slices = FORM == FORM_TERMS ? (g.rows + TILE_K - 1) / TILE_K : args.slices;
    const int lines = (t.rows + TILE_M - 1) / TILE_M;
    const int band = g.tile / (args.band * args.tiles_across), first = band * args.band;
    const int inside = g.tile - first * args.tiles_across, high = min(lines - first, args.band);
    t.line = (first + inside % high) * TILE_M;
    t.across = inside / high * TILE_N;
    return t;
}

struct counter { /* of tiles */
    u32 barriers;
    u32 count;

    __device__ int at() const { return (int)(count % SLOTS); }
    __device__ u32 parity() const { return count / SLOTS % 2; }
    __device__ u32 full() const { return barriers + 8 * at(); }
    __device__ u32 empty() const { return barriers + 8 * (SLOTS + at()); }
};

/* By one thread. */
__device__ __forceinline__ void hand_on(tile *slots, counter &c, const tile &t)
{
    mbarrier_wait(c.empty(), c.parity() ^ 1);
    slots[c.at()] = t;
    mbarrier_arrive(c.full());
    c.count++;
}

/* By whole warps, when they have read the slot for the last time. */
__device__ __forceinline__ void give_back(counter &c, int lane)
{
    __syncwarp();
    if (lane < ARRIVING) mbarrier_arrive(c.empty());
    c.count++;
}

/* The thread's number, in a form that keeps the compiler from computing what depends on it ahead of the
 * loop over tiles, and spilling it. */
__device__ __forceinline__ int thread_of_team()
{
    int thread = (int)threadIdx.x % 128;
    asm volatile("" : "+r"(thread));
    return thread;
}

/* ---- TMA fills the ring ---- */

/* One operand's part of a slice. Along K: LINES rows of 128 bytes; along MN: chunks of 64 elements, each
 * TILE_K rows of 128 bytes. DEEP: the map has a dimension of groups. */
template <int LINES, bool MN_MAJOR, bool DEEP>
__device__ __forceinline__ void load_operand(u32 to, const mica_tensor_map *map, u32 bar, int line, int k, int group)
{
#pragma unroll
    for (int i = 0; i < (MN_MAJOR ? LINES / 64 : 1); i++) {
        const int x = MN_MAJOR ? line + 64 * i : k, y = MN_MAJOR ? k : line;
        if constexpr (DEEP)
            tma_load(to + i * TILE_K * LINE_BYTES, map, bar, x, y, group);
        else
            tma_load(to + i * TILE_K * LINE_BYTES, map, bar, x, y);
    }
}

__device__ __forceinline__ void produce(const grouped_sm90_args &args, ring r, tile *slots, counter tiles, int lane)
{
    walk_t walk;
    walk.begin(args.grouped, args.tiles_lines, args.tiles_across);
    for (int n = (int)blockIdx.x;; n += (int)gridDim.x) {
        const tile t = find_tile(args, walk, n);
        if (lane == 0) hand_on(slots, tiles, t);
        if (!t.there) return;
        const int line = t.line + (FORM == FORM_ROWS ? t.from : 0), k = FORM == FORM_TERMS ? t.from : 0;
        for (int slice = 0; slice < t.slices; slice++) {
            if (lane == 0) {
                const u32 bar = r.full + 8 * r.at(), to = r.stages + r.at() * STAGE_BYTES;
                mbarrier_wait(r.empty + 8 * r.at(), r.parity() ^ 1);
                mbarrier_arrive_expect(bar, (u32)args.stage_bytes);
                load_operand<TILE_M, A_MN_MAJOR, FORM == FORM_ROOMS>(to, &args.a, bar, line, k + slice * TILE_K,
                                                                     t.group);
                load_operand<TILE_N, B_MN_MAJOR, FORM != FORM_TERMS>(to + A_BYTES, &args.b, bar, t.across,
                                                                     k + slice * TILE_K, t.group);
            }
            r.next();
        }
        __syncwarp();
    }
}

/* Scales of the slices, by a warp: each lane brings those of some rows, the first ones that of some columns. */
__device__ __forceinline__ void bring_scales(const grouped_sm90_args &args, ring r, const tile *slots, counter tiles,
                                             u32 scales, int lane)
{
    constexpr int ROWS = TILE_M / 32;
    const grouped_args &g = args.grouped;
    const u32 step_a = 4u * (u32)g.gemm.scale_a_k, step_b = 4u * (u32)g.gemm.scale_b_k;
    for (;;) {
        mbarrier_wait(tiles.full(), tiles.parity());
        const tile t = slots[tiles.at()];
        give_back(tiles, lane);
        if (!t.there) return;
        u32 row[ROWS], column;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const u32 line = (u32)min(t.line + lane + 32 * i, t.rows - 1);
            row[i] = 4u * ((u32)in_group(g.scale_a, t.group, t.from) + line * (u32)g.gemm.scale_a_stride);
        }
        const u32 block = (u32)(min(t.across + lane * SCALED_COLUMNS, args.across - 1) / 128);
        column = 4u * ((u32)in_group(g.scale_b, t.group, t.from) + block * (u32)g.gemm.scale_b_n);
        for (int slice = 0; slice < t.slices; slice++) {
            const u32 to = scales + r.at() * SCALE_BYTES + 4 * lane;
            mbarrier_wait(r.empty + 8 * r.at(), r.parity() ^ 1);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                copy_async<4>(to + 128 * i, (const char *)g.gemm.scale_a + row[i], 4);
                row[i] += step_a;
            }
            if (lane < SCALES_B) copy_async<4>(to + 4 * TILE_M, (const char *)g.gemm.scale_b + column, 4);
            column += step_b;
            mbarrier_arrive_copied(r.full + 8 * r.at());
            r.next();
        }
    }
}

/* ---- sums ---- */

template <bool MN_MAJOR> __device__ __forceinline__ u64 operand(u32 address)
{
    return MN_MAJOR ? wgmma_operand<128>(address, TILE_K * LINE_BYTES, 8 * LINE_BYTES)
                    : wgmma_operand<128>(address, 16, 8 * LINE_BYTES);
}
/* Bytes to the next 32 bytes of K. */
template <bool MN_MAJOR> constexpr u32 step_bytes() { return MN_MAJOR ? 16 * LINE_BYTES : 32; }

/* A warp no longer reads this stage. */
__device__ __forceinline__ void release(const ring &r, int stage, int lane)
{
    if (BLOCKS) __syncwarp(); /* threads have read scales */
    if (lane < ARRIVING) mbarrier_arrive(r.empty + 8 * stage);
}

/* In uniform registers, and with it all that depends on the number of slices. */
__device__ __forceinline__ int slices_of(const grouped_sm90_args &args, const tile &t)
{
    return FORM == FORM_TERMS ? uniform(t.slices) : args.slices;
}

/* The rows of a team all lie past the group's end: the tensor core is left to the other team. */
__device__ __forceinline__ void skip(const grouped_sm90_args &args, ring &r, const tile &t, int lane)
{
    const int slices = slices_of(args, t);
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        mbarrier_wait(r.full + 8 * r.at(), r.parity());
        release(r, r.at(), lane);
        r.next();
    }
}

/* Zeros in place of all terms from `terms` on: rows of 128 bytes in each chunk. */
template <int LINES> __device__ __forceinline__ void clear_terms(unsigned char *slice, int terms)
{
    const int left = (TILE_K - terms) * (LINE_BYTES / 16);
    for (int i = (int)threadIdx.x; i < LINES / 64 * left; i += 128 * TEAMS)
        ((uint4 *)(slice + (i / left * TILE_K + terms) * LINE_BYTES))[i % left] = uint4{0, 0, 0, 0};
}

/* A slice that ends past the run of terms. */
__device__ __forceinline__ bool has_tail(const tile &t) { return FORM == FORM_TERMS && t.terms % TILE_K; }

__device__ __forceinline__ void clear_tail(unsigned char *memory, const ring &r, const tile &t, int slice)
{
    const int terms = t.terms - slice * TILE_K;
    unsigned char *at = memory + r.at() * STAGE_BYTES;
    clear_terms<TILE_M>(at, terms);
    clear_terms<TILE_N>(at + A_BYTES, terms);
    async_fence();
    named_barrier_sync(ALL_TEAMS_BARRIER, 128 * TEAMS);
}

template <int N> __device__ __forceinline__ void multiply_slice(sum_t (&sum)[WAVES][N], const ring &r, int team, int add)
{
    constexpr u32 WAVE_BYTES = 64 * LINE_BYTES;
    const u32 at = r.stages + r.at() * STAGE_BYTES;
    const u64 a = operand<A_MN_MAJOR>(at + team * WAVES * WAVE_BYTES), b = operand<B_MN_MAJOR>(at + A_BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int w = 0; w < WAVES; w++)
            mma(sum[w], wgmma_advance(a, k * step_bytes<A_MN_MAJOR>() + w * WAVE_BYTES),
                wgmma_advance(b, k * step_bytes<B_MN_MAJOR>()), add | k);
    wgmma_commit();
}

/* All slices of a tile in one sum per element. The slice before the one being multiplied is released when
 * its instructions are known to be done. */
template <int N>
__device__ __forceinline__ void multiply(const grouped_sm90_args &args, sum_t (&sum)[WAVES][N], ring &r,
                                         unsigned char *memory, const tile &t, int team, int lane)
{
    if constexpr (FORM == FORM_TERMS) { /* there may be none */
#pragma unroll
        for (int w = 0; w < WAVES; w++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[w][i] = 0;
    }
    const int slices = slices_of(args, t);
    int before = -1;
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        mbarrier_wait(r.full + 8 * r.at(), r.parity());
        if (has_tail(t) && slice == slices - 1) clear_tail(memory, r, t, slice);
        multiply_slice(sum, r, team, FORM == FORM_TERMS ? 1 : slice);
        wgmma_wait<1>();
        if (before >= 0) release(r, before, lane);
        before = r.at();
        r.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int w = 0; w < WAVES; w++) wgmma_hold(sum[w]);
    if (before >= 0) release(r, before, lane);
}

/* ---- sums of 8-bit floats: the tensor core keeps 14 bits of a sum, so it adds up 128 products, and
 * registers the rest ---- */

/* What a team has of a tile: from this row on, 64 rows, and from this column on. Where the group has rows for one team
 * only, each takes a half of the columns, if they come in two parts; and the sums are the first ones of its own. */
struct share {
    int row, column;
    bool half;

    /* Whether it has no sums so many columns further on. */
    __device__ __forceinline__ bool lacks(int columns) const { return half && columns >= TILE_N / PARTS; }
};

__device__ __forceinline__ share share_of(const tile &t, int team)
{
    const bool half = PARTS > 1 && TEAMS > 1 && uniform(t.rows) - uniform(t.line) <= TEAM_ROWS;
    return share{half ? 0 : team * TEAM_ROWS, half ? team * (TILE_N / PARTS) : 0, half};
}

/* The scales of a slice: of a thread's rows, and of blocks of columns. */
template <int COLUMNS> struct slice_scales {
    float rows[2], columns[COLUMNS];

    /* Of the thread's first row, and of the first block. */
    __device__ __forceinline__ void load(const float *row, const float *column)
    {
        rows[0] = row[0];
        rows[1] = row[8];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) columns[i] = column[i];
    }
};

template <int COLUMNS>
__device__ __forceinline__ void add_part(sum_t (&sum)[SUMS], const sum_t (&part)[PART_SUMS], const slice_scales<COLUMNS> &s,
                                         int number)
{
#pragma unroll
    for (int i = 0; i < PART_SUMS; i++) {
        const int to = number * PART_SUMS + i;
        if constexpr (BLOCKS)
            sum[to] += part[i] * (s.rows[i / 2 % 2] * s.columns[to * 2 / SCALED_COLUMNS]);
        else
            sum[to] += part[i];
    }
}

/* The stage that is read next, and the low words of its operands' descriptors. */
struct stage_reader {
    int at;
    u32 parity, a, b;

    __device__ __forceinline__ stage_reader(const ring &r) : at(r.at()), parity(r.parity()) {}
    __device__ __forceinline__ void next()
    {
        if (++at == STAGES) at = 0, parity ^= 1;
    }
    __device__ __forceinline__ void open(const ring &r, const share &own)
    {
        const u32 from = r.stages + at * STAGE_BYTES;
        mbarrier_wait(r.full + 8 * at, parity);
        a = (u32)operand<false>(from + own.row * LINE_BYTES);
        b = (u32)operand<false>(from + A_BYTES + own.column * LINE_BYTES);
    }
};

/* The descriptor `bytes` further on. */
__device__ __forceinline__ u64 whole_operand(u32 low, u32 bytes)
{
    constexpr u64 HIGH = (u64)(8 * LINE_BYTES >> 4) << 32 | 1ull << 62;
    return HIGH | (low + (bytes >> 4));
}

/* All slices of a tile, HERE parts of each. While a team adds up a part, the tensor core has the other team's: in_turn,
 * they hand it to each other, or both would wait for it and then leave it idle at the same time. What the next slice needs
 * is done while the last part of this one is multiplied; a shuffle brings descriptors into uniform registers. */
template <int HERE>
__device__ __forceinline__ void multiply_parts(const grouped_sm90_args &args, sum_t (&sum)[SUMS], const ring &r,
                                               const float *scales, const tile &t, const share &own, bool in_turn, int team,
                                               int lane)
{
    const int slices = slices_of(args, t);
    const float *row = scales + own.row + thread_of_team() / 32 * 16 + lane / 4;
    const float *column = scales + TILE_M + own.column / SCALED_COLUMNS;
    stage_reader stage(r);
    stage.open(r, own);
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        const int at = stage.at;
        const u32 a = (u32)uniform((int)stage.a), b = (u32)uniform((int)stage.b);
        slice_scales<SCALES_B * HERE / PARTS> s;
#pragma unroll
        for (int p = 0; p < HERE; p++) {
            sum_t part[PART_SUMS];
            if (in_turn) named_barrier_sync(TURN_BARRIER + team, 128 * TEAMS);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                mma(part, whole_operand(a, k * 32), whole_operand(b, k * 32 + p * (TILE_N / PARTS) * LINE_BYTES), k);
            wgmma_commit();
            if (in_turn) named_barrier_arrive(TURN_BARRIER + (1 - team), 128 * TEAMS);
            if (BLOCKS && p == 0) s.load(row + at * (SCALE_BYTES / 4), column + at * (SCALE_BYTES / 4));
            if (p == HERE - 1 && slice + 1 < slices) {
                stage.next();
                stage.open(r, own);
            }
            wgmma_wait<0>();
            if (p == HERE - 1) release(r, at, lane);
            add_part(sum, part, s, p);
            wgmma_hold(sum); /* or it is put off until the next part, with this one still held */
        }
    }
}

__device__ __forceinline__ void multiply_promoted(const grouped_sm90_args &args, sum_t (&sum)[SUMS], ring &r,
                                                  const float *scales, const tile &t, const share &own, int team, int lane)
{
    const bool both = TEAMS > 1 && (own.half || uniform(t.rows) - uniform(t.line) > TEAM_ROWS);
#pragma unroll
    for (int i = 0; i < SUMS; i++) sum[i] = 0;
    if (own.half)
        multiply_parts<1>(args, sum, r, scales, t, own, both, team, lane);
    else
        multiply_parts<PARTS>(args, sum, r, scales, t, own, both, team, lane);
    r.count += (u32)slices_of(args, t);
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

/* Four neighbours of a row. c: the group's. */
__device__ __forceinline__ void finish_vector(const grouped_sm90_args &args, const companions &of, c_t *c, s64 row,
                                              int column, const sum_t *sum)
{
    const gemm_args &gemm = args.grouped.gemm;
    c += row * gemm.shape.c_m + column;
    if (args.whole && column + VECTOR <= args.across) {
        c_t v[VECTOR];
        if (gemm.beta != 0) load_vector<VECTOR>(c, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = finish(gemm, of, row, column + i, sum[i], &v[i]);
        store_vector<VECTOR>(c, v);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (column + i < args.across) c[i] = finish(gemm, of, row, column + i, sum[i], c + i);
    }
}

__device__ __forceinline__ void finish_tile(const grouped_sm90_args &args, const tile &t, const share &own,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int team)
{
    constexpr int ACROSS = PIECE / VECTOR, EACH = 64 / (128 / ACROSS); /* vectors of a row, of a thread */
    const int thread = thread_of_team(), warp = thread / 32, lane = thread % 32;
    const int column = thread % ACROSS * VECTOR, row = thread / ACROSS;
    const companions of = companions_of(args.grouped, t.group, t.from);
    c_t *c = (c_t *)args.grouped.gemm.c + in_group(args.grouped.c, t.group, t.from);
#pragma unroll 1
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        const int line = t.line + own.row + piece / PIECES * 64, beside = piece % PIECES * PIECE;
        const int across = t.across + own.column + beside;
        if (line >= t.rows || across >= args.across || own.lacks(beside)) continue;
        stage_piece(sum, staging, piece, warp, lane);
        named_barrier_sync(TEAM_BARRIER + team, 128);
#pragma unroll 1
        for (int i = 0; i < EACH; i++) {
            const int y = i * (128 / ACROSS) + row;
            sum_t v[VECTOR];
            load_vector<VECTOR>(staging + y * PITCH + column, v);
            if (line + y < t.rows && across + column < args.across)
                finish_vector(args, of, c, line + y, across + column, v);
        }
        named_barrier_sync(TEAM_BARRIER + team, 128);
    }
}

#include "ops/gemm/cuda/gemm_pairs.cuh"

/* ---- the same by TMA, and by copies of 16 bytes where a group ends inside the box ---- */

/* Sums of BOX columns in the order of the swizzle. Rows and columns are clamped: what lies outside is
 * computed too, and not stored. */
template <bool AS_THEY_ARE>
__device__ __forceinline__ void fill_box(const grouped_sm90_args &args, const companions &of, unsigned char *to,
                                         const sum_t *sum, int line, int last_line, int across, int warp, int lane)
{
    const int last_across = args.across - 1;
    pair<c_t> results[2][BOX / 8];
#pragma unroll
    for (int k = 0; k < BOX / 2; k++) {
        const int half = k / (BOX / 4), j = k / 2 % (BOX / 8), i = k % 2;
        const int y = min(line + warp * 16 + lane / 4 + 8 * half, last_line);
        const int x = min(across + 8 * j + lane % 4 * 2 + i, last_across);
        const sum_t s = sum[4 * j + 2 * half + i];
        results[half][j].of[i] = AS_THEY_ARE ? narrow<c_t>(s) : finish(args.grouped.gemm, of, y, x, s, nullptr);
    }
    store_pairs(to, 0, results, warp, lane);
}

__device__ __forceinline__ void store_box(const grouped_sm90_args &args, u32 from, int x, int line, const tile &t)
{
    if constexpr (FORM == FORM_ROWS)
        tma_store(&args.c, from, x, t.from + line);
    else
        tma_store(&args.c, from, x, line, t.group);
}

/* The first `rows` rows of a box. */
__device__ __forceinline__ void copy_box(const grouped_sm90_args &args, c_t *c, unsigned char *from, int x,
                                         int line, int rows, int thread)
{
    constexpr int EACH = 16 / (int)sizeof(c_t);
    for (int i = thread; i < rows * UNITS; i += 128) {
        const int row = i / UNITS, unit = i % UNITS;
        if (x + unit * EACH >= args.across) continue;
        const uint4 v = *(const uint4 *)unit_at(from, row, unit);
        *(uint4 *)(c + (s64)(line + row) * args.grouped.gemm.shape.c_m + x + unit * EACH) = v;
    }
}

__device__ __forceinline__ void store_tile(const grouped_sm90_args &args, const tile &t, const share &own,
                                           const sum_t (&sum)[WAVES][SUMS], unsigned char *staging, int team)
{
    const int thread = thread_of_team(), warp = thread / 32, lane = thread % 32;
    const companions of = companions_of(args.grouped, t.group, t.from);
    c_t *c = (c_t *)args.grouped.gemm.c + in_group(args.grouped.c, t.group, t.from);
    __builtin_assume(args.grouped.gemm.beta == 0);
    if (thread == 0) tma_wait_read<0>();
    named_barrier_sync(TEAM_BARRIER + team, 128);
#pragma unroll
    for (int i = 0; i < WAVES * BOXES; i++) {
        const int line = t.line + own.row + i / BOXES * 64, across = t.across + own.column + i % BOXES * BOX;
        if (line >= t.rows || across >= args.across || own.lacks(i % BOXES * BOX)) {
            if (thread == 0) tma_commit(); /* of nothing: buffers are counted by it */
            continue;
        }
        unsigned char *to = staging + i % BUFFERS * BUFFER_BYTES;
        if (i >= BUFFERS) {
            if (thread == 0) tma_wait_read<BUFFERS - 1>();
            named_barrier_sync(TEAM_BARRIER + team, 128);
        }
        const sum_t *from = sum[i / BOXES] + i % BOXES * BOX / 2;
        if (SUMS_MAY_BE_C && args.plain)
            fill_box<true>(args, of, to, from, line, t.rows - 1, across, warp, lane);
        else
            fill_box<false>(args, of, to, from, line, t.rows - 1, across, warp, lane);
        async_fence();
        named_barrier_sync(TEAM_BARRIER + team, 128);
        const bool full = line + 64 <= t.rows;
        if (!full) copy_box(args, c, to, across, line, t.rows - line, thread);
        if (thread == 0) {
            if (full) store_box(args, shared_address(to), across, line, t);
            tma_commit();
        }
    }
}

template <bool PROMOTED>
__device__ __forceinline__ void consume(const grouped_sm90_args &args, ring r, const tile *slots, counter tiles,
                                        unsigned char *memory, const float *scales, unsigned char *staging, int team)
{
    const int lane = (int)threadIdx.x % 32;
    sum_t sum[WAVES][SUMS];
    if (PROMOTED && TEAMS > 1 && team == 1) named_barrier_arrive(TURN_BARRIER, 128 * TEAMS);
    for (;;) {
        mbarrier_wait(tiles.full(), tiles.parity());
        const tile &now = slots[tiles.at()];
        if (!uniform(now.there)) break;
        const share own = share_of(now, team);
        /* Where a slice may have to be cleared, all teams do it. */
        if (FORM != FORM_TERMS && uniform(now.line) + own.row >= uniform(now.rows))
            skip(args, r, now, lane);
        else if constexpr (PROMOTED)
            multiply_promoted(args, sum[0], r, scales, now, own, team, lane);
        else
            multiply(args, sum, r, memory, now, team, lane);
        const tile t = slots[tiles.at()]; /* read again, rather than held beside the sums */
        give_back(tiles, lane);
        if (LIGHT && args.light)
            store_tile(args, t, share_of(t, team), sum, staging, team);
        else
            finish_tile(args, t, share_of(t, team), sum, (sum_t *)staging, team);
    }
    if (PROMOTED && TEAMS > 1 && team == 0) named_barrier_sync(TURN_BARRIER, 128 * TEAMS); /* the last one's */
    if (LIGHT && threadIdx.x % 128 == 0) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) grouped_sm90(const __grid_constant__ grouped_sm90_args args)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char *const staging = memory + STAGES * STAGE_BYTES, *const scales = staging + TEAMS * STAGING_BYTES;
    unsigned char *const barriers = scales + STAGES * SCALE_BYTES;
    tile *const slots = (tile *)(barriers + 16 * (STAGES + SLOTS));
    const u32 full = shared_address(barriers);
    const ring r = {shared_address(memory), full, full + 8 * STAGES, 0};
    const counter tiles = {full + 16 * STAGES, 0};
    if (threadIdx.x == 0) {
        tma_prefetch(&args.a);
        tma_prefetch(&args.b);
        if constexpr (LIGHT) tma_prefetch(&args.c);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(r.full + 8 * i, BLOCKS ? 33 : 1);
            mbarrier_init(r.empty + 8 * i, 4 * TEAMS * ARRIVING);
        }
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(tiles.barriers + 8 * i, 1);
            mbarrier_init(tiles.barriers + 8 * (SLOTS + i), (4 * TEAMS + BLOCKS) * ARRIVING);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    overlap_wait();
    const int team = uniform((int)threadIdx.x / 128);
    if (team == TEAMS) {
        /* 40 + 2 * 232 is 3 * 168, what the block begins with: one more, and the others wait for ever. */
        if constexpr (TEAMS > 1) registers_give<40>();
        const int warp = (int)threadIdx.x / 32 - 4 * TEAMS, lane = (int)threadIdx.x % 32;
        if (warp == 0) produce(args, r, slots, tiles, lane);
        if (BLOCKS && warp == 1) bring_scales(args, r, slots, tiles, shared_address(scales), lane);
    } else {
        if constexpr (TEAMS > 1) registers_take<232>();
        consume<PROMOTE>(args, r, slots, tiles, memory, (const float *)scales, staging + team * STAGING_BYTES, team);
    }
}
