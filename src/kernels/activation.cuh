/* SPDX-License-Identifier: Apache-2.0
 * Activations and their slopes in arithmetic type A. The prologue (mica_prologue_activation) has the ACT_
 * names, and ACTIVATIONS: ACTIVATION(name, value, slope) of those that the kernel may use, text of
 * ops/pointwise/functions.def made of what stands here, of a, b, c of type real. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "kernels/normal_tail.h"

/* a / b for b from 1 to 2, where two units in the last place do: a division would look at both for the rare
 * cases that need more, which takes longer than all else here. */
__device__ __forceinline__ float ratio_of(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double ratio_of(double a, double b) { return a / b; }

template <typename A> __device__ __forceinline__ A sigmoid_of(A v)
{
    A e = exp_of(-abs_of(v));
    return ratio_of(v >= (A)0 ? (A)1 : e, (A)1 + e);
}
template <typename A> __device__ __forceinline__ A times_sigmoid_of(A a, A v) { return a * sigmoid_of(v); }
/* log(1 + exp(b a)) / b; b a may be infinite where the result is not. */
template <typename A> __device__ __forceinline__ A softplus_beta_of(A a, A b)
{
    return (b * a <= (A)0 ? (A)0 : a) + log1p_of(exp_of(-abs_of(b * a))) / b;
}
/* Where low is above high, high; NaN passes. */
template <typename A> __device__ __forceinline__ A clip_of(A v, A low, A high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}
/* (1 + tanh(u)) / 2 = sigmoid(2 u), which loses nothing where it is small; this is 2 u */
template <typename A> __device__ __forceinline__ A gelu_inner(A v) /* gelu_tanh's, for the slope */
{
    return (A)1.5957691216057308 * (v + (A)0.044715 * v * v * v);
}

/* The normal distribution's integral up to v; density becomes exp(-v^2 / 2). Relative accuracy in the tail: 1 +
 * erf(v / sqrt 2) would have none. reach: v up to where the density is 0; NaN passes. */
__device__ __forceinline__ float normal_reach(float v) { return clip_of(v, -14.5f, 14.5f); }
__device__ __forceinline__ double normal_reach(double v) { return clip_of(v, -40.0, 40.0); }
/* The density is wrong by v^2 / 2 units, and with it the tail. */
__device__ __forceinline__ float normal_cdf(float v, float *density)
{
    const float a = abs_of(normal_reach(v)), t = ratio_of(1.f, 1.f + 0.35f * a);
    *density = exp_of(-0.5f * a * a);
    const float tail = mica_normal_tail(t) * *density;
    return v < 0.f ? tail : 1.f - tail;
}
__device__ __forceinline__ double normal_cdf(double v, double *density)
{
    const double a = normal_reach(v), y = a * -0.7071067811865476;
    const double rest = fma(a, -0.7071067811865476, -y) + a * 4.8336466567264567e-17;
    *density = exp(-y * y);
    return 0.5 * (erfc(y) - 1.1283791670955126 * *density * rest);
}

/* tanh(log(1 + e^v)) = n / d with n = e^2v + 2 e^v and d = n + 2, or both over e^2v; returns e^-|v| */
template <typename A> __device__ __forceinline__ A mish_fraction(A v, A &n, A &d)
{
    const A e = exp_of(-abs_of(v));
    n = v < (A)0 ? e * e + (A)2 * e : (A)1 + (A)2 * e;
    d = n + (v < (A)0 ? (A)2 : (A)2 * e * e);
    return e;
}

template <typename A> __device__ __forceinline__ A times_normal_of(A v)
{
    A density;
    return v * normal_cdf(v, &density);
}
template <typename A> __device__ __forceinline__ A mish_of(A v)
{
    A n, d;
    mish_fraction(v, n, d);
    return v * (n / d);
}

template <typename A> __device__ __forceinline__ A inside_of(A v, A low, A high)
{
    return v > low && v < high ? (A)1 : v != v ? v : (A)0;
}
/* s (1 - s), s the sigmoid of v: not by 1 - s, which would lose its digits where s is near 1. */
template <typename A> __device__ __forceinline__ A sigmoid_slope_of(A v)
{
    const A e = exp_of(-abs_of(v)), r = ratio_of((A)1, (A)1 + e);
    return e * r * r;
}
/* Factors of v end where e is 0: v, or its product, may be infinite. */
template <typename A> __device__ __forceinline__ A swish_slope_of(A v, A c)
{
    const A n = clip_of(c * v, (A)-800, (A)800), e = exp_of(-abs_of(n)), r = ratio_of((A)1, (A)1 + e);
    return (v >= (A)0 ? r : e * r) + n * (e * r * r);
}
template <typename A> __device__ __forceinline__ A gelu_tanh_slope_of(A v)
{
    const A u = gelu_inner(v), n = clip_of(v, (A)-40, (A)40), e = exp_of(-abs_of(u)), r = ratio_of((A)1, (A)1 + e);
    return (v >= (A)0 ? r : e * r) + n * (e * r * r) * (A)1.5957691216057308 * ((A)1 + (A)0.134145 * n * n);
}
/* t + v (1 - t^2) sigmoid(v), t = n / d */
template <typename A> __device__ __forceinline__ A mish_slope_of(A v)
{
    A n, d;
    const A e = mish_fraction(v, n, d);
    const A rest = (v < (A)0 ? (A)2 : (A)2 * e * e) * (d + n) / (d * d);
    return n / d + clip_of(v, (A)-800, (A)800) * rest * sigmoid_of(v);
}
template <typename A> __device__ __forceinline__ A gelu_slope_of(A v)
{
    A density, part = normal_cdf(v, &density);
    return part + normal_reach(v) * (A)0.3989422804014327 * density;
}

/* a is the value, b and c are act_a and act_b. */
template <int ACT, typename real> __device__ __forceinline__ real activate(real a, real b, real c)
{
#define ACTIVATION(name, value, slope) if constexpr (ACT == ACT_##name) return (real)(value); else
    ACTIVATIONS
#undef ACTIVATION
    {
        static_assert(ACT == ACT_IDENTITY, "ACTIVATIONS has it");
        return a;
    }
}

template <int ACT, typename real> __device__ __forceinline__ real activate_slope(real a, real b, real c)
{
#define ACTIVATION(name, value, slope) if constexpr (ACT == ACT_##name) return (real)(slope); else
    ACTIVATIONS
#undef ACTIVATION
    {
        static_assert(ACT == ACT_IDENTITY, "ACTIVATIONS has it");
        return 1;
    }
}
