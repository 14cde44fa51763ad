/* SPDX-License-Identifier: Apache-2.0
 * The epilogue with a gate, with the values before the activation stored as well, quantised, or with its
 * largest magnitude kept. Constants: GATE AUX AMAX SCALE_C (0 or 1); type aux_t; those of gemm_device.cuh
 * and, but for step_t, of epilogue_quantise.cuh. */
#pragma once
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/cuda/gemm_full_args.h"

typedef out_t step_t;
#include "kernels/epilogue_quantise.cuh"

/* Offset of aux in batch item `item`. */
__device__ __forceinline__ s64 aux_item(const gemm_full_args &x, s64 item)
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

__device__ __forceinline__ out_t with_old(const gemm_full_args &x, out_t v, const c_t *c)
{
    return x.gemm.beta != 0 ? total(v, product((out_t)x.gemm.beta, widen<out_t>(*c))) : v;
}

/* channel: column of the product. */
__device__ __forceinline__ out_t before_activation(const gemm_full_args &x, const element &at, s64 channel,
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

/* The element that replaces *c. partner: with a gate, what it is for. */
__device__ __forceinline__ c_t finish_extra(const gemm_full_args &x, const element &at, sum_t sum, sum_t partner,
                                            const c_t *c, maximum &amax)
{
    const gemm_args &args = x.gemm;
    const s64 channel = GATE ? at.col * x.extra.channel_step : at.col;
    const s64 residual = at.r + at.row * args.shape.r_m + at.col * args.shape.r_n;
    out_t v = before_activation(x, at, channel, sum, c);
    v = some_steps<ACT_STEP, AFTER_ACT>(args.epilogue, v, channel, residual);
    if constexpr (GATE) {
        v = product(v, before_activation(x, at, channel + x.extra.channel_partner, partner, c));
        v = with_old(x, v, c);
    }
    v = some_steps<AFTER_ACT, EPILOGUE_STEPS>(args.epilogue, v, channel, residual);
    if constexpr (AMAX) amax.keep(v);
    if constexpr (SCALE_C) v = product(v, (out_t)*x.scale_c);
    return quantise<c_t>(v);
}
