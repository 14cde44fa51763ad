/* SPDX-License-Identifier: Apache-2.0
 * Activations, any strides. Constants: BACKWARD, GATED, ACT, LINEAR (all tensors packed alike), VECTOR
 * (neighbours that lie side by side in all tensors), BLOCK, PER_THREAD; types x_t, dy_t, out_t, acc_t.
 * One vector per thread and step; neighbours in a warp are neighbours in memory. */
#include "kernels/activation.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/activation/activation_args.h"

static_assert(BLOCK % 32 == 0, "whole warps");

template <bool WHOLE> __device__ __forceinline__ void put(const mica_activation_args &a, long long at, acc_t *v)
{
    out_t *out = (out_t *)a.out + at;
    if (a.scaled) {
        acc_t old[VECTOR];
        if (a.beta != 0) load_elements<out_t, VECTOR>(out, WHOLE, old);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            v[k] *= (acc_t)a.alpha;
            if (a.beta != 0) v[k] += (acc_t)a.beta * old[k];
        }
    }
    store_elements<out_t, VECTOR>(out, WHOLE, v);
}

template <bool WHOLE> __device__ __forceinline__ void forward(const mica_activation_args &a, const long long *at)
{
    const x_t *x = (const x_t *)a.x + at[0];
    acc_t v[VECTOR], gate[VECTOR];
    load_elements<x_t, VECTOR>(x, WHOLE, v);
    if constexpr (GATED) load_elements<x_t, VECTOR>(x + a.gate_x, WHOLE, gate);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        v[k] = activate<ACT>(v[k], (acc_t)a.act_a, (acc_t)a.act_b);
        if constexpr (GATED) v[k] *= gate[k];
    }
    put<WHOLE>(a, at[1], v);
}

/* In place dx lies on dy: everything is read before anything is written. */
template <bool WHOLE> __device__ __forceinline__ void backward(const mica_activation_args &a, const long long *at)
{
    const x_t *x = (const x_t *)a.x + at[0];
    acc_t v[VECTOR], g[VECTOR], gate[VECTOR], d[VECTOR];
    load_elements<x_t, VECTOR>(x, WHOLE, v);
    load_elements<dy_t, VECTOR>((const dy_t *)a.dy + at[2], WHOLE, g);
    if constexpr (GATED) load_elements<x_t, VECTOR>(x + a.gate_x, WHOLE, gate);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        acc_t through = GATED ? g[k] * gate[k] : g[k];
        d[k] = through * activate_slope<ACT>(v[k], (acc_t)a.act_a, (acc_t)a.act_b);
    }
    put<WHOLE>(a, at[1], d);
    if constexpr (GATED) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            d[k] = g[k] * activate<ACT>(v[k], (acc_t)a.act_a, (acc_t)a.act_b);
        put<WHOLE>(a, at[1] + a.gate_out, d);
    }
}

/* WHOLE: instructions of the other case would take turns beside those of 16-bit types, which hardly have time. */
template <bool WHOLE> __device__ __forceinline__ void take_vectors(const mica_activation_args &a)
{
    long long first = (long long)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        long long i = first + (long long)k * BLOCK, at[3] = {i * VECTOR, i * VECTOR, i * VECTOR};
        if (i >= a.layout.count) return;
        if constexpr (!LINEAR) layout_offsets<BACKWARD ? 3 : 2>(a.layout, i, at);
        if constexpr (BACKWARD)
            backward<WHOLE>(a, at);
        else
            forward<WHOLE>(a, at);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) activation(const mica_activation_args a)
{
    overlap_wait();
    if (VECTOR == 1 || a.whole) take_vectors<true>(a);
    else take_vectors<false>(a);
}
