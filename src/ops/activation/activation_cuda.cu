/* SPDX-License-Identifier: Apache-2.0
 * Activations, any strides. Constants: BACKWARD, GATED, ACT, LINEAR (all tensors packed alike),
 * BLOCK, PER_THREAD; types x_t, dy_t, out_t, acc_t. One element per thread and
 * step; neighbours in a warp are neighbours in memory. */
#include "cuda/device/activation.cuh"
#include "cuda/device/layout.cuh"
#include "ops/activation/activation_args.h"

static_assert(BLOCK % 32 == 0, "whole warps");

__device__ __forceinline__ void put(const mica_activation_args &a, long long at, acc_t v)
{
    out_t *out = (out_t *)a.out + at;
    v *= (acc_t)a.alpha;
    if (a.beta != 0) v += (acc_t)a.beta * widen<acc_t>(*out);
    *out = narrow<out_t>(v);
}

__device__ __forceinline__ void element(const mica_activation_args &a, long long i)
{
    long long at[3] = {i, i, i};
    if constexpr (!LINEAR) layout_offsets<BACKWARD ? 3 : 2>(a.layout, i, at);
    const x_t *x = (const x_t *)a.x + at[0];
    acc_t v = widen<acc_t>(x[0]), p = (acc_t)a.act_a, q = (acc_t)a.act_b;
    if constexpr (!BACKWARD) {
        acc_t y = activate<ACT>(v, p, q);
        if constexpr (GATED) y *= widen<acc_t>(x[a.gate_x]);
        put(a, at[1], y);
    } else {
        acc_t g = widen<acc_t>(((const dy_t *)a.dy)[at[2]]), gate = (acc_t)1;
        /* In place dx lies on dy: everything is read before anything is written. */
        if constexpr (GATED) gate = widen<acc_t>(x[a.gate_x]);
        put(a, at[1], g * gate * activate_slope<ACT>(v, p, q));
        if constexpr (GATED) put(a, at[1] + a.gate_out, g * activate<ACT>(v, p, q));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) activation(const mica_activation_args a)
{
    long long first = (long long)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        long long i = first + (long long)k * BLOCK;
        if (i < a.layout.count) element(a, i);
    }
}
