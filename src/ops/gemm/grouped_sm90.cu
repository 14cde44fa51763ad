/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on Hopper, and gemm with scales of blocks. A persistent block walks over the tiles of all
 * groups, whose sizes it reads itself; one warp keeps a ring of STAGES slices of both operands filled by
 * the copy engine, TEAMS warpgroups multiply them, each its share of the tile's rows, and take the sums
 * through shared memory to c, while the ring fills for the next tile.
 *
 * Runs of rows begin anywhere: a tile's box reaches into the rows of the next group, whose sums are
 * not stored. Runs of terms end anywhere: what a slice has of the next group is overwritten by zeros.
 *
 * Prologue: TILE_M TILE_N STAGES TEAMS, BUFFERS (of 8 KiB for c, of each team), A_MN_MAJOR B_MN_MAJOR (the
 * operands lie along rows or columns, not along K), PROMOTE (sums leave the tensor core after every slice:
 * 8-bit floats), BLOCKS (and are scaled then), LIGHT (c is tiled for the copy engine, and little follows
 * the sums), HAS_SCALE_A HAS_SCALE_B, those of grouped_device.cuh, types a_t b_t c_t sum_t out_t, the
 * epilogue's, and mma(sum, a, b, add): m64 by TILE_N. */
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/overlap.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/gemm/grouped_device.cuh"
#include "ops/gemm/grouped_sm90_args.h"

constexpr int LINE_BYTES = 128; /* of K in a slice */
constexpr int TILE_K = LINE_BYTES / (int)sizeof(a_t);
constexpr int STEPS = 4; /* instructions of 32 bytes of K */
constexpr int A_BYTES = TILE_M * LINE_BYTES, B_BYTES = TILE_N * LINE_BYTES;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int TEAM_ROWS = TILE_M / TEAMS, WAVES = TEAM_ROWS / 64;
constexpr int THREADS = 128 * (TEAMS + 1);
constexpr int SUMS = TILE_N / 2; /* a thread's, of one wave */
constexpr int TEAM_BARRIER = 1, ALL_TEAMS_BARRIER = 1 + TEAMS;
/* Sums pass through shared memory in pieces of 64 x PIECE; the pitch spreads pairs over all banks. */
constexpr int PIECE = 32, PITCH = PIECE + 8, PIECES = TILE_N / PIECE, PIECE_SUMS = PIECE / 2;
constexpr int VECTOR = 4;
/* What the copy engine stores: boxes of 64 rows of at most 128 bytes, swizzled. */
constexpr int BUFFER_BYTES = 8192, STAGING_BYTES = BUFFERS * BUFFER_BYTES;
constexpr int BOX_WIDEST = LINE_BYTES / (int)sizeof(c_t), BOX = TILE_N % BOX_WIDEST ? TILE_N % BOX_WIDEST : BOX_WIDEST;
constexpr int BOX_BYTES = BOX * (int)sizeof(c_t), BOXES = TILE_N / BOX;
/* Columns that share a scale in every tile, and how many such scales a tile has. */
constexpr int SCALED_COLUMNS = TILE_N % 128 == 0 ? 128 : TILE_N % 64 == 0 ? 64 : 32, SCALES_B = TILE_N / SCALED_COLUMNS;

static_assert(STAGING_BYTES >= 64 * PITCH * 4, "room for a piece");
static_assert(!LIGHT || (BOX_BYTES & (BOX_BYTES - 1)) == 0, "a swizzle of this width");
static_assert(sizeof(sum_t) == 4, "sums of 32 bits");
static_assert(TEAM_ROWS % 64 == 0 && TILE_N % PIECE == 0, "whole pieces");
static_assert(STAGE_BYTES % 1024 == 0, "stages keep the alignment of the swizzle");
static_assert(!(A_MN_MAJOR || B_MN_MAJOR) || sizeof(a_t) == 2, "8-bit and tf32 operands are K-major");
static_assert(!B_MN_MAJOR || TILE_N % 64 == 0, "whole chunks across");
/* The copy engine begins at multiples of 16 bytes along a line, and a run begins anywhere. */
static_assert(FORM != FORM_TERMS || (A_MN_MAJOR && B_MN_MAJOR), "terms are lines");
static_assert(FORM != FORM_ROWS || !A_MN_MAJOR, "rows are lines");
static_assert(!BLOCKS || PROMOTE, "scales of blocks are for 8-bit floats");

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
    if (lane == 0) mbarrier_arrive(c.empty());
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

/* ---- the copy engine fills the ring ---- */

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

/* ---- sums ---- */

template <bool MN_MAJOR> __device__ __forceinline__ u64 operand(u32 address)
{
    return MN_MAJOR ? wgmma_operand<128>(address, TILE_K * LINE_BYTES, 8 * LINE_BYTES)
                    : wgmma_operand<128>(address, 16, 8 * LINE_BYTES);
}
/* Bytes to the next 32 bytes of K. */
template <bool MN_MAJOR> constexpr u32 step_bytes() { return MN_MAJOR ? 16 * LINE_BYTES : 32; }
/* Bytes from 64 rows to the next. */
constexpr u32 WAVE_BYTES = 64 * LINE_BYTES;

/* A warp no longer reads this stage. */
__device__ __forceinline__ void release(const ring &r, int stage, int lane)
{
    if (lane == 0) mbarrier_arrive(r.empty + 8 * stage);
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

__device__ __forceinline__ void multiply_slice(sum_t (&sum)[WAVES][SUMS], const ring &r, int team, int add)
{
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
__device__ __forceinline__ void multiply(const grouped_sm90_args &args, sum_t (&sum)[WAVES][SUMS], ring &r,
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

/* The scales of one slice: of a thread's rows, and of the tile's columns. */
struct slice_scales {
    float a[WAVES][2], b[SCALES_B];
};

/* Where a thread finds those of the next slice: bytes from the first of all. */
struct scale_places {
    u32 row[WAVES][2], column[SCALES_B];

    __device__ __forceinline__ scale_places(const grouped_sm90_args &args, const tile &t, int team)
    {
        if constexpr (BLOCKS) {
            const grouped_args &g = args.grouped;
            const int thread = thread_of_team();
            const u32 a = (u32)in_group(g.scale_a, t.group, t.from), b = (u32)in_group(g.scale_b, t.group, t.from);
#pragma unroll
            for (int w = 0; w < WAVES; w++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int line = t.line + team * TEAM_ROWS + w * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
                    row[w][half] = 4u * (a + (u32)min(line, t.rows - 1) * (u32)g.gemm.scale_a_stride);
                }
#pragma unroll
            for (int i = 0; i < SCALES_B; i++)
                column[i] =
                    4u * (b + (u32)(min(t.across + i * SCALED_COLUMNS, args.across - 1) / 128) * (u32)g.gemm.scale_b_n);
        }
    }

    __device__ __forceinline__ void load(const grouped_sm90_args &args, slice_scales &s)
    {
        if constexpr (BLOCKS) {
            const gemm_args &gemm = args.grouped.gemm;
            const char *a = (const char *)gemm.scale_a, *b = (const char *)gemm.scale_b;
            const u32 step_a = 4u * (u32)gemm.scale_a_k, step_b = 4u * (u32)gemm.scale_b_k;
#pragma unroll
            for (int w = 0; w < WAVES; w++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    s.a[w][half] = __ldg((const float *)(a + row[w][half]));
                    row[w][half] += step_a;
                }
#pragma unroll
            for (int i = 0; i < SCALES_B; i++) {
                s.b[i] = __ldg((const float *)(b + column[i]));
                column[i] += step_b;
            }
        }
    }
};

__device__ __forceinline__ void add_part(sum_t (&sum)[SUMS], const sum_t (&part)[SUMS], const slice_scales &s, int wave)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        if constexpr (BLOCKS)
            sum[i] += part[i] * (s.a[wave][i / 2 % 2] * s.b[i * 2 / SCALED_COLUMNS]);
        else
            sum[i] += part[i];
    }
}

__device__ __forceinline__ void multiply_promoted(const grouped_sm90_args &args, sum_t (&sum)[WAVES][SUMS], ring &r,
                                                  const tile &t, int team, int lane)
{
    const int slices = slices_of(args, t), rows = uniform(t.rows) - uniform(t.line) - team * TEAM_ROWS;
    scale_places places(args, t, team);
    slice_scales scales, next;
    places.load(args, next);
#pragma unroll
    for (int w = 0; w < WAVES; w++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sum[w][i] = 0;
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        scales = next;
        if (slice + 1 < slices) places.load(args, next);
        mbarrier_wait(r.full + 8 * r.at(), r.parity());
        const u32 at = r.stages + r.at() * STAGE_BYTES;
        const u64 a = operand<false>(at + team * WAVES * WAVE_BYTES), b = operand<false>(at + A_BYTES);
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            if (w > 0 && w * 64 >= rows) continue; /* past the group's end */
            sum_t part[SUMS];
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                mma(part, wgmma_advance(a, k * 32 + w * WAVE_BYTES), wgmma_advance(b, k * 32), k);
            wgmma_commit();
            wgmma_wait<0>();
            if (w == WAVES - 1) release(r, r.at(), lane);
            add_part(sum[w], part, scales, w);
            wgmma_hold(sum[w]); /* or it is put off until the next wave, with this part still held */
        }
        if ((WAVES - 1) * 64 >= rows && WAVES > 1) release(r, r.at(), lane);
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

__device__ __forceinline__ void finish_tile(const grouped_sm90_args &args, const tile &t,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int team)
{
    constexpr int ACROSS = PIECE / VECTOR, EACH = 64 / (128 / ACROSS); /* vectors of a row, of a thread */
    const int thread = thread_of_team(), warp = thread / 32, lane = thread % 32;
    const int column = thread % ACROSS * VECTOR, row = thread / ACROSS;
    const companions of = companions_of(args.grouped, t.group, t.from);
    c_t *c = (c_t *)args.grouped.gemm.c + in_group(args.grouped.c, t.group, t.from);
#pragma unroll 1
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        const int line = t.line + team * TEAM_ROWS + piece / PIECES * 64, across = t.across + piece % PIECES * PIECE;
        if (line >= t.rows || across >= args.across) continue;
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

#include "ops/gemm/gemm_pairs.cuh"

/* ---- the same by the copy engine, and by copies of 16 bytes where a group ends inside the box ---- */

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

__device__ __forceinline__ void store_tile(const grouped_sm90_args &args, const tile &t,
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
        const int line = t.line + team * TEAM_ROWS + i / BOXES * 64, across = t.across + i % BOXES * BOX;
        if (line >= t.rows || across >= args.across) {
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

__device__ __forceinline__ void consume(const grouped_sm90_args &args, ring r, const tile *slots, counter tiles,
                                        unsigned char *memory, unsigned char *staging, int team)
{
    const int lane = (int)threadIdx.x % 32;
    sum_t sum[WAVES][SUMS];
    for (;;) {
        mbarrier_wait(tiles.full(), tiles.parity());
        const tile &now = slots[tiles.at()];
        if (!uniform(now.there)) break;
        /* Where a slice may have to be cleared, all teams do it. */
        if (FORM != FORM_TERMS && uniform(now.line) + team * TEAM_ROWS >= uniform(now.rows))
            skip(args, r, now, lane);
        else if constexpr (PROMOTE)
            multiply_promoted(args, sum, r, now, team, lane);
        else
            multiply(args, sum, r, memory, now, team, lane);
        const tile t = slots[tiles.at()]; /* read again, rather than held beside the sums */
        give_back(tiles, lane);
        if (LIGHT && args.light)
            store_tile(args, t, sum, staging, team);
        else
            finish_tile(args, t, sum, (sum_t *)staging, team);
    }
    if (LIGHT && threadIdx.x % 128 == 0) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) grouped_sm90(const __grid_constant__ grouped_sm90_args args)
{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * (STAGES + SLOTS)];
    __shared__ tile slots[SLOTS];
    unsigned char *aligned = memory + (-shared_address(memory) & 1023u);
    const u32 full = shared_address(barriers);
    const ring r = {shared_address(aligned), full, full + 8 * STAGES, 0};
    const counter tiles = {full + 16 * STAGES, 0};
    if (threadIdx.x == 0) {
        tma_prefetch(&args.a);
        tma_prefetch(&args.b);
        if constexpr (LIGHT) tma_prefetch(&args.c);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(r.full + 8 * i, 1);
            mbarrier_init(r.empty + 8 * i, 4 * TEAMS);
        }
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(tiles.barriers + 8 * i, 1);
            mbarrier_init(tiles.barriers + 8 * (SLOTS + i), 4 * TEAMS);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    overlap_wait();
    const int team = uniform((int)threadIdx.x / 128);
    if (team == TEAMS) {
        /* 40 + 2 * 232 is 3 * 168, what the block begins with: one more, and the others wait for ever. */
        if constexpr (TEAMS > 1) registers_give<40>();
        if (threadIdx.x < 128 * TEAMS + 32) produce(args, r, slots, tiles, (int)threadIdx.x % 32);
    } else {
        if constexpr (TEAMS > 1) registers_take<232>();
        consume(args, r, slots, tiles, aligned, aligned + STAGES * STAGE_BYTES + team * STAGING_BYTES, team);
    }
}
