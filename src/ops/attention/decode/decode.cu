/* SPDX-License-Identifier: Apache-2.0
 * Attention forward for few queries: keys and values come from memory once, at its speed. A block has ROWS
 * rows (queries of all heads of a key head) and a part of the keys that they see. Each of its warps has
 * every WARPS-th tile of KEYS keys, and a ring of STAGES tiles of its own, so that none waits for another
 * before the end; then their sums are added in order, as are those of the blocks of a cluster. Blocks that
 * form none leave theirs in the workspace (decode_merge.cu).
 *
 * 8-bit keys and values become 16-bit ones in registers. A step of the tensor core then takes columns in
 * another order: of 16, thread t of a quad has 4 t to 4 t + 3. Rows of q are stored in that order; columns
 * of out come in it.
 *
 * Prologue: ROWS, KEYS (of a tile), STAGES, K_STEPS and V_STEPS (of 32 bytes in a row of k, v), RESIDENT
 * (blocks of a multiprocessor), CLUSTERS, CONVERTS_FLOAT8 (whether the device can); types q_t, kv_t. */
#include "ops/attention/decode/decode_args.h"

constexpr int MOST_CLUSTER = ATTENTION_DECODE_CLUSTER;
constexpr int WARPS = 4, THREADS = 32 * WARPS, ROUND = WARPS * KEYS;
constexpr int SIZE = (int)sizeof(kv_t);
constexpr int D = K_STEPS * 32 / SIZE, DV = V_STEPS * 32 / SIZE; /* columns with those of padding */
/* Pitches are odd numbers of 16 bytes: neighbouring rows lie in different banks. */
constexpr int K_PITCH = 32 * K_STEPS + 16, V_PITCH = 32 * V_STEPS + 16, Q_PITCH = 2 * D + 16;
constexpr int K_BYTES = KEYS * K_PITCH, V_BYTES = KEYS * V_PITCH, RING = STAGES * (K_BYTES + V_BYTES);
constexpr int Q_BYTES = ROWS * Q_PITCH;
constexpr int BLOCKS = ROWS / 16, TILES = KEYS / 8, COLUMNS = DV / 8; /* accumulators: 16 rows, 8 columns */
constexpr int OWNED = (KEYS + 31) / 32;                               /* keys that a lane looks up */
constexpr int OUT_PITCH = DV + 8;                                     /* of sums when warps meet */

static_assert(sizeof(q_t) == 2, "a 16-bit type");
static_assert(MOST_CLUSTER >= WARPS, "shares of warps, then of blocks");
static_assert(KEYS % 16 == 0 && ROWS % 16 == 0 && ROWS <= THREADS, "whole fragments, a thread for a row");

#include "kernels/overlap.cuh"
#include "ops/attention/decode/decode_copy.cuh"
#include "ops/attention/decode/decode_queries.cuh"
#include "ops/attention/decode/decode_scores.cuh"
#include "ops/attention/decode/decode_sums.cuh"

/* ---- a job ---- */

/* Whether all rows see all keys from `key` on to before the next tile. */
__device__ __forceinline__ bool is_whole(const range &whole, const u32 *there, int key)
{
    constexpr u32 ALL = KEYS >= 32 ? 0xffffffffu : (1u << KEYS) - 1;
    bool all = key >= whole.from && key + KEYS <= whole.to;
#pragma unroll
    for (int i = 0; i < OWNED; i++) all = all && there[i] == ALL;
    return all;
}

/* A warp's tiles; the first STAGES are in flight, `next` is where the one behind them lies. Whenever
 * something is waited for, 2 STAGES groups of copies were begun since the one before it. */
__device__ __forceinline__ void attend(const attention_decode_args &a, const job &j, const ring &r, u32 q, const row *rows,
                                       int warp, int count, places next, int lane, state &st, sums_t &o)
{
    const float scale = a.scale * (a.scale_k.data ? load_float(a.scale_k, j.head) : 1);
    const range whole = {keys_of(a, j, query_of(a, j.first + j.valid - 1)).from, keys_of(a, j, query_of(a, j.first)).to};
    const u32 k = shared_address(r.k), v = shared_address(r.v);
    int slot = 0;
#pragma unroll 1
    for (int i = 0; all_lanes(i < count); i++) {
        const int tile = warp + WARPS * i, key = j.part.from + tile * KEYS;
        const places later = find_places(a, j, tile + WARPS * (STAGES + 1), lane);
        const bool more = all_lanes(i + STAGES < count);
        scores_t s;
        copies_wait<2 * STAGES - 1>();
        __syncwarp();
        multiply_keys(s, q, k + slot * K_BYTES, lane);
        u32 there[OWNED];
#pragma unroll
        for (int w = 0; w < OWNED; w++) there[w] = r.there[slot * OWNED + w];
        __syncwarp();
        if (more) copy_keys(a, r, slot, next, lane);
        copies_commit();
        make_scores(a, s, rows, key, !is_whole(whole, there, key), there, scale, lane);
        make_weights(st, s, o);
        copies_wait<2 * STAGES - 1>();
        __syncwarp();
        multiply_values(o, s, v + slot * V_BYTES, lane);
        __syncwarp();
        if (more) copy_values(a, r, slot, next, lane);
        copies_commit();
        next = later;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_decode(const __grid_constant__ attention_decode_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ u32 there[WARPS * STAGES * OWNED];
    __shared__ row rows[ROWS];
    __shared__ float4 stats[(WARPS + 1) * ROWS];
    __shared__ float shares[MOST_CLUSTER * ROWS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    job j;
    if (!find_job(a, blockIdx.x, j)) return;
    const int keys = max(j.part.to - j.part.from, 0), tiles = (keys + KEYS - 1) / KEYS;
    const int count = (tiles - warp + WARPS - 1) / WARPS;
    char *own = memory + Q_BYTES + warp * RING;
    const ring r = {own, own + STAGES * K_BYTES, there + warp * STAGES * OWNED, find_lane<K_STEPS>(a.k, j.head, lane),
                    find_lane<V_STEPS>(a.v, j.head, lane)};
    state st;
    sums_t o;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) st.max[i] = NOTHING, st.sum[i] = 0;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[b][c][e] = 0;
    if (keys > 0) {
        const places next = start(a, j, r, warp, count, lane);
        load_queries(a, j, memory, rows);
        __syncthreads();
        attend(a, j, r, shared_address(memory), rows, warp, count, next, lane, st, o);
        copies_wait<0>();
        __syncthreads();
    }
    leave(st, o, (float *)memory + warp * ROWS * OUT_PITCH, stats + warp * ROWS, lane);
    __syncthreads();
    merge(a, j, (float *)memory, stats, shares);
}
