/* SPDX-License-Identifier: Apache-2.0
 * One optimiser step, any strides. Constants: RULE with SGD, ADAM, MOMENTUM (sgd has a buffer),
 * NESTEROV, MASTER (a master copy is stepped, p receives its rounding), LINEAR (all tensors packed
 * alike), VECTOR (neighbours a thread works on), BLOCK; types p_t, grad_t, m_t, v_t, master_t, acc_t. */
#include "cuda/device/types.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/layout.cuh"
#include "ops/optim/optim_args.h"

static_assert(VECTOR == 1 || LINEAR, "vectors lie along packed tensors");

template <typename T> __device__ __forceinline__ void read(const void *from, long long at, bool whole, acc_t *v)
{
    const T *p = (const T *)from + at;
    T e[VECTOR];
    if (VECTOR > 1 && whole) load_vector<VECTOR>(p, e);
    else e[0] = p[0];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = widen<acc_t>(e[k]);
}

template <typename T> __device__ __forceinline__ void write(void *to, long long at, bool whole, const acc_t *v)
{
    T *p = (T *)to + at;
    T e[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) e[k] = narrow<T>(v[k]);
    if (VECTOR > 1 && whole) store_vector<VECTOR>(p, e);
    else p[0] = e[0];
}

__device__ __forceinline__ void step_sgd(const mica_optim_factors &f, acc_t g, acc_t &p, acc_t &m)
{
    acc_t update = g;
    if constexpr (MOMENTUM) update = m = f.first ? g : (acc_t)f.beta1 * m + (acc_t)f.add1 * g;
    if constexpr (NESTEROV) update = g + (acc_t)f.beta1 * m;
    p -= (acc_t)f.lr * update;
}

__device__ __forceinline__ void step_adam(const mica_optim_factors &f, acc_t g, acc_t &p, acc_t &m, acc_t &v)
{
    m = (acc_t)f.beta1 * m + (acc_t)f.add1 * g;
    v = (acc_t)f.beta2 * v + (acc_t)f.add2 * (g * g);
    p = (acc_t)f.keep * p - (acc_t)f.lr * (m / (sqrt_of(v) * (acc_t)f.root + (acc_t)f.eps));
}

/* VECTOR elements if `whole`, else the first alone. */
__device__ __forceinline__ void step(const mica_optim_args &a, const long long *at, bool whole)
{
    const mica_optim_factors &f = a.factors;
    acc_t p[VECTOR], grad[VECTOR], m[VECTOR] = {}, v[VECTOR] = {};
    if constexpr (MASTER) read<master_t>(a.master, at[4], whole, p);
    else read<p_t>(a.p, at[0], whole, p);
    read<grad_t>(a.grad, at[1], whole, grad);
    /* What the first step finds in the buffer may be anything: `first` selects, it does not scale. */
    if constexpr (RULE != SGD || MOMENTUM) read<m_t>(a.m, at[2], whole, m);
    if constexpr (RULE != SGD) read<v_t>(a.v, at[3], whole, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        acc_t g = (acc_t)f.grad_scale * grad[k] + (acc_t)f.decay * p[k];
        if constexpr (RULE == SGD) step_sgd(f, g, p[k], m[k]);
        else step_adam(f, g, p[k], m[k], v[k]);
    }
    write<p_t>(a.p, at[0], whole, p);
    if constexpr (MASTER) write<master_t>(a.master, at[4], whole, p);
    if constexpr (RULE != SGD || MOMENTUM) write<m_t>(a.m, at[2], whole, m);
    if constexpr (RULE != SGD) write<v_t>(a.v, at[3], whole, v);
}

extern "C" __global__ void __launch_bounds__(BLOCK) optim(const mica_optim_args a)
{
    long long threads = (long long)gridDim.x * BLOCK;
    for (long long i = ((long long)blockIdx.x * BLOCK + threadIdx.x) * VECTOR; i < a.layout.count;
         i += threads * VECTOR) {
        long long at[MICA_LAYOUT_TENSORS] = {i, i, i, i, i};
        if constexpr (!LINEAR) layout_offsets<MICA_LAYOUT_TENSORS>(a.layout, i, at);
        if (VECTOR > 1 && a.whole && i + VECTOR <= a.layout.count) {
            step(a, at, true);
            continue;
        }
        for (int k = 0; k < VECTOR && i + k < a.layout.count; k++) {
            step(a, at, false);
            for (int t = 0; t < MICA_LAYOUT_TENSORS; t++) at[t]++;
        }
    }
}
