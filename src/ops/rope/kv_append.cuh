/* SPDX-License-Identifier: Apache-2.0
 * Values on their way into a cache: to nearest even, saturated, NaN kept (of s8: 0). Pairs of 8-bit
 * floats have an instruction from sm_89 on. Type acc_t, which is float for the 8-bit types. */
#pragma once
#include "kernels/pairs.cuh"
#include "kernels/vector.cuh"

template <typename T> __device__ __forceinline__ T encode(acc_t v) { return narrow<T>(v); }

template <> __device__ __forceinline__ s8 encode<s8>(acc_t v)
{
    int r = __float2int_rn(fminf(fmaxf((float)v, -128.0f), 127.0f));
    return (s8)(v != v ? 0 : r);
}

/* MANTISSA digits behind the point, exponents from LOW on; adding `shift` to what is smaller leaves
 * its code in the last bits. */
template <int MANTISSA, int LOW> __device__ __forceinline__ u8 encode_bits(float v, float most)
{
    constexpr int DROP = 23 - MANTISSA;
    constexpr u32 TINY = (1u << (MANTISSA + 1)) - 1;
    const float smallest = __uint_as_float((u32)(LOW + 127) << 23);
    const float shift = __uint_as_float((u32)(LOW - MANTISSA + 23 + 127) << 23);
    float a = fminf(fabsf(v), most);
    u32 b = __float_as_uint(a), sign = __float_as_uint(v) >> 24 & 0x80;
    u32 code = ((b + (1u << (DROP - 1)) - 1 + (b >> DROP & 1)) >> DROP) - ((u32)(LOW + 126) << MANTISSA);
    if (a < smallest) code = __float_as_uint(a + shift) & TINY;
    return v != v ? (u8)0x7f : (u8)(sign | code);
}
template <> __device__ __forceinline__ e4m3 encode<e4m3>(acc_t v) { return {encode_bits<3, -6>((float)v, 448.0f)}; }
template <> __device__ __forceinline__ e5m2 encode<e5m2>(acc_t v) { return {encode_bits<2, -14>((float)v, 57344.0f)}; }

/* N neighbours, multiplied by scale. */
template <typename T, int N>
__device__ __forceinline__ void quantise(T *to, bool aligned, const acc_t *v, acc_t scale)
{
    T e[N];
    if constexpr (has_pairs<T>::value && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const u16 both = narrow_pair(v[i] * scale, v[i + 1] * scale, T());
            memcpy(e + i, &both, sizeof both);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = encode<T>(v[i] * scale);
    }
    store_some<N>(to, e, N, N > 1 && aligned);
}
