/* SPDX-License-Identifier: Apache-2.0
 * The walk over slices on a GPU, any strides: THREADS share a slice, or a part of one, and their states
 * merge in a fixed order; or, where slices lie side by side, each thread of a group has BESIDE of them.
 * An operation's .cu includes this, then defines what a state is. Constants: those of kernels/slices.cuh,
 * BESIDE, ROWS (0: a slice is one row; 1: rows are one stride apart; 2: they lie as their layout says),
 * FAR (slices may have 2^31 elements), INDEXED (positions are asked for), ORDERED (and are the elements'
 * numbers in the walk). Types x_t. */
#pragma once
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/pairs.cuh"
#include "kernels/slices.cuh"
#include "kernels/states.cuh"
#include "ops/reduce/reduce_args.h"

#define REDUCE __device__ __forceinline__

static_assert(BESIDE == 1 || VECTOR == 1, "accesses lie along the axis or across it");
static_assert(!RAGGED || (ALONG && ROWS == 0 && BESIDE == 1 && THREADS >= 32), "a thread for each element at the ends");

/* Accesses in flight, and how far those of a thread are apart. Across the axis they follow each other. */
constexpr int WIDTH = BESIDE > 1 ? BESIDE : VECTOR, AHEAD = WIDTH * (int)sizeof(x_t) >= 16 ? 4 : 8;
constexpr int STEP = BESIDE > 1 ? 1 : THREADS, NEXT = BESIDE > 1 ? AHEAD : 1;
/* Of a slice, neighbouring elements of a batch in a thread. */
constexpr int UNIT = BESIDE > 1 ? AHEAD : WIDTH;

/* ---- elements ---- */

constexpr bool BYTES_OF_8 = same_type<x_t, e4m3> || same_type<x_t, e5m2>;
constexpr bool FLOATING = BYTES_OF_8 || same_type<x_t, float> || same_type<x_t, double> || same_type<x_t, f16> || same_type<x_t, bf16>;

/* Floats in f32, or f64, integers as they are. */
template <typename T, bool WIDENED> struct value_of {
    typedef T type;
};
template <typename T> struct value_of<T, true> {
    typedef float type;
};
typedef typename value_of<x_t, FLOATING && !same_type<x_t, double>>::type value_t;

template <int N, typename T> REDUCE void widen_access(const lanes<T, N> &raw, value_t *v)
{
    if constexpr (same_type<T, double> || (BYTES_OF_8 && N == 1)) {
        unpack(raw, v);
    } else if constexpr (FLOATING && !BYTES_OF_8) {
        unpack_pairs(raw, v);
    } else if constexpr (FLOATING) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) widen_pair(T(), (u16)(raw.words[i / 2] >> (i % 2 * 16)), v + 2 * i);
    } else {
        memcpy(v, raw.words, N * sizeof *v);
    }
}

/* What an operation defines:
 *   state_begin(s)                   a struct of words of 32 bits; running_begin(r): one that a thread adds to
 *   running_add<N>(r, v, present, position, begins)
 *                                    N values, of which those that are present count, the first always; where
 *                                    ORDERED `position` is asked for the first of UNIT only; `begins`: no
 *                                    values came before
 *   running_end(r, seen)             the state of so many values
 *   state_merge(s, other)            `other` comes later
 *   state_settle(s, value)           where ORDERED: of the UNIT elements that s says, which; value(position) */
template <typename S> REDUCE void state_begin(S &s);
template <typename S> REDUCE void state_merge(S &s, const S &other);

/* ---- merging ---- */

/* Of `lanes` neighbouring lanes, a power of two: in the first of them. */
template <typename S> REDUCE void state_merge_lanes(S &s, int lanes)
{
    for (int lane = lanes / 2; lane > 0; lane /= 2)
        state_merge(s, state_by_words(s, [&](u32 word) { return __shfl_down_sync(0xffffffffu, word, lane); }));
}

constexpr int BLOCK = THREADS * SLICES, GROUP_WARPS = ALONG ? (THREADS + 31) / 32 : THREADS;
constexpr int SCRATCH = GROUP_WARPS == 1 ? 1 : ALONG ? BLOCK / 32 : BLOCK * BESIDE;

/* Of all threads of a slice: in the first of them. */
template <typename S> REDUCE void state_merge_group(S (&s)[BESIDE], S *scratch)
{
    if constexpr (ALONG) {
        state_merge_lanes(s[0], THREADS < 32 ? THREADS : 32);
        if constexpr (GROUP_WARPS > 1) {
            if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = s[0];
            __syncthreads();
            if (thread_in_slice() < 32) {
                if (thread_in_slice() < GROUP_WARPS) s[0] = scratch[threadIdx.x / 32 + thread_in_slice()];
                state_merge_lanes(s[0], GROUP_WARPS);
            }
            __syncthreads(); /* the scratch is used again */
        }
    } else if constexpr (GROUP_WARPS > 1) {
#pragma unroll
        for (int k = 0; k < BESIDE; k++) scratch[threadIdx.x * BESIDE + k] = s[k];
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (thread_in_slice() >= half) continue;
#pragma unroll
            for (int k = 0; k < BESIDE; k++) {
                state_merge(s[k], scratch[(threadIdx.x + half * SLICES) * BESIDE + k]);
                scratch[threadIdx.x * BESIDE + k] = s[k];
            }
        }
        __syncthreads();
    }
}

/* ---- the walk ---- */

/* Where access q of a slice lies, from its first element, and the position of that. */
struct place {
    long long at, index;
};
REDUCE place find_place(const mica_reduce_args &a, long long q)
{
    place p = {q * VECTOR * (VECTOR > 1 ? 1 : a.along), 0};
    if constexpr (ROWS == 0) {
        if constexpr (INDEXED && !ORDERED) p.index = q * VECTOR * a.index_along;
        return p;
    }
    long long row, i, at[2];
    if constexpr (FAR) {
        row = q / (a.n / VECTOR), i = (q - row * (a.n / VECTOR)) * VECTOR;
    } else {
        const unsigned number = mica_fastdiv_of(a.per_row, (unsigned)q);
        row = number, i = ((unsigned)q - number * a.per_row.divisor) * VECTOR;
    }
    if constexpr (ROWS > 1) layout_offsets<INDEXED && !ORDERED ? 2 : 1>(a.rows, row, at);
    else at[0] = row * a.rows.strides[0][0], at[1] = row * a.rows.strides[1][0];
    p.at = at[0] + i * (VECTOR > 1 ? 1 : a.along);
    if constexpr (INDEXED && !ORDERED) p.index = at[1] + i * a.index_along;
    return p;
}

/* A slice from its first access on, which begins `before` elements before it, and its elements. */
struct slice {
    const x_t *x;
    long long before, length;
};
REDUCE slice find_slice(const mica_reduce_args &a, const x_t *x)
{
    slice s = {x, 0, a.length};
    if constexpr (RAGGED) {
        if (a.whole) s.before = (long long)((u64)x / sizeof(x_t) % VECTOR);
        s.x -= s.before;
    }
    return s;
}

/* Accesses first, first + STEP, ... as they were read, and their positions. */
struct batch {
    lanes<x_t, WIDTH> raw[AHEAD];
    long long first, index[AHEAD];
};
template <typename Present> REDUCE void read_batch(const mica_reduce_args &a, const slice &s, bool whole, Present present, batch &t)
{
#pragma unroll
    for (int b = 0; b < AHEAD; b++) {
        if (!present(b)) continue;
        const place p = find_place(a, t.first + b * STEP);
        t.raw[b] = fetch<WIDTH>(s.x + p.at, whole);
        t.index[b] = p.index;
    }
}

template <typename R, typename Present>
REDUCE void add_batch(const mica_reduce_args &a, const slice &s, const batch &t, Present present, bool begins, R (&r)[BESIDE])
{
    value_t v[AHEAD][WIDTH];
#pragma unroll
    for (int b = 0; b < AHEAD; b++) widen_access(t.raw[b], v[b]);
    const auto position = [&](int i) {
        const int b = BESIDE > 1 ? i : i / WIDTH, k = i % VECTOR;
        if constexpr (ORDERED) return (t.first + b * STEP) * VECTOR + k - s.before;
        else return t.index[b] + k * a.index_along;
    };
    if constexpr (BESIDE > 1) {
#pragma unroll
        for (int k = 0; k < BESIDE; k++) {
            value_t column[AHEAD];
#pragma unroll
            for (int b = 0; b < AHEAD; b++) column[b] = v[b][k];
            running_add<AHEAD>(r[k], column, present, position, begins);
        }
    } else {
        running_add<AHEAD * WIDTH>(r[0], &v[0][0], [&](int i) { return present(i / WIDTH); }, position, begins);
    }
}

/* Accesses [from, to) of a slice, as many to each thread; returns how many of its elements the thread saw. */
template <typename R> REDUCE long long walk(const mica_reduce_args &a, const slice &s, long long from, long long to, R (&r)[BESIDE])
{
    long long seen = 0;
    batch t;
    t.first = from + thread_in_slice() * NEXT;
    if (a.whole) {
        const auto all = [](int) { return true; };
#pragma unroll 1
        for (; t.first + (AHEAD - 1) * STEP < to; t.first += AHEAD * THREADS) {
            read_batch(a, s, true, all, t);
            add_batch(a, s, t, all, seen == 0, r);
            seen += AHEAD * VECTOR;
        }
    }
#pragma unroll 1
    for (; t.first < to; t.first += AHEAD * THREADS) {
        const int left = (int)(to - t.first < AHEAD * STEP ? to - t.first : AHEAD * STEP);
        const auto inside = [=](int b) { return b * STEP < left; };
        if (a.whole) read_batch(a, s, true, inside, t);
        else read_batch(a, s, false, inside, t);
        add_batch(a, s, t, inside, seen == 0, r);
        seen += (left + STEP - 1) / STEP * VECTOR;
    }
    return seen;
}

/* Of one element. */
template <typename S> REDUCE S state_of_one(x_t x, long long position)
{
    typename S::running r;
    value_t v;
    lanes<x_t, 1> raw;
    memcpy(raw.words, &x, sizeof x);
    widen_access(raw, &v);
    running_begin(r);
    running_add<1>(r, &v, [](int) { return true; }, [=](int) { return position; }, true);
    return running_end(r, 1);
}

/* The states of accesses [from, end), which may reach behind the slice. */
template <typename S> REDUCE void state_walk(const mica_reduce_args &a, const slice &s, long long from, long long end, S (&state)[BESIDE])
{
    typename S::running r[BESIDE];
#pragma unroll
    for (int k = 0; k < BESIDE; k++) running_begin(r[k]);
    if constexpr (!RAGGED) {
        const long long seen = walk(a, s, from, end < a.vectors ? end : a.vectors, r);
#pragma unroll
        for (int k = 0; k < BESIDE; k++) state[k] = running_end(r[k], seen);
    } else {
        /* Elements before the first whole access, and behind the last one: a thread has one of them. */
        const long long whole = (s.before + s.length) / VECTOR, lead = s.before > 0;
        const int head = lead && from == 0 ? (int)(VECTOR - s.before) : 0;
        const int tail = from <= whole && whole < end ? (int)((s.before + s.length) % VECTOR) : 0;
        const int mine = thread_in_slice();
        const long long position = mine < head ? mine : s.length - tail + mine - head;
        x_t x;
        if (mine < head + tail) x = s.x[s.before + position];
        const long long seen = walk(a, s, from > lead ? from : lead, end < whole ? end : whole, r);
        state[0] = running_end(r[0], seen);
        if (mine < head + tail) state_merge(state[0], state_of_one<S>(x, position));
    }
}

/* Slices of a block and a part, or whole ones: done(slice, its offset in y, state) for each. */
template <typename S, typename Done> REDUCE void reduce_slices(const mica_reduce_args &a, Done done)
{
    __shared__ __align__(16) unsigned char memory[SCRATCH * sizeof(S)];
    const long long from = blockIdx.y * a.per_part;
    for (long long first = (long long)blockIdx.x * SLICES * BESIDE; first < a.kept.count;
         first += (long long)gridDim.x * SLICES * BESIDE) {
        const long long number = first + slice_in_block() * BESIDE;
        const bool inside = number < a.kept.count;
        long long at[2] = {0, 0};
        S s[BESIDE];
#pragma unroll
        for (int k = 0; k < BESIDE; k++) state_begin(s[k]);
        if (inside) {
            layout_offsets<2>(a.kept, number, at);
            state_walk(a, find_slice(a, (const x_t *)a.x + at[0]), from, from + a.per_part, s);
        }
        state_merge_group(s, (S *)memory);
        if (!inside || thread_in_slice() != 0) continue;
#pragma unroll
        for (int k = 0; k < BESIDE; k++) {
            if constexpr (ORDERED)
                state_settle(s[k], a.length, [&](long long position) {
                    const place p = find_place(a, position / VECTOR);
                    return ((const x_t *)a.x)[at[0] + k + p.at + position % VECTOR];
                });
            done(number + k, BESIDE > 1 ? at[1] + k * a.kept.strides[1][a.kept.rank - 1] : at[1], s[k]);
        }
    }
}
