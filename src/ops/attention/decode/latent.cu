/* SPDX-License-Identifier: Apache-2.0
 * Attention forward for wide rows (latent attention: 576 columns of keys, 512 of values, one key head for all query
 * heads). A block has ROWS rows (queries of all heads of a key head) and a part of the keys that they see, in
 * rounds of ROUND keys, which its warps copy together. Scores of 16 rows and 16 keys are a warp's; weights meet in
 * shared memory; then each warp has all rows and its share of the columns of the values. Where rows of values are
 * the first columns of keys, nothing is copied twice. Splits leave their sums in the workspace
 * (decode_merge.cu).
 *
 * Prologue: ROWS, STAGES (1 or 2 rounds in shared memory), K_STEPS (of 16 columns, a multiple of 4), V_STEPS (a
 * multiple of WARPS); types q_t, kv_t (the same). */
#include "ops/attention/decode/decode_args.h"

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int KEYS = 4, ROUND = WARPS * KEYS; /* that a warp copies at once; that all do */
constexpr int SIZE = (int)sizeof(kv_t), D = 16 * K_STEPS;
constexpr bool CONVERTS_FLOAT8 = false;
/* Pitches are odd numbers of 16 bytes: neighbouring rows lie in different banks. */
constexpr int K_PITCH = 32 * K_STEPS + 16, V_PITCH = 32 * V_STEPS + 16, Q_PITCH = K_PITCH, P_PITCH = 2 * ROUND + 16;
constexpr int K_BYTES = ROUND * K_PITCH, V_BYTES = ROUND * V_PITCH;
constexpr int Q_BYTES = ROWS * Q_PITCH, RING_BYTES = STAGES * (K_BYTES + V_BYTES);
constexpr int OWNED = 1;
constexpr int BLOCKS = 1, TILES = 2;                    /* scores of a warp: 16 rows, 16 keys */
constexpr int ROW_BLOCKS = ROWS / 16, KEY_GROUPS = ROUND / 16;
constexpr int STEPS = V_STEPS / WARPS, COLUMNS = 2 * STEPS; /* of a warp's values: 16 columns, 8 columns */
constexpr int OUT_PITCH = 8 * COLUMNS + 4;

static_assert(sizeof(q_t) == 2 && SIZE == 2 && !CONVERTS_FLOAT8, "16-bit types");
static_assert(ROWS % 16 == 0 && ROW_BLOCKS * KEY_GROUPS <= WARPS, "scores for each warp or none");
static_assert(K_STEPS % 4 == 0 && V_STEPS % WARPS == 0, "whole copies, a share for each warp");
static_assert(RING_BYTES >= WARPS * 16 * OUT_PITCH * 4, "room for results");
static_assert(STAGES == 1 || STAGES == 2, "a round, and the one behind it");

#include "kernels/overlap.cuh"
#include "ops/attention/decode/decode_copy.cuh"
#include "ops/attention/decode/decode_finish.cuh"
#include "ops/attention/decode/decode_queries.cuh"
#include "ops/attention/decode/decode_scores.cuh"

typedef float values_t[ROW_BLOCKS][COLUMNS][4];

/* What the warps tell each other. */
struct shared_state {
    u32 there[WARPS * STAGES]; /* which of a warp's keys there are */
    row rows[ROWS];
    float tops[KEY_GROUPS][ROWS], sums[KEY_GROUPS][ROWS];
    float factors[ROWS];
};

__device__ __forceinline__ void copy_round(const attention_decode_args &a, const job &j, const ring &r, int round,
                                           int warp, int lane)
{
    const places p = find_places(a, j, warp + WARPS * round, lane);
    const int slot = round % STAGES;
    copy_keys(a, r, slot, p, lane);
    if (!a.values_in_keys) copy_values(a, r, slot, p, lane);
    copies_commit();
}

/* The round is there for all warps, and the next one in flight. */
__device__ __forceinline__ void await_round(const attention_decode_args &a, const job &j, const ring &r, int round,
                                            int rounds, int warp, int lane)
{
    if constexpr (STAGES == 1) {
        __syncthreads();
        copy_round(a, j, r, round, warp, lane);
    }
    copies_wait<0>();
    __syncthreads();
    if constexpr (STAGES == 2)
        if (round + 1 < rounds) copy_round(a, j, r, round + 1, warp, lane);
}

/* The warp's scores; the largest of each row goes to tops. */
__device__ __forceinline__ void score(const attention_decode_args &a, const job &j, shared_state &m, scores_t &s, u32 q,
                                      u32 k, const range &whole, int round, int block, int group, float scale, int lane)
{
    const int key = j.part.from + round * ROUND + 16 * group;
    multiply_keys(s, q + block * 16 * Q_PITCH, k + group * 16 * K_PITCH, lane);
    u32 there = 0;
#pragma unroll
    for (int w = 0; w < 16 / KEYS; w++)
        there |= m.there[(group * (16 / KEYS) + w) * STAGES + round % STAGES] << KEYS * w;
    const bool border = there != 0xffff || key < whole.from || key + 16 > whole.to;
    make_scores(a, s, m.rows + 16 * block, key, border, &there, scale, lane);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = NOTHING;
#pragma unroll
        for (int t = 0; t < TILES; t++) top = fmaxf(top, fmaxf(s[0][t][2 * half], s[0][t][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (lane % 4 == 0) m.tops[group][16 * block + 8 * half + lane / 4] = top;
    }
}

/* Weights about the maximum of all groups, to shared memory; what it raised scales what was summed before. */
__device__ __forceinline__ void weigh(shared_state &m, state &st, scores_t &s, char *p, int block, int group, int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = 16 * block + 8 * half + lane / 4;
        float top = st.max[half];
#pragma unroll
        for (int g = 0; g < KEY_GROUPS; g++) top = fmaxf(top, m.tops[g][r]);
        const float center = top == NOTHING ? 0 : top, scale = exp2_of(st.max[half] - center);
        float sum = 0;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float low = exp2_of(s[0][t][2 * half] - center), high = exp2_of(s[0][t][2 * half + 1] - center);
            sum += low + high;
            *(u32 *)(p + r * P_PITCH + 2 * (16 * group + 8 * t + lane % 4 * 2)) = pack_pair(low, high);
        }
        st.sum[half] = st.sum[half] * scale + sum;
        st.max[half] = top;
        if (group == 0 && lane % 4 == 0) m.factors[r] = scale;
    }
}

__device__ __forceinline__ void rescale(const shared_state &m, values_t &o, int lane)
{
    float factors[ROW_BLOCKS][2];
    bool raised = false;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            factors[b][half] = m.factors[16 * b + 8 * half + lane / 4];
            raised = raised || factors[b][half] != 1;
        }
    if (!__any_sync(0xffffffffu, raised)) return;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[b][c][e] *= factors[b][e / 2];
}

/* v: of the warp's first column. */
__device__ __forceinline__ void add_values(values_t &o, u32 p, u32 v, int pitch, int lane)
{
    p += lane % 16 * P_PITCH + lane / 16 * 16;
    v += lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < ROUND / 16; k++) {
        u32 weights[ROW_BLOCKS][4];
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; b++)
            load_matrices(weights[b][0], weights[b][1], weights[b][2], weights[b][3], p + b * 16 * P_PITCH + k * 32);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 w[2][2];
            load_transposed(w[0][0], w[0][1], w[1][0], w[1][1], v + k * 16 * pitch + step * 32);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; b++) unit::multiply(o[b][2 * step + i], weights[b], w[i]);
        }
    }
}

/* What sums of each row are multiplied by; the logarithm, or a split's statistics, go to memory. */
__device__ __forceinline__ void finish_rows(const attention_decode_args &a, const job &j, shared_state &m)
{
    const int r = (int)threadIdx.x;
    if (r < j.rows) {
        const float max = m.tops[0][r];
        float sum = 0, factor = 1;
#pragma unroll
        for (int g = 0; g < KEY_GROUPS; g++) sum += m.sums[g][r];
        if (a.splits > 1)
            *(float2 *)(a.stats + 2 * place_of(a, j, r)) = make_float2(max, r < j.valid ? sum : FOREIGN);
        else
            factor = finish(a, j, r, max, sum, true);
        m.factors[r] = factor;
    }
    __syncthreads();
}

/* 16 rows at a time through the warp's own piece of memory. */
__device__ __forceinline__ void store_values(const attention_decode_args &a, const job &j, const shared_state &m,
                                             const values_t &o, float *memory, int warp, int lane)
{
    constexpr int QUADS = 2 * COLUMNS;
    float *own = memory + warp * 16 * OUT_PITCH;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++) {
        __syncwarp();
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(own + (lane / 4 + 8 * half) * OUT_PITCH + 8 * c + lane % 4 * 2) =
                    make_float2(o[b][c][2 * half], o[b][c][2 * half + 1]);
        __syncwarp();
#pragma unroll 1
        for (int e = lane; e < 16 * QUADS; e += 32) {
            const int inside = e / QUADS, r = 16 * b + inside, c = 8 * COLUMNS * warp + e % QUADS * 4;
            if (r >= j.rows || c >= a.dv) continue;
            const float4 sums = *(const float4 *)(own + inside * OUT_PITCH + e % QUADS * 4);
            if (a.splits > 1) {
                *(float4 *)(a.partial + place_of(a, j, r) * ((a.dv + 3) / 4 * 4) + c) = sums;
            } else {
                const line l = line_of(a, j, r);
                store_columns(a, j.batch, l.head, l.row, c, sums, m.factors[r]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_latent(const __grid_constant__ attention_decode_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ shared_state m;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int block = warp % ROW_BLOCKS, group = warp / ROW_BLOCKS;
    const bool scores = group < KEY_GROUPS;
    job j;
    if (!find_job(a, blockIdx.x, j)) return;
    const int keys = max(j.part.to - j.part.from, 0), rounds = (keys + ROUND - 1) / ROUND;
    char *k = memory + Q_BYTES, *v = k + STAGES * K_BYTES, *p = memory + Q_BYTES + RING_BYTES;
    const ring r = {k + warp * KEYS * K_PITCH, v + warp * KEYS * V_PITCH, m.there + warp * STAGES,
                    find_lane<K_STEPS>(a.k, j.head, lane), find_lane<V_STEPS>(a.v, j.head, lane)};
    state st = {{NOTHING, NOTHING}, {0, 0}};
    values_t o;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; b++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[b][c][e] = 0;
    if (rounds > 0) {
        if constexpr (STAGES == 2) copy_round(a, j, r, 0, warp, lane);
        load_queries(a, j, memory, m.rows);
        const float scale = a.scale * (a.scale_k.data ? load_float(a.scale_k, j.head) : 1);
        const range whole = {keys_of(a, j, query_of(a, j.first + j.valid - 1)).from,
                             keys_of(a, j, query_of(a, j.first)).to};
        const int pitch = a.values_in_keys ? K_PITCH : V_PITCH;
#pragma unroll 1
        for (int i = 0; i < rounds; i++) {
            const char *own_k = k + i % STAGES * K_BYTES;
            const char *own_v = a.values_in_keys ? own_k : v + i % STAGES * V_BYTES;
            scores_t s;
            await_round(a, j, r, i, rounds, warp, lane);
            if (scores)
                score(a, j, m, s, shared_address(memory), shared_address(own_k), whole, i, block, group, scale, lane);
            __syncthreads();
            if (scores) weigh(m, st, s, p, block, group, lane);
            __syncthreads();
            rescale(m, o, lane);
            add_values(o, shared_address(p), shared_address(own_v) + warp * STEPS * 32, pitch, lane);
        }
    }
    if (scores)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 16 * block + 8 * half + lane / 4;
            float sum = st.sum[half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (lane % 4 == 0) {
                m.sums[group][row] = sum;
                if (group == 0) m.tops[0][row] = st.max[half];
            }
        }
    __syncthreads();
    finish_rows(a, j, m);
    store_values(a, j, m, o, (float *)(memory + Q_BYTES), warp, lane);
}
