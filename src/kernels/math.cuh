/* SPDX-License-Identifier: Apache-2.0
 * Functions in the arithmetic type A (float or double), accurate to a few units in the last place:
 * no fast-math intrinsics. ACT values are those of mica_act (include/mica/epilogue.h). */
#pragma once

__device__ __forceinline__ float exp_of(float v) { return expf(v); }
__device__ __forceinline__ double exp_of(double v) { return exp(v); }
__device__ __forceinline__ float expm1_of(float v) { return expm1f(v); }
__device__ __forceinline__ double expm1_of(double v) { return expm1(v); }
__device__ __forceinline__ float log1p_of(float v) { return log1pf(v); }
__device__ __forceinline__ double log1p_of(double v) { return log1p(v); }
__device__ __forceinline__ float log_of(float v) { return logf(v); }
__device__ __forceinline__ double log_of(double v) { return log(v); }
__device__ __forceinline__ float tanh_of(float v) { return tanhf(v); }
__device__ __forceinline__ double tanh_of(double v) { return tanh(v); }
__device__ __forceinline__ float sqrt_of(float v) { return __fsqrt_rn(v); }
__device__ __forceinline__ double sqrt_of(double v) { return sqrt(v); }
__device__ __forceinline__ float abs_of(float v) { return fabsf(v); }
__device__ __forceinline__ double abs_of(double v) { return fabs(v); }
__device__ __forceinline__ float hypot_of(float a, float b) { return hypotf(a, b); }
__device__ __forceinline__ double hypot_of(double a, double b) { return hypot(a, b); }
/* NaN wins, as in PyTorch. */
template <typename A> __device__ __forceinline__ A max_of(A a, A b) { return a != a || a > b ? a : b; }
__device__ __forceinline__ float max_of(float a, float b)
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
template <typename A> __device__ __forceinline__ A min_of(A a, A b) { return a != a || a < b ? a : b; }

/* exp(v) for v <= 0, to be stored as T: 16 bits or fewer forgive an argument rounded once more. */
template <typename T, typename A> __device__ __forceinline__ A exp_for(A v)
{
    if constexpr (sizeof(T) > 2 || sizeof(A) > 4) {
        return exp_of(v);
    } else {
        float r;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v * 1.4426950408889634f));
        return r;
    }
}
