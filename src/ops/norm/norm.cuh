/* SPDX-License-Identifier: Apache-2.0
 * What the norm kernels share: places in the split, and what is done with finished sums. Constants from
 * the prologue: ARG_ names (those of the descriptor), BACKWARD, INFER (running statistics), CENTRED
 * (not rms), CHANNEL_SETS (each set has one scale: batch); types stat_t (also acc_t) and
 * <argument>_t. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "ops/norm/norm_args.h"

/* Offsets of all arguments; what is not used costs nothing. */
struct place {
    long long at[NORM_ARG_COUNT];
};

template <typename I> __device__ __forceinline__ void add_offsets(const norm_space &s, int rank, I rest, place &p)
{
    for (int d = rank - 1; d >= 0; d--) {
        I dim = (I)s.dims[d], q = d ? rest / dim : 0, r = rest - q * dim;
#pragma unroll
        for (int t = 0; t < NORM_ARG_COUNT; t++) p.at[t] += (long long)r * s.strides[t][d];
        rest = q;
    }
}
__device__ __forceinline__ void add_place(const norm_space &s, int rank, long long i, place &p)
{
    if (s.fits_int) add_offsets<unsigned>(s, rank, (unsigned)i, p);
    else add_offsets<unsigned long long>(s, rank, (unsigned long long)i, p);
}
__device__ __forceinline__ place kept_place(const norm_args &a, long long kept)
{
    place p = {};
    add_place(a.split.kept, a.split.kept.rank, kept, p);
    return p;
}

template <typename T, typename A> __device__ __forceinline__ A get(const norm_args &a, int arg, const place &p, A absent)
{
    return a.args[arg] ? widen<A>(((const T *)a.args[arg])[p.at[arg]]) : absent;
}
template <typename T, typename A> __device__ __forceinline__ void put(const norm_args &a, int arg, const place &p, A v)
{
    if (a.args[arg]) ((T *)a.args[arg])[p.at[arg]] = narrow<T>(v);
}

template <typename A> __device__ __forceinline__ A reciprocal_root(A var, double eps)
{
    return (A)1 / sqrt_of(var + (A)eps) + (var - var); /* squares that overflowed: NaN, not results of 0 */
}

/* Mean and sum of squares about the rounded mean of n elements: `plain`, the sum of the deviations from it,
 * repairs both. */
template <typename A> __device__ __forceinline__ void repair_moments(A n, A plain, A &mean, A &squares)
{
    A shift = plain / n;
    mean += shift;
    squares -= plain * shift;
    squares = squares < (A)0 ? (A)0 : squares;
}

/* Saves the statistics of a set of n elements and updates the running ones; returns rstd. */
template <typename A> __device__ __forceinline__ A save_statistics(const norm_args &a, const place &p, A mean, A var)
{
    A rstd = reciprocal_root(var, a.eps), m = (A)a.momentum;
    put<stat_t>(a, ARG_mean, p, mean);
    put<stat_t>(a, ARG_rstd, p, rstd);
    if (a.split.reduced.count == 0) return rstd;
    A old_mean = get<stat_t>(a, ARG_running_mean, p, (A)0), old_var = get<stat_t>(a, ARG_running_var, p, (A)0);
    put<stat_t>(a, ARG_running_mean, p, ((A)1 - m) * old_mean + m * mean);
    put<stat_t>(a, ARG_running_var, p, ((A)1 - m) * old_var + m * (A)a.unbiased * var);
    return rstd;
}

/* Sums of a channel's dz and dz * xhat. */
template <typename A> __device__ __forceinline__ void save_gradients(const norm_args &a, const place &p, A plain, A with_xhat)
{
    put<dbias_t>(a, ARG_dbias, p, plain);
    put<dscale_t>(a, ARG_dscale, p, with_xhat);
}

/* From a set's sums to what each element's gradient loses of them. Where sets are channels the sums
 * come without scale and are saved first. */
template <typename A> __device__ __forceinline__ void finish_gradients(const norm_args &a, const place &p, bool writes, A &plain, A &with_xhat)
{
    if constexpr (CHANNEL_SETS) {
        if (writes) save_gradients(a, p, plain, with_xhat);
        A scale = get<scale_t>(a, ARG_scale, p, (A)1);
        plain *= scale, with_xhat *= scale;
    }
    A n = (A)a.split.reduced.count;
    plain = CENTRED && !INFER ? plain / n : (A)0;
    with_xhat = INFER ? (A)0 : with_xhat / n;
}
