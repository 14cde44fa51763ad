/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of lrn share. A thread goes along the axis MARCH, past a column of elements, or VEC
 * neighbouring ones along AXIS0. Where windows reach along MARCH it keeps what lies in them: RING sums over
 * the other axes, of which each is formed once, added up anew for every element. Constants: MARCH, AXIS0 to AXIS3
 * (the others, neighbouring threads along the first), VEC, RING (1: none is kept), RING_AHEAD (elements of the
 * ring behind an element's own); BACK_C to AHEAD_W (elements of windows before and behind along each axis, but MARCH with
 * a ring), UNROLLED (they are few), POWER, MEANS, BLOCK; types x_t (of tensors), real (of sums), int_t (holds
 * every size and offset). */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/lrn/lrn_args.h"

#define INLINE __device__ __forceinline__

INLINE float pow_of(float a, float b) { return powf(a, b); }
INLINE double pow_of(double a, double b) { return pow(a, b); }
INLINE float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
INLINE double fma_of(double a, double b, double c) { return fma(a, b, c); }
INLINE float rsqrt_of(float v) { return rsqrtf(v); }
INLINE double rsqrt_of(double v) { return rsqrt(v); }

INLINE bool is_finite(real v) { return v - v == 0; }

/* What a column leaves to the kernel behind: results that are not finite, if it says so here. */
INLINE void leave(const mica_lrn_args &a) { *(u32 *)a.left = 1; }

INLINE bool ordinary(const mica_lrn_args &a, real s) { return s >= (real)a.low && s <= (real)a.high; }

/* s^-beta of an ordinary sum. */
INLINE real power_of(const mica_lrn_args &a, real s)
{
    if constexpr (POWER == LRN_POW) return pow_of(s, -(real)a.beta);
    if constexpr (POWER == LRN_ONE) return 1 / s;
    const real root = rsqrt_of(s);
    if constexpr (POWER == LRN_HALF) return root;
    return root * (root * rsqrt_of(root)); /* r sqrt(r) */
}

/* ---- columns ---- */

struct column {
    int_t at[LRN_AXES];
    int_t first, last; /* elements [first, last) along MARCH */
};

template <int DIM> INLINE int_t next_digit(const mica_lrn_args &a, int_t &rest)
{
    int_t q;
    if constexpr (sizeof(int_t) > 4)
        q = rest / (int_t)a.column_sizes[DIM];
    else
        q = (int_t)mica_fastdiv_of(a.by_size[DIM], (u32)rest);
    const int_t digit = rest - q * (int_t)a.column_sizes[DIM];
    rest = q;
    return digit;
}

INLINE bool find_column(const mica_lrn_args &a, column &c)
{
    const s64 item = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.columns) return false;
    int_t rest = (int_t)item;
    c.at[AXIS0] = next_digit<0>(a, rest) * VEC;
    c.at[AXIS1] = next_digit<1>(a, rest);
    c.at[AXIS2] = next_digit<2>(a, rest);
    c.at[AXIS3] = next_digit<3>(a, rest);
    c.at[MARCH] = 0;
    c.first = rest * (int_t)a.run;
    c.last = (int_t)a.sizes[MARCH] - c.first < (int_t)a.run ? (int_t)a.sizes[MARCH] : c.first + (int_t)a.run;
    return true;
}

/* Of the column's element m. */
INLINE s64 place(const mica_lrn_steps &s, const column &c, int_t m)
{
    int_t sum = m * (int_t)s.at[MARCH];
#pragma unroll
    for (int i = 0; i < LRN_AXES; i++)
        if (i != MARCH) sum += c.at[i] * (int_t)s.at[i];
    return sum;
}

/* ---- windows ---- */

INLINE constexpr s64 back(int axis) { return axis == 1 ? BACK_C : axis == 2 ? BACK_D : axis == 3 ? BACK_H : axis == 4 ? BACK_W : 0; }
INLINE constexpr s64 ahead(int axis) { return axis == 1 ? AHEAD_C : axis == 2 ? AHEAD_D : axis == 3 ? AHEAD_H : axis == 4 ? AHEAD_W : 0; }
INLINE constexpr int unroll_of(int axis) { return UNROLLED ? (int)(back(axis) + ahead(axis)) + 1 : 1; }

template <int AXIS> INLINE int_t start(int_t at)
{
    return UNROLLED || at > (int_t)back(AXIS) ? -(int_t)back(AXIS) : -at;
}
template <int AXIS> INLINE int_t end(const mica_lrn_args &a, int_t at)
{
    const int_t left = (int_t)a.sizes[AXIS] - 1 - at;
    return UNROLLED || left > (int_t)ahead(AXIS) ? (int_t)ahead(AXIS) : left;
}
template <int AXIS> INLINE bool inside(const mica_lrn_args &a, int_t at)
{
    return !UNROLLED || back(AXIS) + ahead(AXIS) == 0 || (at >= 0 && at < (int_t)a.sizes[AXIS]);
}

/* source.add of all neighbours of the column's element m, by their distances along C D H W. */
template <typename S> INLINE void add_neighbours(const mica_lrn_args &a, const column &c, int_t m, const S &source, real *sum)
{
    const int_t at_c = MARCH == 1 ? m : c.at[1], at_d = MARCH == 2 ? m : c.at[2];
    const int_t at_h = MARCH == 3 ? m : c.at[3], at_w = MARCH == 4 ? m : c.at[4];
#pragma unroll(unroll_of(1))
    for (int_t i = start<1>(at_c); i <= end<1>(a, at_c); i++)
#pragma unroll(unroll_of(2))
        for (int_t j = start<2>(at_d); j <= end<2>(a, at_d); j++)
#pragma unroll(unroll_of(3))
            for (int_t k = start<3>(at_h); k <= end<3>(a, at_h); k++)
#pragma unroll(unroll_of(4))
                for (int_t l = start<4>(at_w); l <= end<4>(a, at_w); l++)
                    if (inside<1>(a, at_c + i) && inside<2>(a, at_d + j) && inside<3>(a, at_h + k) && inside<4>(a, at_w + l))
                        source.add(a, m, i, j, k, l, sum);
}

INLINE int_t distance(const mica_lrn_steps &s, int_t i, int_t j, int_t k, int_t l)
{
    return i * (int_t)s.at[1] + j * (int_t)s.at[2] + k * (int_t)s.at[3] + l * (int_t)s.at[4];
}

/* Along the column: source.finish(m, sum) of each element. */
template <typename S> INLINE void march(const mica_lrn_args &a, const column &c, S &source)
{
    real ring[RING][VEC];
#pragma unroll
    for (int r = 0; r < RING; r++)
#pragma unroll
        for (int v = 0; v < VEC; v++) ring[r][v] = 0;
#pragma unroll 1
    for (int_t m = c.first - RING + 1; m < c.last; m++) {
        const int_t newest = m + RING_AHEAD;
#pragma unroll
        for (int r = 0; r < RING - 1; r++)
#pragma unroll
            for (int v = 0; v < VEC; v++) ring[r][v] = ring[r + 1][v];
#pragma unroll
        for (int v = 0; v < VEC; v++) ring[RING - 1][v] = 0;
        if (newest >= 0 && newest < (int_t)a.sizes[MARCH]) add_neighbours(a, c, newest, source, ring[RING - 1]);
        if (m < c.first) continue;
        real sum[VEC];
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[v] = ring[0][v];
#pragma unroll
        for (int r = 1; r < RING; r++)
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[v] += ring[r][v];
        source.finish(a, c, m, sum);
    }
}

/* ---- squares ---- */

INLINE void load_centred(const mica_lrn_args &a, const x_t *x, const x_t *means, real *u)
{
    unpack(fetch<VEC>(x, a.whole), u);
    if constexpr (MEANS) {
        real mean[VEC];
        unpack(fetch<VEC>(means, a.whole), mean);
#pragma unroll
        for (int v = 0; v < VEC; v++) u[v] -= mean[v];
    }
}

struct squares {
    const x_t *x, *means; /* of the column's element 0 */

    INLINE void begin(const mica_lrn_args &a, const column &c)
    {
        x = (const x_t *)a.x + place(a.x_step, c, 0);
        means = MEANS ? (const x_t *)a.means + place(a.means_step, c, 0) : nullptr;
    }
    INLINE void add(const mica_lrn_args &a, int_t m, int_t i, int_t j, int_t k, int_t l, real *sum) const
    {
        real u[VEC];
        load_centred(a, x + m * (int_t)a.x_step.at[MARCH] + distance(a.x_step, i, j, k, l),
                     MEANS ? means + m * (int_t)a.means_step.at[MARCH] + distance(a.means_step, i, j, k, l) : nullptr, u);
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[v] = fma_of(u[v], u[v], sum[v]);
    }
};
