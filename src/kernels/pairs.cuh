/* SPDX-License-Identifier: Apache-2.0
 * Pairs of 8-bit floats to and from f32. From sm_89 on there is an instruction for two. */
#pragma once
#include "kernels/types.cuh"

/* Whether T has narrow_pair. */
template <typename T> struct has_pairs {
    static constexpr bool value = false;
};

#if __CUDA_ARCH__ >= 890
template <> struct has_pairs<e4m3> {
    static constexpr bool value = true;
};
template <> struct has_pairs<e5m2> {
    static constexpr bool value = true;
};

/* Saturated, infinities too; NaN stays NaN. */
__device__ __forceinline__ u16 narrow_pair(float low, float high, e4m3)
{
    u16 r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ u16 narrow_pair(float low, float high, e5m2)
{
    u16 r;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ void widen_pair(e4m3, u16 both, float *v)
{
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(both));
    v[0] = to_float(f16{(u16)halves}), v[1] = to_float(f16{(u16)(halves >> 16)});
}
#else
__device__ __forceinline__ void widen_pair(e4m3, u16 both, float *v)
{
    v[0] = to_float(e4m3{(u8)both}), v[1] = to_float(e4m3{(u8)(both >> 8)});
}
#endif
/* A byte of e5m2 is the upper one of f16. */
__device__ __forceinline__ void widen_pair(e5m2, u16 both, float *v)
{
    v[0] = to_float(e5m2{(u8)both}), v[1] = to_float(e5m2{(u8)(both >> 8)});
}
