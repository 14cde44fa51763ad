/* SPDX-License-Identifier: Apache-2.0
 * The element functions in kernels. The prologue defines FUNCTIONS, those of functions.def that are
 * used; the type is real. And FUNCTIONS_S64, those that are used of s64, if there are any. */
#pragma once
#include "kernels/math.cuh"
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

POINTWISE real sigmoid_of(real v)
{
    const real e = exp_of(-abs_of(v));
    return (v < 0 ? e : 1) / (1 + e);
}
POINTWISE real log1p_unit_of(real v) { return log1p_of(v); }
POINTWISE real softplus_of(real v) { return (v < 0 ? 0 : v) + log1p_of(exp_of(-abs_of(v))); }
POINTWISE real normal_of(real v) { return (real)0.5 * erfc_of(v * (real)-0.70710678118654752); }

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
