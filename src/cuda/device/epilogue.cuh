/* SPDX-License-Identifier: Apache-2.0
 * Epilogue steps in arithmetic type A. EPILOGUE, EPILOGUE_STEPS and the types come from the prologue
 * (mica_prologue_epilogue). */
#pragma once
#include "cuda/device/activation.cuh"
#include "cuda/device/epilogue_args.h"

template <int I, typename A>
__device__ __forceinline__ A epilogue_step(const mica_epilogue_args &e, A v, long long channel,
                                           long long residual_offset)
{
    constexpr int STEP = EPILOGUE[I];
    if constexpr (STEP == STEP_BIAS)
        return v + widen<A>(((const bias_t *)e.bias)[channel * e.bias_stride]);
    else if constexpr (STEP == STEP_SCALE)
        return v * widen<A>(((const scale_t *)e.scale)[channel * e.scale_stride]);
    else if constexpr (STEP == STEP_SHIFT)
        return v + widen<A>(((const shift_t *)e.shift)[channel * e.shift_stride]);
    else if constexpr (STEP == STEP_RESIDUAL)
        return v + widen<A>(((const residual_t *)e.residual)[residual_offset]);
    else
        return activate<STEP - STEP_ACT>(v, (A)e.act_a, (A)e.act_b);
}

template <int I = 0, typename A>
__device__ __forceinline__ A epilogue(const mica_epilogue_args &e, A v, long long channel,
                                      long long residual_offset)
{
    if constexpr (I < EPILOGUE_STEPS)
        return epilogue<I + 1>(e, epilogue_step<I>(e, v, channel, residual_offset), channel,
                               residual_offset);
    else
        return v;
}
