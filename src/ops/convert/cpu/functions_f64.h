/* SPDX-License-Identifier: Apache-2.0
 * exp and its relatives in f64, as functions_f32.h has them in f32: for loops that the compiler
 * turns into vector code, within a few units in the last place over the whole range, subnormal
 * results included. Of integers of 64 bits only what vectors of 32 bytes can do: no conversion, no
 * arithmetic shift. */
#ifndef MICA_OPS_CONVERT_CPU_FUNCTIONS_F64_H
#define MICA_OPS_CONVERT_CPU_FUNCTIONS_F64_H

#include "ops/convert/cpu/functions_f32.h"
#include "ops/convert/cpu/polynomials.h"

#include <float.h>

MICA_INLINE double mica_double_of(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

MICA_INLINE uint64_t mica_bits_of_f64(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

#define MICA_LN2_HIGH_F64 0x1.62e42feep-1 /* 32 digits: an exponent times it is exact */
#define MICA_LN2_LOW_F64  0x1.a39ef35793c76p-33

/* x = n ln 2 + r; returns 1.5 2^52 + n, whose low bits are n. */
MICA_INLINE double mica_exp_split_f64(double x, double *r)
{
    const double round = 0x1.8p52;
    double shifted = x * 1.4426950408889634 + round, n = shifted - round;
    *r = (x - n * MICA_LN2_HIGH_F64) - n * MICA_LN2_LOW_F64;
    return shifted;
}

/* exp(r) - 1 for |r| <= ln 2 / 2 */
MICA_INLINE double mica_exp_rest_f64(double r)
{
    return mica_exp_poly_f64(r) * (r * r) + r;
}

/* 2^n, n + bias being from 1 to 2046: times 2^bias. The shift drops all but n. */
MICA_INLINE double mica_power_f64(double shifted, uint64_t bias)
{
    return mica_double_of((mica_bits_of_f64(shifted) + bias) << 52);
}

/* exp(x), 2^n in two factors: neither 2^1024 nor subnormal powers have bits of their own. */
MICA_INLINE double mica_exp_f64(double x)
{
    double r;
    x = x < -746 ? -746 : x; /* results past these are 0 and infinity */
    x = x > 710 ? 710 : x;
    double shifted = mica_exp_split_f64(x, &r);
    double power = mica_power_f64(shifted, x > 0 ? 1023 - 1 : 1023 + 128);
    return (mica_exp_rest_f64(r) + 1) * power * (x > 0 ? 2 : 0x1p-128);
}

/* exp(x + rest) 2^256 for x from -850 to 40 and a small rest */
MICA_INLINE double mica_exp_raised_f64(double x, double rest)
{
    double r, shifted = mica_exp_split_f64(x, &r);
    return (mica_exp_rest_f64(r + rest) + 1) * mica_power_f64(shifted, 1023 + 256);
}

MICA_INLINE double mica_exp_sum_f64(double x, double rest)
{
    return mica_exp_raised_f64(x, rest) * 0x1p-256;
}

/* exp(x) for x <= 0 (40 and less are right, too) */
MICA_INLINE double mica_exp_unclamped_f64(double x) /* from -850 */
{
    return mica_exp_sum_f64(x, 0);
}

MICA_INLINE double mica_exp_negative_f64(double x)
{
    return mica_exp_unclamped_f64(x < -746 ? -746 : x);
}

/* exp(x) - 1; the power is halved, for 2^1024 has no bits of its own, and neither has half of the
 * smallest x. */
MICA_INLINE double mica_expm1_f64(double x)
{
    double r;
    const int tiny = fabs(x) < DBL_EPSILON / 2;
    const double same = x;
    x = x < -60 ? -60 : x;
    x = x > 710 ? 710 : x;
    double half = mica_power_f64(mica_exp_split_f64(x, &r), 1023 - 1);
    return tiny ? same : 2 * (half * mica_exp_rest_f64(r) + (half - 0.5));
}

/* The same for x <= 0 */
MICA_INLINE double mica_expm1_negative_f64(double x)
{
    double r;
    x = x < -60 ? -60 : x;
    double power = mica_power_f64(mica_exp_split_f64(x, &r), 1023);
    return power * mica_exp_rest_f64(r) + (power - 1);
}

/* log(x) of normal positive numbers: the mantissa lies between sqrt(1/2) and sqrt(2), so that
 * nothing cancels near 1. less: what is taken from the exponent.
 * log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + z p(z))), s = f / (2 + f), z = s^2 */
MICA_INLINE double mica_log_normal_f64(double x, double less)
{
    const uint64_t middle = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000;
    const uint64_t u = mica_bits_of_f64(x) + (one - middle);
    const double n = mica_double_of(u >> 52 | 0x4330000000000000) - (0x1p52 + 1023) - less;
    const double f = mica_double_of((u & 0xfffffffffffff) + middle) - 1;
    const double s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    const double rest = s * (half + z * mica_atanh_poly_f64(z));
    return n * MICA_LN2_HIGH_F64 - ((half - (rest + n * MICA_LN2_LOW_F64)) - f);
}

/* log(x) of any x */
MICA_INLINE double mica_log_f64(double x)
{
    const int small = x < DBL_MIN;
    const double log = mica_log_normal_f64(small ? x * 0x1p54 : x, small ? 54 : 0);
    return x > 0 ? x > DBL_MAX ? x : log : x == 0 ? -(double)INFINITY : (double)NAN;
}

/* log(1 + x): what 1 + x has rounded away is added to the logarithm. */
MICA_INLINE double mica_log1p_f64(double x)
{
    const double u = 1 + x, log = mica_log_f64(u) + (x - (u - 1)) / u;
    return x == 0 || x > DBL_MAX ? x : x == -1 ? -(double)INFINITY : log;
}

/* The same for x from 0 to 1. */
MICA_INLINE double mica_log1p_unit_f64(double x)
{
    const double u = 1 + x;
    return mica_log_normal_f64(u, 0) + (x - (u - 1)) / u + (x - x); /* NaN passes */
}

MICA_INLINE double mica_tanh_f64(double x)
{
    double e = mica_expm1_negative_f64(-2 * fabs(x));
    return copysign(e / (e + 2), x);
}

/* 1 / (1 + exp(-x)) */
MICA_INLINE double mica_sigmoid_f64(double x)
{
    double e = mica_exp_negative_f64(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

/* log(1 + exp(a x)) / a; a x may be infinite where the result is not. */
MICA_INLINE double mica_softplus_f64(double x, double a)
{
    double log = mica_log1p_unit_f64(mica_exp_negative_f64(-fabs(a * x)));
    return (a * x <= 0 ? 0 : x) + log / a;
}

/* Past it the normal distribution's density is 0; NaN passes. */
MICA_INLINE double mica_normal_reach_f64(double x)
{
    x = fabs(x);
    return x > 40 ? 40 : x;
}

/* exp(-scale x^2) 2^256, the square in two parts, of which the first is exact. */
MICA_INLINE double mica_exp_square_raised_f64(double x, double scale)
{
    double high = mica_double_of(mica_bits_of_f64(x) & 0xfffffffff8000000);
    return mica_exp_raised_f64(-scale * high * high, -scale * (x - high) * (x + high));
}

MICA_INLINE double mica_exp_square_f64(double x, double scale)
{
    return mica_exp_square_raised_f64(x, scale) * 0x1p-256;
}

/* exp(x^2) erfc(x) for x from 0 to 30 */
MICA_INLINE double mica_tail_f64(double x)
{
    return mica_tail_poly_f64((x - 4) / (x + 4)) / (1 + 2 * x);
}

/* The normal distribution's integral up to x; density receives exp(-x^2 / 2). */
MICA_INLINE double mica_normal_f64(double x, double *density)
{
    double a = mica_normal_reach_f64(x), e = mica_exp_square_f64(a, 0.5);
    double tail = 0.5 * e * mica_tail_f64(0.7071067811865476 * a);
    *density = e;
    return x < 0 ? tail : 1 - tail;
}

/* x times it, with all digits where the integral alone would be subnormal. */
MICA_INLINE double mica_times_normal_f64(double x)
{
    double a = fabs(x), tail = 0.5 * mica_tail_f64(0.7071067811865476 * a);
    double raised = tail * mica_exp_square_raised_f64(a, 0.5);
    raised = a < 40 ? raised : 0;
    return x < 0 ? x * raised * 0x1p-256 : x * (1 - raised * 0x1p-256);
}

MICA_INLINE double mica_erfc_f64(double x)
{
    double a = fabs(x) > 28 ? 28 : fabs(x);
    double tail = mica_exp_square_f64(a, 1) * mica_tail_f64(a);
    return x < 0 ? 2 - tail : tail;
}

#endif
