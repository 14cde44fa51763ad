/* SPDX-License-Identifier: Apache-2.0
 * Epilogue steps in arithmetic type A. EPILOGUE, EPILOGUE_STEPS and the types come from the prologue
 * (mica_prologue_epilogue). */
#pragma once
#include "kernels/activation.cuh"
#include "kernels/epilogue_args.h"

/* The residual's element in memory. */
struct residual_at {
    const mica_epilogue_args &e;
    long long offset;
    __device__ __forceinline__ residual_t operator()() const { return ((const residual_t *)e.residual)[offset]; }
};

/* residual() is its element, called where there is such a step. */
template <int I, typename A, typename R>
__device__ __forceinline__ A epilogue_step(const mica_epilogue_args &e, A v, long long channel, const R &residual)
{
    constexpr int STEP = EPILOGUE[I];
    if constexpr (STEP == STEP_BIAS)
        return v + widen<A>(((const bias_t *)e.bias)[channel * e.bias_stride]);
    else if constexpr (STEP == STEP_SCALE)
        return v * widen<A>(((const scale_t *)e.scale)[channel * e.scale_stride]);
    else if constexpr (STEP == STEP_SHIFT)
        return v + widen<A>(((const shift_t *)e.shift)[channel * e.shift_stride]);
    else if constexpr (STEP == STEP_RESIDUAL)
        return v + widen<A>(residual());
    else
        return activate<STEP - STEP_ACT>(v, (A)e.act_a, (A)e.act_b);
}

template <int I = 0, typename A, typename R>
__device__ __forceinline__ A epilogue_with(const mica_epilogue_args &e, A v, long long channel, const R &residual)
{
    if constexpr (I < EPILOGUE_STEPS)
        return epilogue_with<I + 1>(e, epilogue_step<I>(e, v, channel, residual), channel, residual);
    else
        return v;
}

/* Whether there is a residual. */
__device__ constexpr bool has_residual()
{
    for (int i = 0; i < EPILOGUE_STEPS; i++)
        if (EPILOGUE[i] == STEP_RESIDUAL) return true;
    return false;
}

template <typename A>
__device__ __forceinline__ A epilogue(const mica_epilogue_args &e, A v, long long channel, long long residual_offset)
{
    return epilogue_with(e, v, channel, residual_at{e, residual_offset});
}
