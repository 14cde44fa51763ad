/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on Hopper: a block keeps rows of one side (KEYS: keys and values, else queries and
 * gradients of out), rows of the other side travel past them tile by tile in a ring that one warp lets the
 * copy engine fill. Of both sides a is what scores are made of (q, k), b the rest (dout, v). For each
 * tile a warpgroup, which has 64 own rows, multiplies
 *
 *     t = own_a other_a^T, u = own_b other_b^T        64 x LINES
 *     weights = exp(scale t - lse), gradients = weights (u - delta)
 *     sum_b += weights other_b,  sum_a += gradients other_a
 *
 * the latter with weights and gradients as 16-bit operands out of the registers that t and u were in. The
 * products of a tile are issued before those of the last one are waited for, and sum_b's run while
 * gradients are made. Where keys stay sum_a is dk, sum_b dv, and all query heads of the group go by;
 * where queries stay sum_a is dq. Nothing is added up by more than one block: bits do not vary.
 *
 * Prologue: KEYS, SUM_A, SUM_B (which sums), GROUPS (warpgroups that multiply), LINES (others of a tile),
 * STAGES; D_STEPS and V_STEPS (of 16 columns of a and b), D_CHUNKS and V_CHUNKS (of 64), HELD_A and
 * HELD_B (half the columns of the sums, padded); PACKED_OWN PACKED_OTHER COUNTED_OWN COUNTED_OTHER,
 * BOTTOM_RIGHT, PLAIN (scores are scaled products), CAP ALIBI; types in_t a_t b_t (of results);
 * multiply(t, own, other, add), add_a(sum, gradients, other, add), add_b(sum, weights, other, add). */
#include "cuda/device/math.cuh"
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/attention_sm90_bwd.cuh"
#include "ops/attention/attention_sm90_rows.cuh"

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

__device__ __forceinline__ void load_own(const attention_sm90_bwd_args &a, const memory &m, const job &j, int lane)
{
    const u32 bar = m.bar.own();
    if (lane == 0 && !a.direct) mbarrier_arrive_expect(bar, OWN_A + OWN_B);
    load_chunks(m, m.a, &a.own.map_a, a.own.a, a.direct, bar, D_CHUNKS, ROWS, j.row, j.head, j.batch, lane);
    if constexpr (USES_B)
        load_chunks(m, m.b, &a.own.map_b, a.own.b, a.direct, bar, V_CHUNKS, ROWS, j.row, j.head, j.batch, lane);
    if (lane == 0 && a.direct) mbarrier_arrive(bar);
}

/* Rows of another sequence, or of none, may hold anything, and weights of 0 would not help against NaN. */
__device__ __forceinline__ void clear_others(const memory &m, const job &j, int stage, int from, int lane)
{
    clear_rows(m.other_a(stage), D_CHUNKS, LINES, from, lane);
    clear_rows(m.other_b(stage), V_CHUNKS, LINES, from, lane);
    if constexpr (KEYS)
        for (int i = from + lane; i < LINES; i += 32) m.stats_of(j, stage)[PITCH + i] = 0;
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

__device__ __forceinline__ void produce(const attention_sm90_bwd_args &a, const memory &m, const job &j)
{
    const int lane = (int)threadIdx.x % 32;
    ring r = {0, 1};
    u32 landed = 0;
    if (j.from >= j.to) return;
    load_own(a, m, j, lane);
    for (int g = 0; g < (KEYS ? a.group : 1); g++)
        for (int tile = j.from; tile < j.to; tile++) {
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

/* ---- a job ---- */

/* Tiles in [from, to) are seen whole by all rows of a warpgroup. */
__device__ __forceinline__ range whole_tiles(const attention_sm90_bwd_args &a, const job &j, int first)
{
    return range{(seen_by(a, j, first + 63).from + LINES - 1) / LINES, seen_by(a, j, first).to / LINES};
}

/* Of this thread's own rows, which are queries. */
__device__ __forceinline__ statistics own_statistics(const attention_sm90_bwd_args &a, const job &j, int line)
{
    statistics s = {};
    if constexpr (KEYS) return s;
    const float *from = a.stats + 2 * a.pitch * (j.batch * a.heads + j.head) + j.row + line;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (line + 8 * half < j.valid) {
            s.lse[half] = from[8 * half];
            s.delta[half] = from[a.pitch + 8 * half];
        }
    return s;
}

struct sums {
    float a[SUM_A ? HELD_A : 1], b[SUM_B ? HELD_B : 1];
};

/* All tiles of a job. */
__device__ __forceinline__ void add_tiles(const attention_sm90_bwd_args &a, const memory &m, const job &j, int group,
                                          int line, const statistics &own, sums &sum)
{
    const range whole = whole_tiles(a, j, j.first + 64 * group);
    const u32 own_a = m.a + group * 64 * ROW, own_b = m.b + group * 64 * ROW;
    const int column = (int)threadIdx.x % 4 * 2;
    ring r = {0, 0};
    int last = -1; /* stage whose products may still run */
    float t[SCORES], u[SCORES];
    operand_t weights, gradients;
    mbarrier_wait(m.bar.own(), 0);
#pragma unroll 1
    for (int g = 0; g < (KEYS ? a.group : 1); g++) {
        const int query_head = KEYS ? j.head * a.group + g : j.head;
        const place p = {j, j.first + line, ALIBI ? a.slopes[query_head * a.slopes_stride] : 0};
#pragma unroll 1
        for (int tile = j.from; tile < j.to; tile++) {
            const float *stats = m.stats_of(j, r.at) + column;
            mbarrier_wait(m.bar.full(r.at), r.parity);
            issue_products<D_STEPS>(t, own_a, m.other_a(r.at));
            /* Here the last tile's products end, so that u finds the registers of the gradients free. */
            wgmma_wait<1>();
            if (last >= 0) release(m.bar.empty(last));
            if constexpr (USES_B) issue_products<V_STEPS>(u, own_b, m.other_b(r.at));
            wgmma_wait<USES_B ? 1 : 0>();
            wgmma_hold(t);
            make_weights(a, p, own, stats, t, tile * LINES + column, tile < whole.from || tile >= whole.to, weights);
            if constexpr (SUM_B) issue_b(sum.b, weights, m.other_b(r.at));
            if constexpr (USES_B) {
                wgmma_wait<SUM_B ? 1 : 0>();
                wgmma_hold(u);
                make_gradients(own, stats, t, u, gradients);
                issue_a(sum.a, gradients, m.other_a(r.at));
            }
            last = r.at;
            r.next();
        }
    }
    wgmma_wait<0>();
    if constexpr (SUM_A) wgmma_hold(sum.a);
    if constexpr (SUM_B) wgmma_hold(sum.b);
}

__device__ __forceinline__ void store(const attention_sm90_bwd_args &a, const job &j, int line, const statistics &own,
                                      const sums &sum)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool there = line + 8 * half < j.rows;
        /* Others' weights of a row that saw nothing are 0; its own gradients are not looked at. */
        const bool real = line + 8 * half < j.valid && j.from < j.to && (KEYS || own.lse[half] != INFINITY_F);
        const int row = j.row + line + 8 * half;
        if constexpr (SUM_A) store_row<a_t>(a.da, sum.a, j.batch, j.head, row, there, half, real, a.scale);
        if constexpr (SUM_B) store_row<b_t>(a.db, sum.b, j.batch, j.head, row, there, half, real, 1);
    }
}

__device__ __forceinline__ void consume(const attention_sm90_bwd_args &a, const memory &m, const job &j, int group)
{
    const int line = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;
    const statistics own = own_statistics(a, j, line);
    sums sum;
#pragma unroll
    for (int i = 0; i < (SUM_A ? HELD_A : 1); i++) sum.a[i] = 0;
#pragma unroll
    for (int i = 0; i < (SUM_B ? HELD_B : 1); i++) sum.b[i] = 0;
    if (j.from < j.to) add_tiles(a, m, j, group, line, own, sum);
    store(a, j, line, own, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_sm90_bwd(const __grid_constant__ attention_sm90_bwd_args a)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) u64 words[BARRIERS];
    __shared__ job slot;
    const u32 base = shared_address(dynamic), first = (base + 1023) & ~1023u; /* the swizzle is one of addresses */
    const u32 others = first + OWN_A + OWN_B;
    float *stats = (float *)(dynamic + (others + STAGES * STAGE - base));
    const memory m = {dynamic + (first - base), first, first + OWN_A, others, stats, barriers{shared_address(words)}};
    if (threadIdx.x < 32) {
        const job j = find_job(a);
        if (threadIdx.x == 0) {
            slot = j;
            barriers_init(m.bar);
        }
    }
    __syncthreads();
    const job &j = slot; /* there, not in registers */
    if (j.n < 0) return;
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<GIVEN>();
        if (uniform((int)threadIdx.x / 32) == 4 * GROUPS) produce(a, m, j);
    } else {
        if constexpr (GROUPS > 1) registers_take<TAKEN>();
        consume(a, m, j, group);
    }
}
