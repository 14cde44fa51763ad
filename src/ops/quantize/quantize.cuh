/* SPDX-License-Identifier: Apache-2.0
 * Types of quantised elements and scales in kernels, and arithmetic that rounds once. */
#pragma once
#include "kernels/pairs.cuh"
#include "kernels/types.cuh"
#include "ops/quantize/quantize_args.h"

#define QUANTIZE __device__ __forceinline__
QUANTIZE float mul_of(float a, float b) { return __fmul_rn(a, b); }
QUANTIZE float add_of(float a, float b) { return __fadd_rn(a, b); }
QUANTIZE float sub_of(float a, float b) { return __fsub_rn(a, b); }
QUANTIZE float div_of(float a, float b) { return __fdiv_rn(a, b); }
QUANTIZE float rint_of(float a) { return rintf(a); }
QUANTIZE double mul_of(double a, double b) { return __dmul_rn(a, b); }
QUANTIZE double add_of(double a, double b) { return __dadd_rn(a, b); }
QUANTIZE double sub_of(double a, double b) { return __dsub_rn(a, b); }
QUANTIZE double div_of(double a, double b) { return a / b; }
QUANTIZE double rint_of(double a) { return rint(a); }
QUANTIZE real nan_of() { return (real)NAN_F; }
QUANTIZE float sign_of(float v, float of) { return __uint_as_float((__float_as_uint(v) & 0x7fffffffu) | (__float_as_uint(of) & 0x80000000u)); }
QUANTIZE double sign_of(double v, double of) { return __longlong_as_double((__double_as_longlong(v) & ~(1ll << 63)) | (__double_as_longlong(of) & (1ll << 63))); }
#define CODE_NAME(n) n
#include "ops/quantize/quantize_body.h"

/* ---- powers of two ---- */

struct e8m0 { u8 bits; };
template <typename A> QUANTIZE A widen(e8m0 v)
{
    if (v.bits == 255) return (A)NAN_F;
    /* 2^-127 is no normal f32 */
    return (A)(v.bits ? __uint_as_float((u32)v.bits << 23) : __uint_as_float(0x00400000u));
}
/* Of what is made of largest magnitudes: 2^(floor(log2 v) - exponent) within the type's ends. */
QUANTIZE e8m0 power_of(double v, int exponent)
{
    return e8m0{(u8)(code_power(__double_as_longlong(v), exponent) + 127)};
}

/* The nearest, of two the larger, of a number that is not negative. */
QUANTIZE e8m0 power_near(double v)
{
    const s64 bits = __double_as_longlong(v);
    if (!(v >= 0) || isinf(v)) return e8m0{255};
    const int e = (int)(bits >> 52) - 1023 + (int)(bits >> 51 & 1);
    return e8m0{(u8)(v < 0x1p-127 ? 0 : e > 127 ? 254 : e + 127)};
}

/* A scale of what a block holds, as it is stored. */
template <typename T> QUANTIZE void put_scale(T *to, double v, int, bool) { *to = narrow<T>(v); }
QUANTIZE void put_scale(e8m0 *to, double v, int exponent, bool ends) { *to = ends ? power_near(v) : power_of(v, exponent); }

/* ---- elements of four bits ---- */

/* Integers below 2^23 in the last bits of f32, which is several times faster than a conversion. */
constexpr float INTEGERS = 8388608.0f;

QUANTIZE float value_of(int code, u32 nibble)
{
    if (code == CODE_U4) return __uint_as_float(0x4b000000u | nibble) - INTEGERS;
    if (code == CODE_S4) return __uint_as_float(0x4b000000u | (nibble ^ 8)) - (INTEGERS + 8);
    const u32 e = nibble >> 1 & 3, m = nibble & 1;
    const float a = e ? __uint_as_float((e + 126) << 23 | m << 22) : m * 0.5f;
    return nibble & 8 ? -a : a;
}

/* Into the word around it, where other threads may put their elements at the same time. */
QUANTIZE void put_nibble(void *base, s64 i, u32 nibble)
{
    u8 *byte = (u8 *)base + (i >> 1);
    const u64 off = (u64)byte & 3;
    u32 *word = (u32 *)(byte - off), old = *word, seen;
    const int shift = (int)off * 8 + (i & 1 ? 4 : 0);
    do {
        seen = old;
        old = atomicCAS(word, seen, (seen & ~(15u << shift)) | nibble << shift);
    } while (old != seen);
}

/* Of a number within [-6, 6]. The magnitudes 0 to 2, 2 to 4 and 4 to 6 are multiples of 1/2, 1 and 2: adding
 * a number with as many units in its last place rounds to them, the number of halves, ones or twos and what
 * lies below in the last bits. */
QUANTIZE u32 e2m1_of(float v)
{
    const float a = fabsf(v), units = a < 2 ? 6291456.0f : a < 4 ? 12582912.0f + 2 : 25165824.0f + 2 * 4;
    return (__float_as_uint(__fadd_rn(a, units)) & 7) | (__float_as_uint(v) >> 28 & 8);
}

/* Of a number that is within the type's ends. */
QUANTIZE u32 nibble_of(int code, float v)
{
    return code == CODE_E2M1 ? e2m1_of(v) : (u32)(int)v & 15;
}
