/* SPDX-License-Identifier: Apache-2.0
 * Random numbers and dropout, any strides: VECTOR neighbours of a row per thread. Constants: DRAW
 * (mica_random_draw), PER_BLOCK (elements of a counter), DIGITS, ALIGNED (vectors begin where a
 * counter does, and indices are neighbours), PATCH (not 1: indices are neighbours along the dimension
 * before the last, which is counted in so many; a thread has all elements of VECTOR counters), DROPOUT, SAVES (what was kept is a result), ROWS (counters by rows), HAS_ADD,
 * VECTOR, BLOCK; types out_t, in_t, add_t, real (f32, f64 or s64). */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/random/random_draw.cuh"

RANDOM float number_of(const mica_random_args &a, const stream &, u64, int lane, const u32 *w, float)
{
    return random_f32((mica_random_draw)DRAW, DIGITS, &a.numbers, lane, w);
}
RANDOM double number_of(const mica_random_args &a, const stream &, u64, int lane, const u32 *w, double)
{
    return random_f64((mica_random_draw)DRAW, same_type<out_t, double>, &a.numbers, lane, w);
}
RANDOM s64 number_of(const mica_random_args &a, const stream &s, u64 block, int lane, const u32 *w, s64)
{
    return random_s64((mica_random_draw)DRAW, (int)sizeof(out_t), &a.numbers, s.key, s.offset, block, lane, w);
}

/* What is kept of n elements, as bits. */
RANDOM u32 kept(const mica_random_args &a, const stream &s, const s64 *at, int n)
{
    u32 keep = 0;
    if (DRAW != MICA_RANDOM_DRAW_NONE) {
        bool dropped[VECTOR];
        const u64 threshold = a.numbers.threshold;
        draw<VECTOR, PER_BLOCK, ALIGNED, ROWS>(s, (u64)(a.numbers.first + at[MICA_RANDOM_PLACE_INDEX]),
             a.layout.strides[MICA_RANDOM_PLACE_INDEX][a.layout.rank - 1] / VECTOR, dropped,
             [=](u64, int lane, const u32 *w) { return w[lane] < threshold; });
#pragma unroll
        for (int e = 0; e < VECTOR; e++) keep |= (u32)!dropped[e] << e;
        return keep;
    }
    if (a.at[MICA_RANDOM_PLACE_BITS]) return ((const u8 *)a.at[MICA_RANDOM_PLACE_BITS])[at[MICA_RANDOM_PLACE_BITS] >> 3];
    const s64 step = a.layout.strides[MICA_RANDOM_PLACE_MASK][a.layout.rank - 1] / VECTOR;
    const u8 *mask = (const u8 *)a.at[MICA_RANDOM_PLACE_MASK] + at[MICA_RANDOM_PLACE_MASK];
    u8 byte[VECTOR] = {};
    if (a.whole && n == VECTOR) load_vector<VECTOR>(mask, byte);
    else
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            if (e < n) byte[e] = mask[e * step];
#pragma unroll
    for (int e = 0; e < VECTOR; e++) keep |= (u32)(byte[e] != 0) << e;
    return keep;
}

RANDOM s64 step_of(const mica_random_args &a, int place)
{
    return a.layout.strides[place][a.layout.rank - 1] / VECTOR;
}

template <typename T> RANDOM void load(const mica_random_args &a, int place, const s64 *at, int n, real *v)
{
    const T *from = (const T *)a.at[place] + at[place];
    if (a.whole && n == VECTOR) {
        load_elements<T, VECTOR>(from, true, v);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) v[e] = e < n ? widen<real>(from[e * step]) : (real)0;
}

template <typename T, typename R> RANDOM void store(const mica_random_args &a, int place, const s64 *at, int n, const R *v)
{
    T *to = (T *)a.at[place] + at[place];
    if (a.whole && n == VECTOR) {
        store_elements<T, VECTOR>(to, true, v);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        if (e < n) to[e * step] = narrow<T>(v[e]);
}

/* Integers without their upper bits. */
template <typename T> RANDOM void put(const mica_random_args &a, const s64 *at, int n, const s64 *v)
{
    s64 low[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        T bits;
        memcpy(&bits, &v[e], sizeof bits);
        low[e] = widen<s64>(bits);
    }
    store<T>(a, MICA_RANDOM_PLACE_OUT, at, n, low);
}
template <typename T, typename R> RANDOM void put(const mica_random_args &a, const s64 *at, int n, const R *v)
{
    store<T>(a, MICA_RANDOM_PLACE_OUT, at, n, v);
}

RANDOM void drop(const mica_random_args &a, const s64 *at, int n, u32 keep)
{
    real x[VECTOR], more[VECTOR];
    load<in_t>(a, MICA_RANDOM_PLACE_IN, at, n, x);
    if (HAS_ADD) load<add_t>(a, MICA_RANDOM_PLACE_ADD, at, n, more);
    const real scale = (real)a.numbers.scale;
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        if constexpr (same_type<real, double>) {
            x[e] = keep >> e & 1 ? mul64(x[e], scale) : 0;
            if (HAS_ADD) x[e] = add64(x[e], more[e]);
        } else {
            x[e] = keep >> e & 1 ? mul32(x[e], scale) : 0;
            if (HAS_ADD) x[e] = add32(x[e], more[e]);
        }
    }
    store<out_t>(a, MICA_RANDOM_PLACE_OUT, at, n, x);
    if (!SAVES) return;
    if (a.at[MICA_RANDOM_PLACE_MASK]) {
        s32 byte[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) byte[e] = keep >> e & 1;
        store<u8>(a, MICA_RANDOM_PLACE_MASK, at, n, byte);
    }
    if (a.at[MICA_RANDOM_PLACE_BITS])
        ((u8 *)a.at[MICA_RANDOM_PLACE_BITS])[at[MICA_RANDOM_PLACE_BITS] >> 3] = (u8)(keep & ((1u << n) - 1));
}

/* PATCH rows of the vector, each a lane of the counters. */
RANDOM void take_patch(const mica_random_args &a, const stream &s, s64 *at, int n)
{
    const int dim = a.layout.rank - 2;
    const u64 index = (u64)(a.numbers.first + at[MICA_RANDOM_PLACE_INDEX]);
    const u64 step = (u64)step_of(a, MICA_RANDOM_PLACE_INDEX);
    u32 w[VECTOR][4];
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        const u64 block = (index + (u64)e * step) / PER_BLOCK;
        if constexpr (ROWS) random_row_words(s.key, s.offset, block, w[e]);
        else random_words(s.key, s.offset, block, 0, w[e]);
    }
#pragma unroll
    for (int lane = 0; lane < PATCH; lane++) {
        if constexpr (DROPOUT) {
            u32 keep = 0;
#pragma unroll
            for (int e = 0; e < VECTOR; e++) keep |= (u32)(w[e][lane & 3] >= a.numbers.threshold) << e;
            drop(a, at, n, keep);
        } else {
            real v[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                v[e] = number_of(a, s, (index + (u64)e * step) / PER_BLOCK, lane, w[e], real());
            put<out_t>(a, at, n, v);
        }
#pragma unroll
        for (int p = 0; p < MICA_RANDOM_PLACES; p++) at[p] += a.layout.strides[p][dim] / PATCH;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) random_numbers(const __grid_constant__ mica_random_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.layout.count) return;
    s64 at[MICA_RANDOM_PLACES];
    layout_offsets<MICA_RANDOM_PLACES>(a.layout, i, at);
    const s64 column = a.layout.rank == 1 ? i : i % a.layout.dims[a.layout.rank - 1];
    const s64 left = a.columns - column * VECTOR;
    const int n = left < VECTOR ? (int)left : VECTOR;
    stream s = {};
    if (DRAW != MICA_RANDOM_DRAW_NONE) s = stream_of(a.rng, a.rng_stride);
    if constexpr (PATCH > 1) {
        take_patch(a, s, at, n);
    } else if constexpr (DROPOUT) {
        drop(a, at, n, kept(a, s, at, n));
    } else {
        real v[VECTOR];
        draw<VECTOR, PER_BLOCK, ALIGNED>(s, (u64)(a.numbers.first + at[MICA_RANDOM_PLACE_INDEX]), step_of(a, MICA_RANDOM_PLACE_INDEX), v,
             [&](u64 block, int lane, const u32 *w) { return number_of(a, s, block, lane, w, real()); });
        put<out_t>(a, at, n, v);
    }
}
