/* SPDX-License-Identifier: Apache-2.0
 * Rows along W, worked in strips: thread `item` has OUTS neighbouring columns of one row. Columns past
 * either end are read from a neighbour and masked, so that no load waits for a branch. */
#pragma once
#include "ops/pool/pool.cuh"

static_assert(BAKED && !ADAPTIVE && !DILATED && !CHANNELS, "small windows along W");

__device__ __forceinline__ int clamp_to(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }
__device__ __forceinline__ bool is_in(int i, int n) { return (unsigned)i < (unsigned)n; }

/* An axis' factor of the divisor of the window that starts at `first`. */
template <int AXIS> __device__ __forceinline__ int taps_of(const mica_pool_args &a, int first)
{
    if constexpr (DIVISOR_GIVEN) return (int)a.axes[AXIS].divisor;
    const int x = (int)a.axes[AXIS].x, end = (int)a.axes[AXIS].end, window = window_of<AXIS>(a);
    if (MODE == AVG) return end - first < window ? end - first : window;
    int to = x - first < window ? x - first : window, from = first < 0 ? -first : 0;
    return to > from ? to - from : 0;
}

struct strip {
    int d, h, first; /* depth, row, first column */
    long long n, c;
};

/* d, h, w: the sizes of the tensor whose rows are cut in strips. */
__device__ __forceinline__ strip find_strip(const mica_pool_args &a, unsigned item, unsigned d, unsigned h, unsigned w)
{
    unsigned strips = (w + OUTS - 1) / OUTS, rest = item / strips;
    strip s;
    s.first = (int)(item - rest * strips) * OUTS;
    unsigned q = rest / h;
    s.h = (int)(rest - q * h);
    rest = q;
    s.d = 0;
    if (d > 1) {
        q = rest / d;
        s.d = (int)(rest - q * d);
        rest = q;
    }
    q = rest / (unsigned)a.c;
    s.c = rest - q * (unsigned)a.c;
    s.n = q;
    return s;
}

/* Strides: N C D H, W is 1. */
__device__ __forceinline__ long long row_offset(const long long *strides, const strip &s, int d, int h)
{
    return s.n * strides[0] + s.c * strides[1] + d * strides[2] + h * strides[3];
}

/* Columns [first - LEFT, first - LEFT + SPAN) of a row of n; those from `first` on, OWN of them, lie in
 * vectors of VECTOR that are inside the row or outside of it as a whole. */
template <int VECTOR, int LEFT, int OWN, int SPAN, typename T>
__device__ __forceinline__ void load_row(const T *row, int first, int n, T *v)
{
    constexpr int END = LEFT + OWN < SPAN ? LEFT + OWN : SPAN;
#pragma unroll
    for (int s = 0; s < LEFT && s < SPAN; s++) v[s] = row[clamp_to(first - LEFT + s, n)];
#pragma unroll
    for (int s = LEFT; s < END; s += VECTOR) {
        int at = first + s - LEFT;
        T part[VECTOR];
        load_vector<VECTOR>(row + (at + VECTOR <= n ? at : n - VECTOR), part);
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            if (s + k < SPAN) v[s + k] = part[k];
    }
#pragma unroll
    for (int s = END; s < SPAN; s++) v[s] = row[clamp_to(first - LEFT + s, n)];
}

/* The first n of OUTS elements, in vectors where there are whole ones. */
template <int VECTOR, typename T> __device__ __forceinline__ void load_strip(const T *from, T *v, int n)
{
#pragma unroll
    for (int k = 0; k < OUTS; k += VECTOR) load_some<VECTOR>(from + k, v + k, n - k < VECTOR ? n - k : VECTOR, true);
}
template <int VECTOR, typename T> __device__ __forceinline__ void store_strip(T *to, const T *v, int n)
{
#pragma unroll
    for (int k = 0; k < OUTS; k += VECTOR) store_some<VECTOR>(to + k, v + k, n - k < VECTOR ? n - k : VECTOR, true);
}
