/* SPDX-License-Identifier: Apache-2.0
 * The part of Hopper's attention kernel between the products: scores in accumulators become weights,
 * row by row over tiles of keys. A thread has two rows, a row is spread over four threads. Scores are in
 * units of log 2 once they are multiplied by `unit`; of NATURAL ones, which biases may have brought to the
 * ends of f32, only differences are. */
#pragma once
#include "ops/attention/sm90/sm90.cuh"
#include "ops/attention/sm90/sm90_store.cuh"

constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
constexpr bool NATURAL = BIAS;
constexpr int SCORES = KEYS / 2; /* of a thread */
constexpr float SLACK = 8;

__device__ __forceinline__ float exp2_of(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

__device__ __forceinline__ float log2_of(float v)
{
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* A finite number in units of log 2 is finite: LOG2E times a number near the end of f32 would not be. */
__device__ __forceinline__ float in_log2(float v)
{
    constexpr float MOST = 2.2e38f;
    v = v > MOST && v < INFINITY_F ? MOST : v;
    return LOG2E * (v < -MOST && v > -INFINITY_F ? -MOST : v);
}

struct state {
    float max[2], sum[2]; /* sum: this thread's columns only */
};

/* A thread's two rows: `row` of the sequence and eight further on. */
struct lines {
    const job &j;
    int row;
};

/* Where the score of a row and a key lies; behind the last one, somewhere. */
__device__ __forceinline__ s64 place_of(const attention_sm90_args &a, const lines &l, const long long (&stride)[4], int row,
                                        int key)
{
    const int i = min(row, a.rows - 1), j = min(key, a.keys - 1);
    return l.j.n * stride[0] + l.j.head * stride[1] + i * stride[2] + j * stride[3];
}

__device__ __forceinline__ float score_of(const attention_sm90_args &a, const lines &l, float v, int row, int key,
                                          float slope)
{
    v *= a.scale;
    /* tanh x = 1 - 2 / (exp 2x + 1): the error is small beside the cap */
    if constexpr (CAP) v = a.cap * (1 - __fdividef(2.0f, exp2_of(v * a.cap_inverse) + 1));
    if constexpr (ALIBI) v -= slope * (float)abs(key - row - l.j.shift);
    if constexpr (BIAS) v += widen<float>(((const bias_t *)a.bias.data)[place_of(a, l, a.bias.stride, row, key)]);
    return v;
}

/* By a whole warp: pieces of the tile whose pages are absent, a bit each. */
__device__ __forceinline__ u32 absent_pieces(const attention_sm90_args &a, const job &j, int tile)
{
    if constexpr (PIECE == 0) return 0;
    const int piece = (int)threadIdx.x % 32, key = tile * KEYS + piece * RUN;
    return __ballot_sync(0xffffffffu, piece * RUN < KEYS && page_of(a, j.n, key) < 0);
}

/* Of a thread's columns, two of each eight of a tile, the 32 from number `first` on: a bit for each that lies before
 * `end`. */
__device__ __forceinline__ u32 columns_before(int end, int first)
{
    const int inside = max(end, 0), count = inside / 8 * 2 + min(inside % 8, 2) - first;
    return count >= 32 ? 0xffffffffu : (1u << max(count, 0)) - 1;
}

/* Products become scores; those that a row does not see, -infinity. */
__device__ __forceinline__ void make_scores(const attention_sm90_args &a, const lines &l, float (&s)[SCORES], int key,
                                            bool border, u32 absent)
{
    key += (int)threadIdx.x % 4 * 2;
    if constexpr (!PLAIN) {
        const float slope = ALIBI ? (NATURAL ? 1 : LOG2E) * a.slopes[l.j.head * a.slopes_stride] : 0;
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            s[i] = score_of(a, l, s[i], l.row + i / 2 % 2 * 8, key + i / 4 * 8 + i % 2, slope);
            /* A few loads and their addresses at a time: registers are short. */
            if (i % 4 == 3) asm volatile("" : "+f"(s[i]), "+r"(key)::"memory");
        }
    }
    if constexpr (MASK)
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            const int row = l.row + i / 2 % 2 * 8, column = key + i / 4 * 8 + i % 2;
            if (!((const u8 *)a.mask.data)[place_of(a, l, a.mask.stride, row, column)]) s[i] = -INFINITY_F;
            if (i % 4 == 3) asm volatile("" : "+f"(s[i]), "+r"(key)::"memory");
        }
    if constexpr (PIECE > 0)
        if (absent)
#pragma unroll
            for (int i = 0; i < SCORES; i++)
                if (absent >> i / 4 * 8 / RUN & 1) s[i] = -INFINITY_F;
    if (!border) return;
    const range seen[2] = {keys_of(a, l.j, l.row), keys_of(a, l.j, l.row + 8)};
    /* The assembler moves bits to predicates several at a time: comparing each column with both ends takes longer. */
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int first = 0; first < SCORES / 2; first += 32) {
            const u32 shown = columns_before(seen[half].to - key, first) & ~columns_before(seen[half].from - key, first);
#pragma unroll
            for (int i = first; i < min(first + 32, SCORES / 2); i++)
                if (!(shown >> (i - first) & 1)) s[i / 2 * 4 + half * 2 + i % 2] = -INFINITY_F;
        }
}

/* The largest scores of both rows. As integers, of which one instruction compares three, numbers are in order if
 * one at least is positive: rows without one are looked at again, and tiles where such rows are to be expected as
 * numbers at once. */
__device__ __forceinline__ void find_tops(const float (&s)[SCORES], bool border, float (&tops)[2])
{
    /* Two of each row: shorter chains. */
    if (!border) {
        s32 most[4] = {(s32)0x80000000, (s32)0x80000000, (s32)0x80000000, (s32)0x80000000};
#pragma unroll
        for (int i = 0; i < SCORES; i += 2) {
            s32 &own = most[i / 2 % 4];
            own = max(max(own, __float_as_int(s[i])), __float_as_int(s[i + 1]));
        }
        bool positive = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            s32 top = max(most[half], most[half + 2]);
            top = max(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = max(top, __shfl_xor_sync(0xffffffffu, top, 2));
            positive = positive && top >= 0;
            tops[half] = __int_as_float(top);
        }
        if (__all_sync(0xffffffffu, positive)) return;
    }
    float most[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < SCORES; i++) most[i % 4] = fmaxf(most[i % 4], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = fmaxf(most[2 * half], most[2 * half + 1]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        tops[half] = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    }
}

/* What becomes of a tile's scores: weights about a center, and their sums as they are made. */
struct weighing {
    float minus[2], scale[2]; /* of each row: the center; what sums so far are to be multiplied by */
    float sums[4];            /* two of each row: shorter chains */
    bool moved;               /* some rows of the warp have another center now: scale is not 1 */
};

/* A maximum that grows by up to SLACK stays the center (after FlashAttention-4, Zadouri and others 2026): weights
 * are 2^SLACK at most, and what there is of sums needs no scaling. */
__device__ __forceinline__ weighing find_centers(state &st, const float (&s)[SCORES], float unit, bool border)
{
    weighing w;
    float tops[2];
    bool moves[2];
    find_tops(s, border, tops);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float old = st.max[half];
        moves[half] = NATURAL ? (tops[half] - old) * unit > SLACK : tops[half] * unit - SLACK > old * unit;
        if (moves[half]) st.max[half] = tops[half];
        /* A row that has seen no key yet has no maximum. */
        const float center = st.max[half] == -INFINITY_F ? 0 : NATURAL ? st.max[half] : st.max[half] * unit;
        w.minus[half] = -center;
        w.scale[half] = moves[half] ? exp2_of(NATURAL ? (old - center) * unit : old * unit - center) : 1;
        w.sums[2 * half] = st.sum[half] * w.scale[half];
        w.sums[2 * half + 1] = 0;
    }
    w.moved = __any_sync(0xffffffffu, moves[0] || moves[1]);
    return w;
}

/* Scores become weights. */
__device__ __forceinline__ void make_weights(state &st, weighing &w, float (&s)[SCORES], float unit)
{
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        s[i] = exp2_of(NATURAL ? (s[i] + w.minus[i / 2 % 2]) * unit : s[i] * unit + w.minus[i / 2 % 2]);
        w.sums[i % 4] += s[i];
    }
    st.sum[0] = w.sums[0] + w.sums[1];
    st.sum[1] = w.sums[2] + w.sums[3];
}

/* Never true; asked by a whole warp. The assembler does not know: it makes the sums beside the exponentials, as they
 * were written, and not behind the branch that asks this. */
__device__ __forceinline__ bool is_negative(const state &st)
{
    return __any_sync(0xffffffffu, st.sum[0] + st.sum[1] < 0);
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
        float top = st.max[half] == -INFINITY_F ? -INFINITY_F : NATURAL ? st.max[half] : st.max[half] * unit, share = 1;
        if constexpr (SINKS) {
            const float given = widen<float>(((const sink_t *)a.sinks)[head * a.sinks_stride]);
            const float sink = NATURAL ? given : in_log2(given), back = NATURAL ? LOG2E : 1;
            const float both = fmaxf(top, sink), center = both == -INFINITY_F ? 0 : both;
            share = exp2f((top - center) * back); /* not flushed to 0: bf16 has what is below 2^-126 */
            sum = sum * share + (sink == center ? 1 : exp2f((sink - center) * back)); /* +inf takes all */
            top = both;
        }
        const bool some = real[half] && sum != 0; /* NaN goes on */
        f.factor[half] = some ? __fdividef(share, sum) : 0; /* sums are no subnormal numbers: no branch */
        f.lse[half] = !some ? -INFINITY_F : NATURAL ? top + log2_of(sum) * LN2 : (top + log2_of(sum)) * LN2;
    }
    return f;
}

/* Where a thread's sums of a job go, `line` being the first of its two rows, once the log-sum-exp is stored. They are
 * multiplied by `more` besides. */
__device__ __forceinline__ rows_of<out_t> finish_job(const attention_sm90_args &a, const job &j, const state &st, int line,
                                                     float unit, float more)
{
    const bool real[2] = {line < j.valid, line + 8 < j.valid};
    const finish f = finish_rows(a, st, unit, j.head, real);
    const int row = j.row + line;
    out_t *to = (out_t *)a.out + j.batch * a.out_stride[0] + j.head * a.out_stride[1] + row * a.out_stride[2];
    const rows_of<out_t> r = {{to, to + 8 * a.out_stride[2]},
                              {line < j.rows, line + 8 < j.rows},
                              {f.factor[0] != 0, f.factor[1] != 0},
                              {f.factor[0] * more, f.factor[1] * more},
                              a.out_stride[3],
                              a.dv,
                              a.whole != 0};
    if (LSE && threadIdx.x % 4 == 0) {
        float *lse = a.lse + j.batch * a.lse_stride[0] + j.head * a.lse_stride[1] + row * a.lse_stride[2];
        if (r.there[0]) lse[0] = f.lse[0];
        if (r.there[1]) lse[8 * a.lse_stride[2]] = f.lse[1];
    }
    return r;
}
