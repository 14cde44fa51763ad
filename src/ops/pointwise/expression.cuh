/* SPDX-License-Identifier: Apache-2.0
 * The element functions in kernels. The prologue defines FUNCTIONS, those of functions.def that are
 * used; the type is real. And FUNCTIONS_S64, those that are used of s64, if there are any. */
#pragma once
#include "kernels/math.cuh"
#include "kernels/normal_tail.h"
#include "kernels/vector.cuh"
#include "ops/pointwise/bessel.cuh"

#ifndef POINTWISE
#define POINTWISE __device__ __forceinline__
#endif

POINTWISE real infinity_of() { return (real)INFINITY_F; }
POINTWISE real round_f16(real v) { return widen<real>(narrow<f16>(v)); }
POINTWISE real round_bf16(real v) { return widen<real>(narrow<bf16>(v)); }

/* libm's functions, by the type of their argument. */
#define FORWARD(name) \
    POINTWISE float name##_of(float v) { return name##f(v); } \
    POINTWISE double name##_of(double v) { return name(v); }
#define FORWARD_TWO(name) \
    POINTWISE float name##_of(float a, float b) { return name##f(a, b); } \
    POINTWISE double name##_of(double a, double b) { return name(a, b); }
FORWARD(cbrt)
FORWARD(floor)
FORWARD(ceil)
FORWARD(trunc)
FORWARD(rint)
FORWARD(round)
FORWARD(exp2)
FORWARD(log2)
FORWARD(log10)
FORWARD(sin)
FORWARD(cos)
FORWARD(tan)
FORWARD(asin)
FORWARD(acos)
FORWARD(atan)
FORWARD(sinh)
FORWARD(cosh)
FORWARD(asinh)
FORWARD(acosh)
FORWARD(atanh)
FORWARD(erf)
FORWARD(erfc)
FORWARD(lgamma)
FORWARD(tgamma)
FORWARD_TWO(pow)
FORWARD_TWO(atan2)
FORWARD_TWO(fmod)
FORWARD_TWO(copysign)
POINTWISE real exp10_of(real v) { return pow_of((real)10, v); }
POINTWISE float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
POINTWISE double fma_of(double a, double b, double c) { return fma(a, b, c); }

/* e^v times 2^64 for v up to 20, whose power of two comes last: nothing is subnormal on the way, and
 * e^v down to e^-131 has all its digits. Below, the rest takes what the power no longer does. */
POINTWISE float exp_raised(float v)
{
    constexpr float LOG2E = 1.44269502f, LOG2E_LOW = 1.92596303e-8f;
    constexpr float LEAST = -190, RANGE = 220, WHOLE = 12582912; /* whose last bit is 1 */
    constexpr float BIASED = WHOLE + 127 + 64;
    const float part = __saturatef(fmaf(v, LOG2E / RANGE, -LEAST / RANGE));
    const float shifted = fmaf(part, RANGE, BIASED + LEAST), power = shifted - BIASED;
    const float rest = fmaf(v, LOG2E_LOW, fmaf(v, LOG2E, -power));
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(rest));
    return e * __uint_as_float(__float_as_uint(shifted) << 23);
}
POINTWISE double exp_raised(double v)
{
    const bool low = v < -64;
    return exp(low ? v + 64 : v) * (low ? 0x1p64 * 1.6038108905486379e-28 : 0x1p64); /* an exact sum */
}
#define EXP_RAISED(v) exp_raised(v)
#define EXP_LOWERED   ((real)0x1p-64)

/* 1 / v for v from 1 to 2: without the paths of quotients that may overflow. */
POINTWISE float recip_unit_of(float v)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return fmaf(r, fmaf(-v, r, 1), r);
}
POINTWISE double recip_unit_of(double v) { return 1 / v; }
#define OVER_UNIT(a, v) ((a) * recip_unit_of(v))

POINTWISE real sigmoid_of(real v)
{
    const real e = exp_raised(-abs_of(v));
    return OVER_UNIT(v < 0 ? e * EXP_LOWERED : 1, fma_of(e, EXP_LOWERED, 1)); /* times_sigmoid_of's, too */
}
POINTWISE real log1p_unit_of(real v) { return log1p_of(v); }
POINTWISE real softplus_of(real v) { return (v < 0 ? 0 : v) + log1p_of(exp_of(-abs_of(v))); }
POINTWISE real softplus_beta_of(real a, real b) /* b a may be infinite where the result is not */
{
    return (b * a <= 0 ? 0 : a) + log1p_of(exp_of(-abs_of(b * a))) / b;
}

/* What the normal distribution has beyond |v|, times 2^64: a polynomial in 1 / (1 + 0.35 |v|), whose last bit counts
 * threefold, times the density, whose exponent wants the rest of the square. Past 30 it is 0; NaN stays. */
POINTWISE float normal_tail_raised(float v)
{
    const float a = fabsf(v) > 30 ? 30 : fabsf(v), square = a * a, less = fmaf(a, a, -square);
    const float whole = fmaf(0.35f, a, 1), rest = fmaf(0.35f, a, 1 - whole);
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(whole));
    const float t = fmaf(r, fmaf(-rest, r, fmaf(-whole, r, 1)), r), e = exp_raised(-0.5f * square);
    return mica_normal_tail(t) * fmaf(e, -0.5f * less, e);
}
POINTWISE float normal_of(float v)
{
    const float tail = normal_tail_raised(v) * 0x1p-64f;
    return v < 0 ? tail : 1 - tail;
}
POINTWISE float times_normal_raised(float v)
{
    const float raised = normal_tail_raised(v);
    return v < 0 ? v * raised * 0x1p-64f : v * (1 - raised * 0x1p-64f);
}
POINTWISE double normal_of(double v) { return 0.5 * erfc(v * -0.70710678118654752); }
#define TIMES_NORMAL(v) (sizeof(real) == 4 ? (real)times_normal_raised((float)(v)) : times_normal_far(v))

#include "ops/pointwise/functions_body.h"

FUNCTIONS

/* s64 are carried as the bits of doubles. */
#ifdef FUNCTIONS_S64
namespace of_s64 {
typedef long long real;
#include "ops/pointwise/functions_whole_body.h"
FUNCTIONS_S64
} // namespace of_s64
#endif
