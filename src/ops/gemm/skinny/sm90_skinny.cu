/* SPDX-License-Identifier: Apache-2.0
 * gemm of f32 on Hopper where one side of c is a few lines, by multiply-adds. TMA keeps a ring of stages
 * filled with the wide operand, LINES lines by 32 of K, so that memory does not wait for arithmetic; a warp beside it
 * copies what the few have there, however they lie. Stages are dealt round-robin to TURNS groups of such warps, and to as many
 * pairs of warps that multiply: each of a pair takes half of K, a lane OWN lines by all of the few. Elements of the
 * few are the same for all lanes of a warp. The sums of the warps, and of the blocks of a cluster that share K out,
 * meet in shared memory and are added in a fixed order.
 *
 * Prologue: LINES (of a tile, a multiple of 8, at most 128), STAGES (a multiple of 4), FEW, SPLIT (blocks of a cluster;
 * more than one: each has one tile), BATCH_RANK, K_MAJOR (the wide operand lies along K, else across it), FEW_K_MAJOR,
 * SWAPPED, FEW_FIRST (neighbours in c are of the few), HAS_SCALE_A HAS_SCALE_B, types wide_t few_t c_t sum_t out_t, the
 * epilogue's. */
#include "kernels/mbarrier.cuh"
#include "kernels/overlap.cuh"
#include "kernels/shared.cuh"
#include "kernels/vector.cuh"
#include "ops/gemm/cuda/gemm_box.cuh"
#include "ops/gemm/skinny/sm90_skinny_args.h"

constexpr int TILE_M = SWAPPED ? LINES : FEW, TILE_N = SWAPPED ? FEW : LINES;
#include "ops/gemm/cuda/gemm_device.cuh"

constexpr int SLICE = 32, VECTOR = 4; /* of K: in a stage; that a lane reads at once */
constexpr int TURNS = 4, HALVES = 2, WARPS = TURNS * HALVES, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32 * TURNS;
constexpr int OWN = LINES > 64 ? 4 : LINES > 32 ? 2 : 1;
constexpr int PITCH = LINES + 1, FEW_PITCH = SLICE + VECTOR; /* odd numbers of a lane's accesses */
constexpr int WIDE_BYTES = LINES * SLICE * 4, FEW_BYTES = FEW * FEW_PITCH * 4, STAGE_BYTES = WIDE_BYTES + FEW_BYTES;

static_assert(sizeof(wide_t) == 4 && sizeof(few_t) == 4 && sizeof(sum_t) == 4, "f32");
static_assert(LINES % 8 == 0 && LINES <= 32 * OWN, "whole swizzles; a warp has all lines");
static_assert(STAGES % TURNS == 0, "a stage's place is always the same warps'");

/* Stages of one group, as they follow each other. */
struct ring {
    unsigned char *wide, *few; /* by stage: all of the wide operand's, then all of the few's */
    u32 full, empty;
    int at;
    u32 parity;

    __device__ void next()
    {
        at += TURNS;
        if (at < STAGES) return;
        at -= STAGES;
        parity ^= 1;
    }
    __device__ float *wide_at() const { return (float *)(wide + at * WIDE_BYTES); }
    __device__ float *few_at() const { return (float *)(few + at * FEW_BYTES); }
};

/* ---- a block's work: tiles one after the other, all their stages in one row ---- */

/* begin(number of the tile, its first fill of K), then stage(fill, place in the ring) for each of its stages that is of
 * `turn`, then end(number). */
template <typename TILE, typename STAGE, typename END>
__device__ __forceinline__ void walk(const gemm_sm90_skinny_args &a, int rank, int turn, ring r, const TILE &begin,
                                     const STAGE &stage, const END &end)
{
    const extent own = stages_of(a.fills, rank);
    const int fills = own.end - own.first;
    int fill = turn; /* counted from the tile's first */
    for (int n = (int)blockIdx.x / SPLIT; n < a.tiles; n += (int)gridDim.x / SPLIT) {
        begin(n, own.first + fill);
        for (; fill < fills; fill += TURNS) {
            stage(own.first + fill, r);
            r.next();
        }
        fill -= fills;
        end(n);
    }
}

/* ---- filling the ring ---- */

/* What a lane copies of the few for one stage: neighbours in memory are copied by neighbours. What is not there, of K
 * or of the few, is zero. */
struct few_part {
    const few_t *from;
    int lane;
    float v[FEW];

    __device__ int line(int i) const { return FEW_K_MAJOR ? i : (32 * i + lane) % FEW; }
    __device__ int depth(int i) const { return FEW_K_MAJOR ? lane : (32 * i + lane) / FEW; }

    __device__ void load(const gemm_skinny_args &a, int fill)
    {
#pragma unroll
        for (int i = 0; i < FEW; i++) {
            const int k = fill * SLICE + depth(i);
            v[i] = k < a.gemm.shape.k && line(i) < a.few ? from[line(i) * a.few_line + k * a.few_k] : 0;
        }
    }
    __device__ void store(float *to) const
    {
#pragma unroll
        for (int i = 0; i < FEW; i++) to[line(i) * FEW_PITCH + depth(i)] = v[i];
    }
};

/* The few of a stage are in flight while its place is waited for. */
__device__ __forceinline__ void produce(const gemm_sm90_skinny_args &a, int rank, int turn, int lane, ring r)
{
    const gemm_args &gemm = a.skinny.gemm;
    const int lines = (int)((a.skinny.wide + LINES - 1) / LINES); /* tiles of an item */
    int line = 0, item[3] = {};
    few_part few = {nullptr, lane, {}};
    r.parity = 1;
    walk(
        a, rank, turn, r,
        [&](int n, int fill) {
            const place p = tile_place(gemm.shape, n);
            line = (int)(SWAPPED ? p.row : p.col);
            find_item<BATCH_RANK>(gemm.shape, n / lines, item);
            few.from = SWAPPED ? (const few_t *)gemm.b + p.b : (const few_t *)gemm.a + p.a;
            few.load(a.skinny, fill);
        },
        [&](int fill, const ring &at) {
            const u32 full = at.full + 8 * at.at;
            mbarrier_wait(at.empty + 8 * at.at, at.parity);
            if (lane == 0) {
                const int k = fill * SLICE;
                mbarrier_arrive_expect(full, WIDE_BYTES);
                load_box<BATCH_RANK>(shared_address(at.wide_at()), &a.wide, full, K_MAJOR ? k : line, K_MAJOR ? line : k,
                                     item, SWAPPED ? gemm.shape.a_batch : gemm.shape.b_batch);
            }
            few.store(at.few_at());
            mbarrier_arrive(full);
            few.load(a.skinny, fill + TURNS);
        },
        [](int) {});
}

/* ---- multiplying ---- */

/* A lane's own lines: along K they are 32 apart, across it side by side. Lanes past the last line repeat it. */
__device__ __forceinline__ int own_line(int i, int lane) { return K_MAJOR ? lane + 32 * i : lane * OWN + i; }

__device__ __forceinline__ void read_wide(float (&to)[OWN][VECTOR], const float *wide, int k, int lane)
{
    if constexpr (K_MAJOR) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int line = min(own_line(i, lane), LINES - 1);
            load_vector<VECTOR>(wide + line * SLICE + (k / VECTOR ^ line % 8) * VECTOR, to[i]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float v[OWN];
            load_vector<OWN>(wide + (k + j) * LINES + min(lane * OWN, LINES - OWN), v);
#pragma unroll
            for (int i = 0; i < OWN; i++) to[i][j] = v[i];
        }
    }
}

/* Half of a stage. */
__device__ __forceinline__ void multiply(float (&sum)[OWN][FEW], const ring &r, int half, int lane)
{
    const float *wide = r.wide_at(), *few = r.few_at();
#pragma unroll(OWN * FEW > 64 ? 1 : 2)
    for (int i = 0; i < SLICE / HALVES; i += VECTOR) {
        const int k = half * (SLICE / HALVES) + i;
        float w[OWN][VECTOR];
        read_wide(w, wide, k, lane);
#pragma unroll
        for (int f = 0; f < FEW; f++) {
            float x[VECTOR];
            load_vector<VECTOR>(few + f * FEW_PITCH + k, x);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
#pragma unroll
                for (int l = 0; l < OWN; l++) sum[l][f] = fmaf(w[l][j], x[j], sum[l][f]);
        }
    }
}

/* ---- from sums to c ---- */

__device__ __forceinline__ void meet() { named_barrier_sync(1, CONSUMERS); }

/* Adds a warp's sums to those of its group: the second half's first. */
__device__ __forceinline__ void leave(const float (&sum)[OWN][FEW], float *part, int half, int lane)
{
#pragma unroll
    for (int h = HALVES - 1; h >= 0; h--) {
        if (h == half) {
#pragma unroll
            for (int i = 0; i < OWN; i++)
#pragma unroll
                for (int f = 0; f < FEW; f++) {
                    const int line = own_line(i, lane);
                    if (line >= LINES) continue;
                    float *to = part + f * PITCH + line;
                    *to = h == HALVES - 1 ? sum[i][f] : *to + sum[i][f];
                }
        }
        meet();
    }
}

/* Of all groups. */
__device__ __forceinline__ float add_turns(const float *from)
{
    float sum = from[0];
#pragma unroll
    for (int i = 1; i < TURNS; i++) sum += from[i * FEW * PITCH];
    return sum;
}

__device__ __forceinline__ float add_blocks(const float *from)
{
    float v[SPLIT], sum = 0;
#pragma unroll
    for (int i = 0; i < SPLIT; i++) v[i] = shared_load_remote_word<float>(shared_address(from), (u32)i);
#pragma unroll
    for (int i = 0; i < SPLIT; i++) sum += v[i];
    return sum;
}

/* Sums of a place are in `parts`, those of its groups or, in a cluster, of its blocks. */
__device__ __forceinline__ void finish_tile(const gemm_skinny_args &a, int tile, const float *parts, int rank)
{
    const gemm_shape &s = a.gemm.shape;
    const place p = tile_place(s, tile);
    const s64 first = SWAPPED ? p.row : p.col;
    for (int i = rank * CONSUMERS + (int)threadIdx.x; i < FEW * LINES; i += SPLIT * CONSUMERS) {
        const int few = FEW_FIRST ? i % FEW : i / LINES, line = FEW_FIRST ? i / FEW : i % LINES;
        if (few >= a.few || first + line >= a.wide) continue;
        const float *from = parts + few * PITCH + line;
        const float sum = SPLIT > 1 ? add_blocks(from) : add_turns(from);
        const s64 row = SWAPPED ? first + line : few, col = SWAPPED ? few : first + line;
        c_t *c = (c_t *)a.gemm.c + p.c + row * s.c_m + col * s.c_n;
        *c = finish(a.gemm, p, row, col, sum, c);
    }
}

__device__ __forceinline__ void consume(const gemm_sm90_skinny_args &a, int rank, int turn, int half, int lane, ring r,
                                        float *parts)
{
    float sum[OWN][FEW];
    walk(
        a, rank, turn, r,
        [&](int, int) {
#pragma unroll
            for (int i = 0; i < OWN * FEW; i++) sum[i / FEW][i % FEW] = 0;
        },
        [&](int, const ring &at) {
            mbarrier_wait(at.full + 8 * at.at, at.parity);
            multiply(sum, at, half, lane);
            mbarrier_arrive(at.empty + 8 * at.at);
        },
        [&](int n) {
            leave(sum, parts + turn * FEW * PITCH, half, lane);
            if constexpr (SPLIT == 1) {
                finish_tile(a.skinny, n, parts, 0);
                meet(); /* sums stay until all have read them */
            } else {
                for (int i = (int)threadIdx.x; i < FEW * PITCH; i += CONSUMERS) parts[i] = add_turns(parts + i);
            }
        });
}

/* ---- the block ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_sm90_skinny(const __grid_constant__ gemm_sm90_skinny_args a)
{
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    unsigned char *stages = memory + (-shared_address(memory) & 1023u);
    float *parts = (float *)(stages + STAGES * STAGE_BYTES);
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    const int warp = uniform((int)threadIdx.x / 32), lane = (int)threadIdx.x % 32, turn = warp % TURNS;
    const int rank = SPLIT > 1 ? (int)cluster_rank() : 0;
    if (threadIdx.x == 0) {
        tma_prefetch(&a.wide);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + 8 * i, 1 + 32); /* TMA's, and each lane that copies the few */
            mbarrier_init(empty + 8 * i, 32 * HALVES);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    overlap_wait();
    const ring r = {stages, stages + STAGES * WIDE_BYTES, full, empty, turn, 0};
    if (warp < WARPS)
        consume(a, rank, turn, warp / TURNS, lane, r, parts);
    else
        produce(a, rank, turn, lane, r);
    if constexpr (SPLIT > 1) {
        __syncwarp();
        cluster_sync();
        if (warp < WARPS) finish_tile(a.skinny, (int)blockIdx.x / SPLIT, parts, rank);
        cluster_sync(); /* others may still read the sums of this block */
    }
}
