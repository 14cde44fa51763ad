/* SPDX-License-Identifier: Apache-2.0
 * Activations and their slopes in arithmetic type A. The ACT_ names come from the prologue
 * (mica_prologue_activations); ACT is a compile-time constant, so one branch remains. */
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
/* log(1 + exp(a v)) / a; a v may be infinite where the result is not. */
template <typename A> __device__ __forceinline__ A softplus_of(A v, A a)
{
    return (a * v <= (A)0 ? (A)0 : v) + log1p_of(exp_of(-abs_of(a * v))) / a;
}
/* Where low is above high, high; NaN passes. */
template <typename A> __device__ __forceinline__ A clip_of(A v, A low, A high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}
/* (1 + tanh(u)) / 2 = sigmoid(2 u), which loses nothing where it is small; this is 2 u */
template <typename A> __device__ __forceinline__ A gelu_inner(A v)
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

template <int ACT, typename A> __device__ __forceinline__ A activate(A v, A a, A b)
{
    const A zero = 0, one = 1;
    if constexpr (ACT == ACT_RELU) return v < zero ? zero : v;
    if constexpr (ACT == ACT_CLIP) return clip_of(v, a, b);
    if constexpr (ACT == ACT_LEAKY_RELU) return v > zero ? v : a * v;
    if constexpr (ACT == ACT_ELU) return v > zero ? v : a * expm1_of(v);
    if constexpr (ACT == ACT_SELU)
        return (A)1.0507009873554805 * (v > zero ? v : (A)1.6732632423543772 * expm1_of(v));
    if constexpr (ACT == ACT_SIGMOID) return sigmoid_of(v);
    if constexpr (ACT == ACT_TANH) return tanh_of(v);
    if constexpr (ACT == ACT_SILU) return v * sigmoid_of(v);
    if constexpr (ACT == ACT_GELU) {
        A density;
        return v * normal_cdf(v, &density);
    }
    if constexpr (ACT == ACT_GELU_TANH) return v * sigmoid_of(gelu_inner(v));
    if constexpr (ACT == ACT_QUICK_GELU) return v * sigmoid_of((A)1.702 * v);
    if constexpr (ACT == ACT_SOFTPLUS) return softplus_of(v, a);
    if constexpr (ACT == ACT_SOFTSIGN) return v / (one + abs_of(v));
    if constexpr (ACT == ACT_MISH) {
        A n, d;
        mish_fraction(v, n, d);
        return v * (n / d);
    }
    if constexpr (ACT == ACT_HARD_SIGMOID) return clip_of(v + (A)3, zero, (A)6) / (A)6;
    if constexpr (ACT == ACT_HARD_SWISH) return v * (clip_of(v + (A)3, zero, (A)6) / (A)6);
    if constexpr (ACT == ACT_HARD_TANH) return clip_of(v, -one, one);
    if constexpr (ACT == ACT_RELU6) return clip_of(v, zero, (A)6);
    if constexpr (ACT == ACT_SQUARED_RELU) return v < zero ? zero : v * v;
    return v;
}

template <typename A> __device__ __forceinline__ A inside(A v, A low, A high)
{
    return v > low && v < high ? (A)1 : v != v ? v : (A)0;
}
/* s (1 - s), s the sigmoid of v: not by 1 - s, which would lose its digits where s is near 1. */
template <typename A> __device__ __forceinline__ A sigmoid_slope(A v)
{
    const A e = exp_of(-abs_of(v)), r = ratio_of((A)1, (A)1 + e);
    return e * r * r;
}
/* Factors of v end where e is 0: v, or its product, may be infinite. */
template <typename A> __device__ __forceinline__ A swish_slope(A v, A c)
{
    const A n = clip_of(c * v, (A)-800, (A)800), e = exp_of(-abs_of(n)), r = ratio_of((A)1, (A)1 + e);
    return (v >= (A)0 ? r : e * r) + n * (e * r * r);
}
template <typename A> __device__ __forceinline__ A gelu_tanh_slope(A v)
{
    const A u = gelu_inner(v), n = clip_of(v, (A)-40, (A)40), e = exp_of(-abs_of(u)), r = ratio_of((A)1, (A)1 + e);
    return (v >= (A)0 ? r : e * r) + n * (e * r * r) * (A)1.5957691216057308 * ((A)1 + (A)0.134145 * n * n);
}
/* t + v (1 - t^2) sigmoid(v), t = n / d */
template <typename A> __device__ __forceinline__ A mish_slope(A v)
{
    A n, d;
    const A e = mish_fraction(v, n, d);
    const A rest = (v < (A)0 ? (A)2 : (A)2 * e * e) * (d + n) / (d * d);
    return n / d + clip_of(v, (A)-800, (A)800) * rest * sigmoid_of(v);
}

template <int ACT, typename A> __device__ __forceinline__ A activate_slope(A v, A a, A b)
{
    const A zero = 0, one = 1;
    if constexpr (ACT == ACT_RELU) return v > zero ? one : v <= zero ? zero : v; /* NaN passes */
    if constexpr (ACT == ACT_CLIP) return inside(v, a, b);
    if constexpr (ACT == ACT_LEAKY_RELU) return v > zero ? one : v <= zero ? a : v;
    if constexpr (ACT == ACT_ELU) return v > zero ? one : a * exp_of(v);
    if constexpr (ACT == ACT_SELU)
        return (A)1.0507009873554805 * (v > zero ? one : (A)1.6732632423543772 * exp_of(v));
    if constexpr (ACT == ACT_SIGMOID) return sigmoid_slope(v);
    if constexpr (ACT == ACT_TANH) return (A)4 * sigmoid_slope((A)2 * v); /* tanh(v) = 2 sigmoid(2 v) - 1 */
    if constexpr (ACT == ACT_SILU) return swish_slope(v, one);
    if constexpr (ACT == ACT_GELU) {
        A density, part = normal_cdf(v, &density);
        return part + normal_reach(v) * (A)0.3989422804014327 * density;
    }
    if constexpr (ACT == ACT_GELU_TANH) return gelu_tanh_slope(v);
    if constexpr (ACT == ACT_QUICK_GELU) return swish_slope(v, (A)1.702);
    if constexpr (ACT == ACT_SOFTPLUS) return sigmoid_of(a * v);
    if constexpr (ACT == ACT_SOFTSIGN) return one / (one + abs_of(v)) / (one + abs_of(v)); /* the square may be infinite */
    if constexpr (ACT == ACT_MISH) return mish_slope(v);
    if constexpr (ACT == ACT_HARD_SIGMOID) return inside(v, (A)-3, (A)3) / (A)6;
    if constexpr (ACT == ACT_HARD_SWISH)
        return v <= (A)-3 ? zero : v >= (A)3 ? one : (v + (A)1.5) / (A)3;
    if constexpr (ACT == ACT_HARD_TANH) return inside(v, -one, one);
    if constexpr (ACT == ACT_RELU6) return inside(v, zero, (A)6);
    if constexpr (ACT == ACT_SQUARED_RELU) return v <= zero ? zero : (A)2 * v;
    return one;
}
