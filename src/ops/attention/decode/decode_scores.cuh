/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries: a warp's products of a tile, with 8-bit elements widened in flight, and what
 * lies between them, from scores to weights. Constants: those of decode.cu. */
#pragma once
#include "kernels/mma.cuh"
#include "ops/attention/decode/decode.cuh"
#include "ops/attention/decode/decode_job.cuh"

/* What scores need to know of a row. */
struct row {
    range seen;
    int diagonal;
    float slope;
};

typedef float scores_t[BLOCKS][TILES][4];
typedef float sums_t[BLOCKS][COLUMNS][4];

/* A thread has rows lane / 4 + 8 i of each warp's ROWS. */
struct state {
    float max[2 * BLOCKS], sum[2 * BLOCKS];
};

/* ---- 8-bit elements become 16-bit ones ---- */

template <typename T> constexpr bool IS_F16 = false;
template <> constexpr bool IS_F16<f16> = true;

__device__ __forceinline__ u32 pack_pair(float low, float high)
{
    const q_t l = narrow<q_t>(low), h = narrow<q_t>(high);
    return (u32)l.bits | (u32)h.bits << 16;
}

/* From two f16. */
__device__ __forceinline__ u32 from_halves(u32 halves)
{
    if constexpr (IS_F16<q_t>) return halves;
    return pack_pair(to_float(f16{(u16)halves}), to_float(f16{(u16)(halves >> 16)}));
}

/* Bytes X and Y of a word as two q_t: exact. */
template <typename T> struct pair_of {
    template <int X, int Y> static __device__ __forceinline__ u32 get(u32 word) { return word; } /* not called */
};
template <> struct pair_of<e5m2> {
    template <int X, int Y> static __device__ __forceinline__ u32 get(u32 word)
    {
        return from_halves(__byte_perm(word, 0, Y << 12 | 4 << 8 | X << 4 | 4));
    }
};
template <> struct pair_of<e4m3> {
    template <int X, int Y> static __device__ __forceinline__ u32 get(u32 word)
    {
        if constexpr (CONVERTS_FLOAT8) {
            u32 halves;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)__byte_perm(word, 0, Y << 4 | X)));
            return from_halves(halves);
        }
        return pack_pair(to_float(e4m3{(u8)(word >> 8 * X)}), to_float(e4m3{(u8)(word >> 8 * Y)}));
    }
};
/* 2^23 + 128 + v is exact, and its last byte is v + 128. */
template <> struct pair_of<s8> {
    template <int X> static __device__ __forceinline__ float one(u32 word)
    {
        return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 7 << 12 | 5 << 8 | 5 << 4 | X)) - 8388736.0f;
    }
    template <int X, int Y> static __device__ __forceinline__ u32 get(u32 word)
    {
        return pack_pair(one<X>(word), one<Y>(word));
    }
};

/* ---- products ---- */

typedef matrix_unit<q_t, q_t> unit;

__device__ __forceinline__ void multiply_keys(scores_t &s, u32 q, u32 k, int lane)
{
    constexpr int HALVES = 2 / SIZE; /* steps of 16 columns in 32 bytes */
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[b][t][e] = 0;
    q += lane % 16 * Q_PITCH + lane / 16 * 16;
    k += (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < K_STEPS; step++) {
        u32 rows[HALVES][BLOCKS][4];
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                load_matrices(rows[h][b][0], rows[h][b][1], rows[h][b][2], rows[h][b][3],
                              q + b * 16 * Q_PITCH + (step * HALVES + h) * 32);
#pragma unroll
        for (int t = 0; t < TILES; t += 2) {
            u32 w[2][2]; /* of keys and of keys 8 further on: words of 16 bytes each */
            load_matrices(w[0][0], w[0][1], w[1][0], w[1][1], k + t * 8 * K_PITCH + step * 32);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    u32 columns[2] = {w[i][0], w[i][1]};
                    if constexpr (SIZE == 1) {
                        columns[0] = pair_of<kv_t>::template get<0, 1>(w[i][h]);
                        columns[1] = pair_of<kv_t>::template get<2, 3>(w[i][h]);
                    }
#pragma unroll
                    for (int b = 0; b < BLOCKS; b++) unit::multiply(s[b][t + i], rows[h][b], columns);
                }
        }
    }
}

/* Accumulators of 16 keys are, in 16 bits, the operand of 16 terms. */
__device__ __forceinline__ void multiply_values(sums_t &o, const scores_t &s, u32 v, int lane)
{
    v += lane % 16 * V_PITCH + lane / 16 * 16;
#pragma unroll
    for (int t = 0; t < TILES; t += 2) {
        u32 weights[BLOCKS][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                weights[b][i] = pack_pair(s[b][t + i / 2][i % 2 * 2], s[b][t + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int step = 0; step < V_STEPS; step++) {
            u32 w[2][2]; /* of 16 bytes of columns: keys and keys 8 further on */
            load_transposed(w[0][0], w[0][1], w[1][0], w[1][1], v + t * 8 * V_PITCH + step * 32);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if constexpr (SIZE == 2) {
#pragma unroll
                    for (int b = 0; b < BLOCKS; b++) unit::multiply(o[b][2 * step + i], weights[b], w[i]);
                } else {
                    /* A word has two columns of two keys. */
                    const u32 even[2] = {pair_of<kv_t>::template get<0, 2>(w[i][0]), pair_of<kv_t>::template get<0, 2>(w[i][1])};
                    const u32 odd[2] = {pair_of<kv_t>::template get<1, 3>(w[i][0]), pair_of<kv_t>::template get<1, 3>(w[i][1])};
#pragma unroll
                    for (int b = 0; b < BLOCKS; b++) {
                        unit::multiply(o[b][4 * step + 2 * i], weights[b], even);
                        unit::multiply(o[b][4 * step + 2 * i + 1], weights[b], odd);
                    }
                }
            }
        }
    }
}

/* ---- scores ---- */

/* Products become scores, those that a row does not see -infinity. key: the tile's first. */
__device__ __forceinline__ void make_scores(const attention_decode_args &a, scores_t &s, const row *rows, int key,
                                            bool border, const u32 *there, float scale, int lane)
{
    const int column = lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[b][t][e] *= scale;
    if (a.cap > 0) {
        /* tanh x = 1 - 2 / (exp 2x + 1): the error is small beside the cap */
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[b][t][e] = a.cap * (1 - __fdividef(2.0f, exp2_of(s[b][t][e] * a.cap_inverse) + 1));
    }
    if (!border && !a.slopes.data) return;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const row x = rows[16 * b + lane / 4 + 8 * half];
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int inside = 8 * t + column + e, at = key + inside;
                    float &v = s[b][t][2 * half + e];
                    v -= x.slope * (float)abs(at - x.diagonal);
                    const bool here = there[t / 4] >> (t % 4 * 8 + column + e) & 1;
                    if (!here || at < x.seen.from || at >= x.seen.to) v = NOTHING;
                }
        }
}

/* Scores become weights about the maximum, which they may raise; so do sums so far. */
__device__ __forceinline__ void make_weights(state &st, scores_t &s, sums_t &o)
{
    float scale[2 * BLOCKS];
    bool raised = false;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        float top = st.max[i];
#pragma unroll
        for (int t = 0; t < TILES; t++)
            top = fmaxf(top, fmaxf(s[i / 2][t][i % 2 * 2], s[i / 2][t][i % 2 * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        /* A row that has seen no key yet has no maximum. */
        const float center = top == NOTHING ? 0 : top;
        scale[i] = exp2_of(st.max[i] - center);
        raised = raised || top != st.max[i];
        st.max[i] = top;
        float sum = 0;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &v = s[i / 2][t][i % 2 * 2 + e];
                v = exp2_of(v - center);
                sum += v;
            }
        st.sum[i] = st.sum[i] * scale[i] + sum;
    }
    if (!__any_sync(0xffffffffu, raised)) return;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[b][c][e] *= scale[2 * b + e / 2];
}
