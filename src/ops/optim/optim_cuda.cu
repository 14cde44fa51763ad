/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps, any strides. Constants: ADAM (else sgd), AT_P .. AT_MASTER (places in the layout,
 * -1: absent), TENSORS, LINEAR (all tensors packed alike), VECTOR (neighbouring elements of a thread),
 * BLOCK, PER_THREAD (elements of a thread that are a block apart, where strides differ); types p_t,
 * grad_t, m_t, v_t, master_t, acc_t. */
#include "kernels/layout.cuh"
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/optim/optim_args.h"

static_assert(BLOCK % 32 == 0, "whole warps");

/* One element; m and v are left alone where the rule has none. Returns the new parameter. */
__device__ __forceinline__ acc_t step(const mica_optim_numbers &n, acc_t p, acc_t grad, acc_t &m,
                                      acc_t &v)
{
    acc_t g = (acc_t)n.grad_scale * grad + (acc_t)n.decay * p, direction = g;
    if constexpr (AT_M >= 0) {
        /* What lies in m before the first step of sgd may be NaN. */
        acc_t old = n.keep_m != 0 ? (acc_t)n.keep_m * m : (acc_t)0;
        m = old + (acc_t)n.take_g * g;
        direction = (acc_t)n.ahead_g * g + (acc_t)n.ahead_m * m;
    }
    if constexpr (ADAM) {
        v = (acc_t)n.keep_v * v + (acc_t)n.take_g2 * (g * g);
        direction = m / (sqrt_of(v) * (acc_t)n.root_scale + (acc_t)n.eps);
    }
    return (acc_t)n.keep_p * p - (acc_t)n.rate * direction;
}

template <typename T>
__device__ __forceinline__ void load(const void *from, long long at, int n, bool aligned, acc_t *v)
{
    T raw[VECTOR] = {};
    load_some<VECTOR>((const T *)from + at, raw, n, aligned);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) v[i] = widen<acc_t>(raw[i]);
}

template <typename T>
__device__ __forceinline__ void store(void *to, long long at, int n, bool aligned, const acc_t *v)
{
    T raw[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) raw[i] = narrow<T>(v[i]);
    store_some<VECTOR>((T *)to + at, raw, n, aligned);
}

/* n <= VECTOR neighbours; at: offsets by place in the layout. */
__device__ __forceinline__ void step_vector(const mica_optim_args &a, const long long *at, int n)
{
    acc_t p[VECTOR], grad[VECTOR], m[VECTOR] = {}, v[VECTOR] = {};
    bool aligned = a.aligned;
    if constexpr (AT_MASTER >= 0)
        load<master_t>(a.master, at[AT_MASTER], n, aligned, p);
    else
        load<p_t>(a.p, at[AT_P], n, aligned, p);
    load<grad_t>(a.grad, at[AT_GRAD], n, aligned, grad);
    if constexpr (AT_M >= 0) load<m_t>(a.m, at[AT_M], n, aligned, m);
    if constexpr (AT_V >= 0) load<v_t>(a.v, at[AT_V], n, aligned, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) p[i] = step(a.n, p[i], grad[i], m[i], v[i]);
    if constexpr (AT_M >= 0) store<m_t>(a.m, at[AT_M], n, aligned, m);
    if constexpr (AT_V >= 0) store<v_t>(a.v, at[AT_V], n, aligned, v);
    if constexpr (AT_MASTER >= 0) {
        /* p is the rounding of what the master holds, also where that was rounded itself. */
#pragma unroll
        for (int i = 0; i < VECTOR; i++) p[i] = widen<acc_t>(narrow<master_t>(p[i]));
        store<master_t>(a.master, at[AT_MASTER], n, aligned, p);
    }
    store<p_t>(a.p, at[AT_P], n, aligned, p);
}

extern "C" __global__ void __launch_bounds__(BLOCK) optim(const mica_optim_args a)
{
    overlap_wait();
    long long at[TENSORS];
    if constexpr (LINEAR) {
        long long first = ((long long)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
        long long rest = a.layout.count - first;
        if (rest <= 0) return;
        for (int t = 0; t < TENSORS; t++) at[t] = first;
        step_vector(a, at, rest < VECTOR ? (int)rest : VECTOR);
    } else {
        long long first = (long long)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            long long i = first + (long long)k * BLOCK;
            if (i >= a.layout.count) return;
            layout_offsets<TENSORS>(a.layout, i, at);
            step_vector(a, at, 1);
        }
    }
}
