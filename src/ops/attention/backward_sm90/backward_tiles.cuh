/* SPDX-License-Identifier: Apache-2.0
 * What both kernels of Hopper's attention gradients do with tiles: TMA brings them, the tensor
 * cores multiply them. Constants: those of backward.cu, and ONCE (tiles go by from the last to
 * the first). */
#pragma once
#include "kernels/math.cuh"
#include "kernels/mbarrier.cuh"
#include "kernels/tma.cuh"
#include "kernels/vector.cuh"
#include "kernels/wgmma.cuh"
#include "ops/attention/backward_sm90/backward.cuh"
#include "ops/attention/sm90/sm90_rows.cuh"

constexpr bool USES_B = SUM_A; /* gradients of weights are needed */
constexpr int OWN_CHUNK = ROWS * ROW, CHUNK = LINES * ROW;
constexpr int OWN_A = D_CHUNKS * OWN_CHUNK, OWN_B = USES_B ? V_CHUNKS * OWN_CHUNK : 0;
constexpr int OTHER_A = D_CHUNKS * CHUNK, OTHER_B = V_CHUNKS * CHUNK, STAGE = OTHER_A + OTHER_B;
constexpr int STATS_READ = KEYS ? 2 * PITCH * 4 : 0, STATS = (STATS_READ + 127) / 128 * 128; /* bytes of a stage */
constexpr int THREADS = 128 * (GROUPS + 1);
/* Of 504 or 512 registers for a thread of each warpgroup. */
constexpr int GIVEN = GROUPS == 2 ? 24 : 32;
constexpr int TAKEN = GROUPS == 2 ? (504 - GIVEN) / 2 : (512 - GIVEN) / 3;

static_assert(sizeof(in_t) == 2, "16-bit operands");
static_assert(LINES % 16 == 0 && LINES <= 256, "whole steps of weights, one instruction across");
static_assert(SUM_A || (KEYS && SUM_B), "dk, dv, both of them, or dq");

struct memory {
    unsigned char *bytes; /* what a is the address of */
    u32 a, b, others;
    float *stats; /* of stage 0 */
    barriers bar;
    /* Of the first other of a tile. */
    __device__ __forceinline__ float *stats_of(const job &j, int stage) const
    {
        return stats + stage * (STATS / 4) + j.other % 4;
    }
    __device__ __forceinline__ u32 other_a(int stage) const { return others + stage * STAGE; }
    __device__ __forceinline__ u32 other_b(int stage) const { return others + stage * STAGE + OTHER_A; }
};

/* ---- loads, by a whole warp ---- */

/* Rows from `row` on, into chunks of 64 columns. */
__device__ __forceinline__ void load_chunks(const memory &m, u32 to, const mica_tensor_map *map,
                                            const attention_sm90_source &s, bool direct, u32 bar, int chunks, int rows,
                                            int row, int head, int batch, int lane)
{
    unsigned char *bytes = m.bytes + (to - m.a);
    if (direct)
        copy_tile<in_t>(bytes, s, chunks, rows, row, head, batch, lane);
    else if (lane == 0)
#pragma unroll 1
        for (int c = 0; c < chunks; c++) tma_load(to + c * rows * ROW, map, bar, 64 * c, row, head, batch);
}

__device__ __forceinline__ void load_own(const attention_sm90_bwd_args &a, const memory &m, const job &j,
                                         u32 &landed, int lane)
{
    /* Where dq is added up too, own rows of another sequence would not be harmless. */
    const bool foreign = ONCE && (PACKED_OWN || COUNTED_OWN) && j.valid < ROWS;
    const u32 bar = foreign ? m.bar.landed() : m.bar.own();
    if (lane == 0 && !a.direct) mbarrier_arrive_expect(bar, OWN_A + OWN_B);
    load_chunks(m, m.a, &a.own.map_a, a.own.a, a.direct, bar, D_CHUNKS, ROWS, j.row, j.head, j.batch, lane);
    if constexpr (USES_B)
        load_chunks(m, m.b, &a.own.map_b, a.own.b, a.direct, bar, V_CHUNKS, ROWS, j.row, j.head, j.batch, lane);
    if (lane == 0 && a.direct) mbarrier_arrive(bar);
    if (!foreign) return;
    mbarrier_wait(bar, landed);
    landed ^= 1;
    clear_rows(m.a, D_CHUNKS, ROWS, j.valid, lane);
    clear_rows(m.b, V_CHUNKS, ROWS, j.valid, lane);
    async_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(m.bar.own());
}

/* Rows of another sequence, or of none, may hold anything, and weights of 0 would not help against NaN. */
__device__ __forceinline__ void clear_others(const memory &m, const job &j, int stage, int from, int lane)
{
    clear_rows(m.other_a(stage), D_CHUNKS, LINES, from, lane);
    clear_rows(m.other_b(stage), V_CHUNKS, LINES, from, lane);
    /* By the lane that arrives at the barrier: racecheck does not see that the others come before it. */
    if (KEYS && lane == 0)
        for (int i = from; i < LINES; i++) m.stats_of(j, stage)[PITCH + i] = 0;
    async_fence();
    __syncwarp();
}

__device__ __forceinline__ void load_others(const attention_sm90_bwd_args &a, const memory &m, const ring &r,
                                            const job &j, int head, int tile, u32 &landed, int lane)
{
    const int left = j.count - tile * LINES, row = j.other + tile * LINES;
    const bool foreign = (PACKED_OTHER || COUNTED_OTHER) && left < LINES && j.other + j.count < a.other.rows;
    const u32 full = m.bar.full(r.at), bar = foreign ? m.bar.landed() : full;
    mbarrier_wait(m.bar.empty(r.at), r.parity);
    if (lane == 0 && !a.direct) mbarrier_arrive_expect(bar, STAGE + STATS_READ);
    load_chunks(m, m.other_a(r.at), &a.other.map_a, a.other.a, a.direct, bar, D_CHUNKS, LINES, row, head,
                j.other_batch, lane);
    load_chunks(m, m.other_b(r.at), &a.other.map_b, a.other.b, a.direct, bar, V_CHUNKS, LINES, row, head,
                j.other_batch, lane);
    if (lane == 0 && a.direct) mbarrier_arrive_expect(bar, STATS_READ);
    if (lane == 0 && KEYS)
        tma_load(shared_address(m.stats) + r.at * STATS, &a.stats_map, bar, row - j.other % 4,
                 2 * (j.other_batch * a.heads * a.group + head));
    if (!foreign) return;
    mbarrier_wait(bar, landed);
    landed ^= 1;
    clear_others(m, j, r.at, left, lane);
    if (lane == 0) mbarrier_arrive(full);
}

/* All tiles of a job. */
__device__ __forceinline__ void produce(const attention_sm90_bwd_args &a, const memory &m, const job &j, ring &r,
                                        u32 &landed, int lane)
{
    load_own(a, m, j, landed, lane);
    for (int g = 0; g < (KEYS ? a.group : 1); g++)
        for (int i = j.from; i < j.to; i++) {
            const int tile = ONCE ? j.to - 1 - (i - j.from) : i;
            __syncwarp();
            load_others(a, m, r, j, KEYS ? j.head * a.group + g : j.head / a.group, tile, landed, lane);
            r.next();
        }
}

/* ---- products ---- */

__device__ __forceinline__ void release(u32 bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
}

/* t = own other^T over STEPS of 16 columns. */
template <int STEPS> __device__ __forceinline__ void issue_products(float (&t)[SCORES], u32 own, u32 other)
{
    const u64 a = wgmma_operand<128>(own, 16, 8 * ROW), b = wgmma_operand<128>(other, 16, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply(t, wgmma_advance(a, i / 4 * OWN_CHUNK + i % 4 * 32), wgmma_advance(b, i / 4 * CHUNK + i % 4 * 32), i);
    wgmma_commit();
}

template <int N> __device__ __forceinline__ void issue_a(float (&sum)[N], const operand_t &w, u32 other)
{
    const u64 b = wgmma_operand<128>(other, CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < LINES / 16; i++) add_a(sum, w[i], wgmma_advance(b, i * 16 * ROW), 1);
    wgmma_commit();
}

template <int N> __device__ __forceinline__ void issue_b(float (&sum)[N], const operand_t &w, u32 other)
{
    const u64 b = wgmma_operand<128>(other, CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < LINES / 16; i++) add_b(sum, w[i], wgmma_advance(b, i * 16 * ROW), 1);
    wgmma_commit();
}

/* ---- jobs ---- */

/* Tiles in [from, to) are seen whole by all rows of a warpgroup. */
__device__ __forceinline__ range whole_tiles(const attention_sm90_bwd_args &a, const job &j, int first)
{
    return range{(seen_by(a, j, first + 63).from + LINES - 1) / LINES, seen_by(a, j, first).to / LINES};
}

struct sums {
    float a[SUM_A ? HELD_A : 1], b[SUM_B ? HELD_B : 1];
};

__device__ __forceinline__ void clear(sums &sum)
{
#pragma unroll
    for (int i = 0; i < (SUM_A ? HELD_A : 1); i++) sum.a[i] = 0;
#pragma unroll
    for (int i = 0; i < (SUM_B ? HELD_B : 1); i++) sum.b[i] = 0;
}

__device__ __forceinline__ void store(const attention_sm90_bwd_args &a, const job &j, int line, const statistics &own,
                                      const sums &sum)
{
    bool there[2], real[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        there[half] = line + 8 * half < j.rows;
        /* Others' weights of a row that saw nothing are 0; its own gradients are not looked at. */
        real[half] = line + 8 * half < j.valid && j.from < j.to && (KEYS || own.lse[half] != INFINITY_F);
    }
    if constexpr (SUM_A) store_result<a_t>(a.da, sum.a, j.batch, j.head, j.row + line, there, real, a.scale);
    if constexpr (SUM_B) store_result<b_t>(a.db, sum.b, j.batch, j.head, j.row + line, there, real, 1);
}
