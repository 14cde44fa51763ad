/* SPDX-License-Identifier: Apache-2.0
 * The part of Hopper's attention kernel between the products: scores in accumulators become weights,
 * row by row over tiles of keys. A thread has two rows, a row is spread over four threads. Scores are in
 * units of log 2 once they are multiplied by `unit`. */
#pragma once
#include "ops/attention/attention_sm90.cuh"

constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
constexpr int SCORES = KEYS / 2; /* of a thread */

__device__ __forceinline__ float exp2_of(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

struct state {
    float max[2], sum[2]; /* sum: this thread's columns only */
};

/* A thread's two rows: `row` of the sequence and eight further on. */
struct lines {
    const job &j;
    int row;
};

__device__ __forceinline__ float score_of(const attention_sm90_args &a, const lines &l, float v, int row, int key,
                                          float slope)
{
    v *= a.scale;
    /* tanh x = 1 - 2 / (exp 2x + 1): the error is small beside the cap */
    if constexpr (CAP) v = a.cap * (1 - __fdividef(2.0f, exp2_of(v * a.cap_inverse) + 1));
    if constexpr (ALIBI) v -= slope * (float)abs(key - row - l.j.shift);
    if constexpr (BIAS || MASK) {
        const int i = min(row, a.rows - 1), j = min(key, a.keys - 1);
        if constexpr (BIAS) {
            const long long *s = a.bias.stride;
            const s64 at = l.j.n * s[0] + l.j.head * s[1] + i * s[2] + j * s[3];
            v += LOG2E * widen<float>(((const bias_t *)a.bias.data)[at]);
        }
        if constexpr (MASK) {
            const long long *s = a.mask.stride;
            const s64 at = l.j.n * s[0] + l.j.head * s[1] + i * s[2] + j * s[3];
            if (!((const u8 *)a.mask.data)[at]) v = -INFINITY_F;
        }
    }
    return v;
}

/* By a whole warp: pieces of the tile whose pages are absent, a bit each. */
__device__ __forceinline__ u32 absent_pieces(const attention_sm90_args &a, const job &j, int tile)
{
    if constexpr (PIECE == 0) return 0;
    const int piece = (int)threadIdx.x % 32, key = tile * KEYS + piece * RUN;
    return __ballot_sync(0xffffffffu, piece * RUN < KEYS && page_of(a, j.n, key) < 0);
}

/* Products become scores; those that a row does not see, -infinity. */
__device__ __forceinline__ void make_scores(const attention_sm90_args &a, const lines &l, float (&s)[SCORES], int key,
                                            bool border, u32 absent)
{
    key += (int)threadIdx.x % 4 * 2;
    if constexpr (!PLAIN) {
        const float slope = ALIBI ? LOG2E * a.slopes[l.j.head * a.slopes_stride] : 0;
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            s[i] = score_of(a, l, s[i], l.row + i / 2 % 2 * 8, key + i / 4 * 8 + i % 2, slope);
            /* A few loads and their addresses at a time: registers are short. */
            if (i % 4 == 3) asm volatile("" : "+f"(s[i]), "+r"(key)::"memory");
        }
    }
    if constexpr (PIECE > 0)
        if (absent)
#pragma unroll
            for (int i = 0; i < SCORES; i++)
                if (absent >> i / 4 * 8 / RUN & 1) s[i] = -INFINITY_F;
    if (!border) return;
    const range seen[2] = {keys_of(a, l.j, l.row), keys_of(a, l.j, l.row + 8)};
    const int from[2] = {seen[0].from - key, seen[1].from - key}, to[2] = {seen[0].to - key, seen[1].to - key};
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const int column = i / 4 * 8 + i % 2, half = i / 2 % 2;
        if (column < from[half] || column >= to[half]) s[i] = -INFINITY_F;
    }
}

/* Scores become weights about the new maximum, times 2^lift; `scale` is what sums so far are to be multiplied
 * by. */
__device__ __forceinline__ void make_weights(state &st, float (&s)[SCORES], float unit, float (&scale)[2],
                                             float lift = 0)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float tops[2] = {s[2 * half], s[2 * half + 1]}; /* shorter chains */
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (i / 2 % 2 == half) tops[i % 2] = fmaxf(tops[i % 2], s[i]);
        float top = fmaxf(tops[0], tops[1]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(top, st.max[half]);
        /* A row that has seen no key yet has no maximum. */
        const float center = top == -INFINITY_F ? 0 : top * unit;
        scale[half] = exp2_of(st.max[half] * unit - center);
        st.max[half] = top;
        float sums[2] = {st.sum[half] * scale[half], 0};
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            if (i / 2 % 2 != half) continue;
            s[i] = exp2_of(s[i] * unit - (center - lift));
            sums[i % 2] += s[i];
        }
        st.sum[half] = sums[0] + sums[1];
    }
}

/* ---- results ---- */

struct finish {
    float factor[2]; /* of sums */
    float lse[2];
};

/* By whole quads: sums of the four threads, the sink, the logarithm. */
__device__ __forceinline__ finish finish_rows(const attention_sm90_args &a, const state &st, float unit, int head,
                                              const bool (&real)[2])
{
    finish f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = st.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float top = st.max[half] == -INFINITY_F ? -INFINITY_F : st.max[half] * unit, share = 1;
        if constexpr (SINKS) {
            const float sink = LOG2E * widen<float>(((const sink_t *)a.sinks)[head * a.sinks_stride]);
            const float both = fmaxf(top, sink), center = both == -INFINITY_F ? 0 : both;
            share = exp2f(top - center); /* not flushed to 0: bf16 has what is below 2^-126 */
            sum = sum * share + exp2f(sink - center);
            top = both;
        }
        const bool some = real[half] && sum != 0; /* NaN goes on */
        f.factor[half] = some ? __fdividef(share, sum) : 0; /* sums are no subnormal numbers: no branch */
        f.lse[half] = some ? top * LN2 + log_of(sum) : -INFINITY_F;
    }
    return f;
}
