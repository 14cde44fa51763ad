/* SPDX-License-Identifier: Apache-2.0
 * The kernel of pointwise operations, any strides: one vector per thread and step, neighbours in a
 * warp are neighbours in memory. An operation's .cu includes this, then defines the body. Constants:
 * OPERANDS, PLACES (different strides among them), PLACE (of each operand in the layout), READ,
 * WRITTEN, FOLLOWS (bit k: operand k; see pointwise.h), SPREAD (bit k: its row is one element), INDEX (bit k: it
 * is no memory but an s64, its own offset, as the bits of a real that is double),
 * VARIANT, SCALES (results may be scaled), LINEAR (all operands packed alike), RAGGED (the last
 * vector is not whole), VECTOR, BLOCK, PER_THREAD; types operand_t (by operand), real. Where TILED
 * is defined, blocks have tiles: see pointwise_tile.cuh, and for its constants. */
#pragma once
#include "kernels/layout.cuh"
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/pointwise/pointwise_args.h"

#define POINTWISE __device__ __forceinline__

#ifndef TILED
constexpr int ACROSS = 0, ACROSS_VECTOR = 1;
#endif

static_assert(BLOCK % 32 == 0, "whole warps");

/* One element: replaces the results in v; n: the run's numbers. */
POINTWISE void pointwise_body(int variant, real *v, const real *n);

template <int K> using operand_type = typename type_of<K, operand_t>::type;
typedef real operand_values[OPERANDS][VECTOR];

/* Where a vector's first element is in the tiles of a block. */
struct tile_spot {
    unsigned char *memory;
    int row, col;
};
template <int K> POINTWISE void load_column(const tile_spot &spot, real *v);
template <int K> POINTWISE void store_column(const tile_spot &spot, const real *v);

POINTWISE const float *numbers_of(const mica_pointwise_args &a, float) { return a.numbers.f32; }
POINTWISE const double *numbers_of(const mica_pointwise_args &a, double) { return a.numbers.f64; }

/* n of VECTOR elements; `whole`: all of them, at an address that is aligned for one access. */
template <typename T> POINTWISE void load_part(const T *from, bool whole, int n, real *v)
{
    if constexpr (RAGGED) {
        if (!whole) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                if (i < n) v[i] = widen<real>(from[i]);
            return;
        }
    }
    load_elements<T, VECTOR>(from, whole, v);
}

template <typename T> POINTWISE void store_part(T *to, bool whole, int n, const real *v)
{
    if constexpr (RAGGED) {
        if (!whole) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                if (i < n) to[i] = narrow<T>(v[i]);
            return;
        }
    }
    store_elements<T, VECTOR>(to, whole, v);
}

template <int K, bool WHOLE>
POINTWISE void load_operands(const mica_pointwise_args &a, const long long *at, int n, const tile_spot &spot,
                             operand_values &v)
{
    if constexpr (K < OPERANDS) {
        typedef operand_type<K> T;
        if constexpr (READ >> K & 1) {
            const T *from = (const T *)a.at[K] + at[PLACE[K]];
            if constexpr (ACROSS >> K & 1) {
                load_column<K>(spot, v[K]);
            } else if constexpr (INDEX >> K & 1) {
                const long long first = at[PLACE[K]];
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    v[K][i] = (real)__longlong_as_double(SPREAD >> K & 1 ? first : first + i);
            } else if constexpr (SPREAD >> K & 1) {
                const real one = widen<real>(*from);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) v[K][i] = one;
            } else {
                load_part(from, WHOLE, n, v[K]);
            }
        }
        load_operands<K + 1, WHOLE>(a, at, n, spot, v);
    }
}

POINTWISE void scale(const mica_pointwise_args &a, const real *old, real *v)
{
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        v[i] *= (real)a.alpha;
        if (a.beta != 0) v[i] += (real)a.beta * old[i];
    }
}

template <int K, bool WHOLE>
POINTWISE void store_operands(const mica_pointwise_args &a, const long long *at, int n, const tile_spot &spot,
                              operand_values &v)
{
    if constexpr (K < OPERANDS) {
        typedef operand_type<K> T;
        if constexpr (WRITTEN >> K & 1) {
            T *to = (T *)a.at[K] + at[PLACE[K]];
            /* What the operand before it holds, also where that was rounded itself. */
            if constexpr (FOLLOWS >> K & 1) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) v[K][i] = widen<real>(narrow<operand_type<K - 1>>(v[K - 1][i]));
            }
            real old[VECTOR] = {};
            if constexpr (ACROSS >> K & 1) {
                if (SCALES && a.beta != 0) load_column<K>(spot, old);
            } else {
                if (SCALES && a.beta != 0) load_part(to, WHOLE, n, old);
            }
            if (SCALES && a.scaled) scale(a, old, v[K]);
            if constexpr (ACROSS >> K & 1) store_column<K>(spot, v[K]);
            else store_part(to, WHOLE, n, v[K]);
        }
        store_operands<K + 1, WHOLE>(a, at, n, spot, v);
    }
}

/* Results may lie on operands: everything is read before anything is written. */
template <bool WHOLE>
POINTWISE void take_vector(const mica_pointwise_args &a, const long long *at, int n, const tile_spot &spot = {})
{
    operand_values v = {};
    load_operands<0, WHOLE>(a, at, n, spot, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        real e[OPERANDS];
#pragma unroll
        for (int k = 0; k < OPERANDS; k++) e[k] = v[k][i];
        pointwise_body(VARIANT, e, numbers_of(a, real()));
#pragma unroll
        for (int k = 0; k < OPERANDS; k++) v[k][i] = e[k];
    }
    store_operands<0, WHOLE>(a, at, n, spot, v);
}

#ifdef TILED
#include "ops/pointwise/pointwise_tile.cuh"
#else
/* WHOLE: instructions of the other case would be issued beside those of 16-bit types, which hardly have time. */
template <bool WHOLE> POINTWISE void take_vectors(const mica_pointwise_args &a)
{
    const long long first = (long long)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        const long long i = first + (long long)k * BLOCK;
        if (i >= a.layout.count) return;
        long long at[PLACES];
#pragma unroll
        for (int t = 0; t < PLACES; t++) at[t] = i * VECTOR;
        if constexpr (!LINEAR) layout_offsets<PLACES>(a.layout, i, at);
        const long long left = RAGGED ? a.elements - i * VECTOR : VECTOR;
        if (RAGGED && WHOLE && left < VECTOR)
            take_vector<false>(a, at, (int)left);
        else
            take_vector<WHOLE>(a, at, left < VECTOR ? (int)left : VECTOR);
    }
}
#endif

POINTWISE void pointwise(const mica_pointwise_args &a)
{
    overlap_wait();
    if ((VECTOR == 1 && ACROSS_VECTOR == 1) || a.whole) take_vectors<true>(a);
    else take_vectors<false>(a);
}
