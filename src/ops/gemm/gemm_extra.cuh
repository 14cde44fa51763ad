/* SPDX-License-Identifier: Apache-2.0
 * The end of a sum with a gate, with the values before the activation stored as well, quantised, or with its
 * largest magnitude kept. Constants: GATE AUX AMAX SCALE_C (0 or 1), ACT_STEP (which step the activation is,
 * EPILOGUE_STEPS without one); types aux_t, amax_t (float or double); those of gemm_device.cuh. */
#pragma once
#include "ops/gemm/gemm_device.cuh"
#include "ops/gemm/gemm_extra_args.h"

template <typename T> struct bits_type { typedef u32 type; };
template <> struct bits_type<double> { typedef u64 type; };

/* Magnitudes order as their bits do, NaN above all: the order of blocks does not matter. */
struct maximum {
    typedef bits_type<amax_t>::type bits;
    bits most;

    static __device__ __forceinline__ u32 bits_of(float v) { return __float_as_uint(v) & 0x7fffffffu; }
    static __device__ __forceinline__ u64 bits_of(double v)
    {
        return (u64)__double_as_longlong(v) & 0x7fffffffffffffffull;
    }
    __device__ __forceinline__ void keep(out_t v)
    {
        const bits b = bits_of((amax_t)v);
        most = b > most ? b : most;
    }
    /* Whole warps come here. */
    __device__ __forceinline__ void store(void *amax)
    {
#pragma unroll
        for (int lane = 16; lane; lane /= 2) {
            const bits other = __shfl_xor_sync(~0u, most, lane);
            most = other > most ? other : most;
        }
        if (threadIdx.x % 32 == 0 && most) atomicMax((bits *)amax, most);
    }
};

/* Steps I to before TO. */
template <int I, int TO>
__device__ __forceinline__ out_t some_steps(const mica_epilogue_args &e, out_t v, s64 channel, s64 residual)
{
    if constexpr (I < TO)
        return some_steps<I + 1, TO>(e, epilogue_step<I>(e, v, channel, residual), channel, residual);
    else
        return v;
}

/* Offset of aux in batch item `item`. */
__device__ __forceinline__ s64 aux_item(const gemm_extra_args &x, s64 item)
{
    const gemm_shape &s = x.gemm.shape;
    s64 at = 0;
    for (int i = s.batch_rank - 1; i >= 0; i--) {
        const s64 next = item / s.batch[i];
        at += (item - next * s.batch[i]) * x.extra.x_batch[i];
        item = next;
    }
    return at;
}

struct element {
    s64 row, col; /* of c */
    s64 r, x;     /* where the batch item of the residual and of aux begins */
};

__device__ __forceinline__ out_t with_old(const gemm_extra_args &x, out_t v, const c_t *c)
{
    return x.gemm.beta != 0 ? total(v, product((out_t)x.gemm.beta, widen<out_t>(*c))) : v;
}

/* channel: column of the product. */
__device__ __forceinline__ out_t before_activation(const gemm_extra_args &x, const element &at, s64 channel,
                                                   sum_t sum, const c_t *c)
{
    const gemm_args &args = x.gemm;
    out_t v = product((out_t)args.alpha, (out_t)sum);
    if constexpr (HAS_SCALE_A) v = product(v, (out_t)args.scale_a[at.row * args.scale_a_stride]);
    if constexpr (HAS_SCALE_B) v = product(v, (out_t)args.scale_b[channel * args.scale_b_stride]);
    if constexpr (!GATE) v = with_old(x, v, c);
    v = some_steps<0, ACT_STEP>(args.epilogue, v, channel,
                                at.r + at.row * args.shape.r_m + at.col * args.shape.r_n);
    if constexpr (AUX)
        ((aux_t *)x.aux)[at.x + at.row * x.extra.x_m + channel * x.extra.x_n] = narrow<aux_t>(v);
    return v;
}

__device__ __forceinline__ out_t saturated(out_t v, e5m2) { return v > 57344 ? 57344 : v < -57344 ? -57344 : v; }
template <typename T> __device__ __forceinline__ out_t saturated(out_t v, T) { return v; }

/* The element that replaces *c. partner: with a gate, what it is for. */
__device__ __forceinline__ c_t finish_extra(const gemm_extra_args &x, const element &at, sum_t sum, sum_t partner,
                                            const c_t *c, maximum &amax)
{
    const gemm_args &args = x.gemm;
    const s64 channel = GATE ? at.col * x.extra.channel_step : at.col;
    const s64 residual = at.r + at.row * args.shape.r_m + at.col * args.shape.r_n;
    constexpr int AFTER = ACT_STEP < EPILOGUE_STEPS ? ACT_STEP + 1 : ACT_STEP;
    out_t v = before_activation(x, at, channel, sum, c);
    v = some_steps<ACT_STEP, AFTER>(args.epilogue, v, channel, residual);
    if constexpr (GATE) {
        v = product(v, before_activation(x, at, channel + x.extra.channel_partner, partner, c));
        v = with_old(x, v, c);
    }
    v = some_steps<AFTER, EPILOGUE_STEPS>(args.epilogue, v, channel, residual);
    if constexpr (AMAX) amax.keep(v);
    if constexpr (SCALE_C) v = product(v, (out_t)*x.scale_c);
    return narrow<c_t>(saturated(v, c_t{}));
}
