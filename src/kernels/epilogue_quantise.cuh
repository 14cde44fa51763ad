/* SPDX-License-Identifier: Apache-2.0
 * The quantised epilogue: its steps in parts (for an aux output), the largest magnitude of all results (amax),
 * saturation to a quantised type. Constants: those of epilogue.cuh; ACT_STEP (which step the activation is,
 * EPILOGUE_STEPS without one); types amax_t (float or double), step_t (what the steps are computed in). */
#pragma once
#include "kernels/epilogue.cuh"

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
    __device__ __forceinline__ void keep(step_t v)
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
__device__ __forceinline__ step_t some_steps(const mica_epilogue_args &e, step_t v, s64 channel, s64 residual)
{
    if constexpr (I < TO)
        return some_steps<I + 1, TO>(e, epilogue_step<I>(e, v, channel, residual_at{e, residual}), channel, residual);
    else
        return v;
}
constexpr int AFTER_ACT = ACT_STEP < EPILOGUE_STEPS ? ACT_STEP + 1 : ACT_STEP;

/* No contraction: what is rounded to integers comes from the reference's own numbers. */
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }

/* e5m2 would become infinite where the other types saturate. */
template <typename T> struct ends {
    static __device__ __forceinline__ step_t of(step_t v) { return v; }
};
template <> struct ends<e5m2> {
    static __device__ __forceinline__ step_t of(step_t v) { return v > 57344 ? 57344 : v < -57344 ? -57344 : v; }
};
template <typename T> __device__ __forceinline__ T quantise(step_t v) { return narrow<T>(ends<T>::of(v)); }
