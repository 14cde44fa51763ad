/* SPDX-License-Identifier: Apache-2.0
 * Activations and their slopes in arithmetic type A. The ACT_ names come from the prologue
 * (mica_prologue_activations); ACT is a compile-time constant, so one branch remains. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/math.cuh"

/* a / b for b from 1 to 2, where two units in the last place do: a division would look at both for the rare
 * cases that need more, which takes longer than all else here. */
__device__ __forceinline__ float ratio_of(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double ratio_of(double a, double b) { return a / b; }

template <typename A> __device__ __forceinline__ A sigmoid_of(A v)
{
    A e = exp_of(-abs_of(v));
    return ratio_of(v >= (A)0 ? (A)1 : e, (A)1 + e);
}
template <typename A> __device__ __forceinline__ A softplus_of(A v)
{
    return (v > (A)0 ? v : (A)0) + log1p_of(exp_of(-abs_of(v)));
}
template <typename A> __device__ __forceinline__ A clip_of(A v, A low, A high)
{
    return v < low ? low : v > high ? high : v;
}
template <typename A> __device__ __forceinline__ A gelu_inner(A v)
{
    return (A)0.7978845608028654 * (v + (A)0.044715 * v * v * v);
}
template <typename A> __device__ __forceinline__ A normal_cdf(A v)
{
    return (A)0.5 * ((A)1 + erf_of(v * (A)0.7071067811865476));
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
    if constexpr (ACT == ACT_GELU) return v * normal_cdf(v);
    if constexpr (ACT == ACT_GELU_TANH) return (A)0.5 * v * (one + tanh_of(gelu_inner(v)));
    if constexpr (ACT == ACT_QUICK_GELU) return v * sigmoid_of((A)1.702 * v);
    if constexpr (ACT == ACT_SOFTPLUS) return softplus_of(a * v) / a;
    if constexpr (ACT == ACT_SOFTSIGN) return v / (one + abs_of(v));
    if constexpr (ACT == ACT_MISH) return v * tanh_of(softplus_of(v));
    if constexpr (ACT == ACT_HARD_SIGMOID) return clip_of(v / (A)6 + (A)0.5, zero, one);
    if constexpr (ACT == ACT_HARD_SWISH) return v * clip_of(v / (A)6 + (A)0.5, zero, one);
    if constexpr (ACT == ACT_HARD_TANH) return clip_of(v, -one, one);
    if constexpr (ACT == ACT_RELU6) return clip_of(v, zero, (A)6);
    if constexpr (ACT == ACT_SQUARED_RELU) return v < zero ? zero : v * v;
    return v;
}

template <typename A> __device__ __forceinline__ A inside(A v, A low, A high)
{
    return v > low && v < high ? (A)1 : (A)0;
}
template <typename A> __device__ __forceinline__ A swish_slope(A v, A c)
{
    /* not 1 - s: that would lose the digits of s that ratio_of leaves open, times v */
    A e = exp_of(-abs_of(c * v)), r = ratio_of((A)1, (A)1 + e);
    return (v >= (A)0 ? r : e * r) + c * v * (e * r * r);
}
template <typename A> __device__ __forceinline__ A gelu_tanh_slope(A v)
{
    A t = tanh_of(gelu_inner(v));
    A inner = (A)0.7978845608028654 * ((A)1 + (A)0.134145 * v * v);
    return (A)0.5 * ((A)1 + t) + (A)0.5 * v * ((A)1 - t * t) * inner;
}
template <typename A> __device__ __forceinline__ A mish_slope(A v)
{
    A t = tanh_of(softplus_of(v));
    return t + v * ((A)1 - t * t) * sigmoid_of(v);
}

template <int ACT, typename A> __device__ __forceinline__ A activate_slope(A v, A a, A b)
{
    const A zero = 0, one = 1;
    if constexpr (ACT == ACT_RELU) return v > zero ? one : zero;
    if constexpr (ACT == ACT_CLIP) return inside(v, a, b);
    if constexpr (ACT == ACT_LEAKY_RELU) return v > zero ? one : a;
    if constexpr (ACT == ACT_ELU) return v > zero ? one : a * exp_of(v);
    if constexpr (ACT == ACT_SELU)
        return (A)1.0507009873554805 * (v > zero ? one : (A)1.6732632423543772 * exp_of(v));
    if constexpr (ACT == ACT_SIGMOID) return sigmoid_of(v) * sigmoid_of(-v);
    if constexpr (ACT == ACT_TANH) return one - tanh_of(v) * tanh_of(v);
    if constexpr (ACT == ACT_SILU) return swish_slope(v, one);
    if constexpr (ACT == ACT_GELU)
        return normal_cdf(v) + v * (A)0.3989422804014327 * exp_of((A)-0.5 * v * v);
    if constexpr (ACT == ACT_GELU_TANH) return gelu_tanh_slope(v);
    if constexpr (ACT == ACT_QUICK_GELU) return swish_slope(v, (A)1.702);
    if constexpr (ACT == ACT_SOFTPLUS) return sigmoid_of(a * v);
    if constexpr (ACT == ACT_SOFTSIGN) return one / ((one + abs_of(v)) * (one + abs_of(v)));
    if constexpr (ACT == ACT_MISH) return mish_slope(v);
    if constexpr (ACT == ACT_HARD_SIGMOID) return inside(v, (A)-3, (A)3) / (A)6;
    if constexpr (ACT == ACT_HARD_SWISH)
        return v <= (A)-3 ? zero : v >= (A)3 ? one : v / (A)3 + (A)0.5;
    if constexpr (ACT == ACT_HARD_TANH) return inside(v, -one, one);
    if constexpr (ACT == ACT_RELU6) return inside(v, zero, (A)6);
    if constexpr (ACT == ACT_SQUARED_RELU) return v > zero ? (A)2 * v : zero;
    return one;
}
