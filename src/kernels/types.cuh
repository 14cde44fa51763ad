/* SPDX-License-Identifier: Apache-2.0
 * The element types of kernels and their conversions, without the toolkit's headers. Conversions round
 * to nearest even; integers saturate, NaN becomes 0; e4m3 saturates to 448, e5m2 overflows to
 * infinity: the same results, bit for bit, as mica_tensor_store on the host. */
#pragma once

typedef signed char s8;
typedef unsigned char u8;
typedef int s32;
typedef unsigned u32;
typedef long long s64;
typedef unsigned long long u64;
typedef unsigned short u16;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };
struct boolean { u8 byte; };

/* A list of types, and one of it by its number. */
template <typename... T> struct types {};
template <int K, typename L> struct type_of;
template <typename F, typename... R> struct type_of<0, types<F, R...>> { typedef F type; };
template <int K, typename F, typename... R> struct type_of<K, types<F, R...>>
{
    typedef typename type_of<K - 1, types<R...>>::type type;
};

#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F      __int_as_float(0x7fffffff)

/* ---- f16, bf16: to and from float ---- */

__device__ __forceinline__ float to_float(f16 v)
{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
    return r;
}

__device__ __forceinline__ f16 to_f16(float v)
{
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}

__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float((u32)v.bits << 16); }

__device__ __forceinline__ bf16 to_bf16(float v)
{
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}

/* ---- e4m3, e5m2: in software where the chip has no instruction ---- */

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ float to_float(e4m3 v)
{
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)v.bits));
    return to_float(f16{(u16)halves});
}
#else
__device__ __forceinline__ float to_float(e4m3 v)
{
    u32 sign = (u32)(v.bits & 0x80) << 24, e = v.bits >> 3 & 15, m = v.bits & 7;
    if (e == 15 && m == 7) return NAN_F;
    float a = e ? __uint_as_float((e + 120) << 23 | m << 20) : (float)m * 0.001953125f;
    return __uint_as_float(__float_as_uint(a) | sign);
}
#endif

__device__ __forceinline__ float to_float(e5m2 v)
{
    f16 h = {(u16)(v.bits << 8)};
    return to_float(h);
}

/* Rounds |v| to `digits` significant bits, exponents not under `low`; the result is exact. The
 * scaled value is below 2^digits, so adding and subtracting 2^23 rounds it to nearest even. */
__device__ __forceinline__ float round_magnitude(float a, int digits, int low)
{
    int e = (int)(__float_as_uint(a) >> 23) - 127;
    int last = (e > low ? e : low) - digits + 1;
    float scale = __uint_as_float((u32)(127 - last) << 23), back = __uint_as_float((u32)(127 + last) << 23);
    return (__fadd_rn(__fmul_rn(a, scale), 8388608.0f) - 8388608.0f) * back;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ e4m3 to_e4m3(float v)
{
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(v));
    return e4m3{(u8)both};
}
#else
__device__ __forceinline__ e4m3 to_e4m3(float v)
{
    u8 sign = (u8)(__float_as_uint(v) >> 24 & 0x80);
    if (v != v) return e4m3{0x7f};
    float a = fabsf(v);
    a = a >= 464.0f ? 448.0f : round_magnitude(a, 4, -6);
    a = fminf(a, 448.0f);
    u32 b = __float_as_uint(a);
    u8 code = a < 0.015625f ? (u8)(a * 512.0f) : (u8)((b >> 20) - (120 << 3));
    return e4m3{(u8)(sign | code)};
}
#endif

__device__ __forceinline__ e5m2 to_e5m2(float v)
{
    u8 sign = (u8)(__float_as_uint(v) >> 24 & 0x80);
    if (v != v) return e5m2{0x7f};
    float a = fabsf(v);
    if (a >= 61440.0f) return e5m2{(u8)(sign | 0x7c)};
    f16 h = to_f16(round_magnitude(a, 3, -14)); /* exact */
    return e5m2{(u8)(sign | h.bits >> 8)};
}

/* ---- widening to an arithmetic type A (float, double, s32, s64) ---- */

template <typename A> __device__ __forceinline__ A widen(double v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(float v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(f16 v) { return (A)to_float(v); }
template <typename A> __device__ __forceinline__ A widen(bf16 v) { return (A)to_float(v); }
template <typename A> __device__ __forceinline__ A widen(e4m3 v) { return (A)to_float(v); }
template <typename A> __device__ __forceinline__ A widen(e5m2 v) { return (A)to_float(v); }
template <typename A> __device__ __forceinline__ A widen(s8 v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(u8 v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(s32 v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(u32 v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(s64 v) { return (A)v; }
template <typename A> __device__ __forceinline__ A widen(boolean v) { return (A)(v.byte != 0); }

template <typename A, typename B> constexpr bool same_type = false;
template <typename A> constexpr bool same_type<A, A> = true;

/* ---- narrowing from float, double, s32, s64 into a stored type ---- */

/* A double that goes to a format narrower than f32 must not be rounded twice: rounding to odd first
 * (Boldo and Melquiond 2008) makes the second rounding the only one that counts. */
__device__ __forceinline__ float to_odd_float(double v)
{
    float r = __double2float_rz(v);
    return (double)r == v || v != v || isinf(r) ? r : __uint_as_float(__float_as_uint(r) | 1u);
}
__device__ __forceinline__ float narrow_float(double v) { return to_odd_float(v); }
__device__ __forceinline__ float narrow_float(float v) { return v; }
__device__ __forceinline__ float narrow_float(s32 v) { return to_odd_float((double)v); }
/* |v| past 2^53 keeps a sticky last bit. */
__device__ __forceinline__ float narrow_float(s64 v)
{
    double d = __ll2double_rz(v);
    if ((s64)d != v) d = __longlong_as_double(__double_as_longlong(d) | 1);
    return to_odd_float(d);
}

template <typename T> struct narrow_to;
template <> struct narrow_to<double> {
    template <typename A> static __device__ __forceinline__ double from(A v) { return (double)v; }
};
template <> struct narrow_to<float> {
    template <typename A> static __device__ __forceinline__ float from(A v) { return (float)v; }
};
template <> struct narrow_to<f16> {
    template <typename A> static __device__ __forceinline__ f16 from(A v) { return to_f16(narrow_float(v)); }
};
template <> struct narrow_to<bf16> {
    template <typename A> static __device__ __forceinline__ bf16 from(A v) { return to_bf16(narrow_float(v)); }
};
template <> struct narrow_to<e4m3> {
    template <typename A> static __device__ __forceinline__ e4m3 from(A v) { return to_e4m3(narrow_float(v)); }
};
template <> struct narrow_to<e5m2> {
    template <typename A> static __device__ __forceinline__ e5m2 from(A v) { return to_e5m2(narrow_float(v)); }
};

/* Integers: nearest even, saturated to [low, high], NaN to 0. */
template <typename T> __device__ __forceinline__ T saturate(double v, double low, double high)
{
    if (v != v) return (T)0;
    double r = rint(v);
    return (T)(r < low ? low : r > high ? high : r);
}
template <typename T> __device__ __forceinline__ T saturate(float v, double low, double high)
{
    return saturate<T>((double)v, low, high);
}
template <typename T> __device__ __forceinline__ T saturate(s32 v, double low, double high)
{
    return (T)(v < low ? (s64)low : v > high ? (s64)high : (s64)v);
}
template <typename T> __device__ __forceinline__ T saturate(s64 v, double low, double high)
{
    return (T)(v < (s64)low ? (s64)low : v > (s64)high ? (s64)high : v);
}
template <> struct narrow_to<s8> {
    template <typename A> static __device__ __forceinline__ s8 from(A v) { return saturate<s8>(v, -128, 127); }
};
template <> struct narrow_to<u8> {
    template <typename A> static __device__ __forceinline__ u8 from(A v) { return saturate<u8>(v, 0, 255); }
};
template <> struct narrow_to<s32> {
    template <typename A> static __device__ __forceinline__ s32 from(A v) { return saturate<s32>(v, -2147483648.0, 2147483647.0); }
};
template <> struct narrow_to<u32> {
    template <typename A> static __device__ __forceinline__ u32 from(A v) { return saturate<u32>(v, 0, 4294967295.0); }
};
template <> struct narrow_to<s64> {
    static __device__ __forceinline__ s64 from(double v) { return v != v ? 0 : __double2ll_rn(v); }
    static __device__ __forceinline__ s64 from(float v) { return v != v ? 0 : __float2ll_rn(v); }
    static __device__ __forceinline__ s64 from(s32 v) { return v; }
    static __device__ __forceinline__ s64 from(s64 v) { return v; }
};
template <> struct narrow_to<boolean> {
    template <typename A> static __device__ __forceinline__ boolean from(A v) { return boolean{(u8)(v != 0)}; }
};

/* narrow<bf16>(v) */
template <typename T, typename A> __device__ __forceinline__ T narrow(A v) { return narrow_to<T>::from(v); }
