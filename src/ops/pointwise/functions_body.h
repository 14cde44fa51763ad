/* SPDX-License-Identifier: Apache-2.0
 * What the values of functions.def are made of, in the arithmetic type `real`: C for float and for
 * double (functions_loops.h), and CUDA (expression.cu). Each has POINTWISE, sqrt_of(v), exp_of(v),
 * ... for real v, log1p_unit_of(v) for v from 0 to 1, and infinity_of(). */

typedef long long whole_t;
typedef unsigned long long bits_t;

/* Of a real that holds an integer. */
POINTWISE whole_t whole(real v)
{
    return (whole_t)v;
}

POINTWISE real saturate(real v, double low, double high)
{
    return v != v ? 0 : v <= (real)low ? (real)low : v >= (real)high ? (real)high : trunc_of(v);
}

/* s64's are other functions, whose bits beyond 64 are lost (functions_whole_body.h). */
POINTWISE real sum_of(real a, real b)
{
    return a + b;
}

POINTWISE real difference_of(real a, real b)
{
    return a - b;
}

POINTWISE real product_of(real a, real b)
{
    return a * b;
}

POINTWISE real negative_of(real v)
{
    return -v;
}

POINTWISE real whole_of(real v)
{
    return saturate(v, -9223372036854775808.0, 9223372036854775808.0);
}

POINTWISE real near_of(real v)
{
    return v;
}

/* ---- quotients ---- */

POINTWISE real rem_of(real a, real b)
{
    const real r = fmod_of(a, b);
    if (r == 0) return copysign_of((real)0, b);
    return (r < 0) != (b < 0) ? r + b : r;
}

/* Of what rem leaves, so that both agree where a / b is rounded to an integer. */
POINTWISE real floordiv_of(real a, real b)
{
    if (b == 0) return a / b;
    const real quotient = (a - rem_of(a, b)) / b, below = floor_of(quotient);
    return quotient - below > (real)0.5 ? below + 1 : below;
}

POINTWISE real gcd_of(real a, real b)
{
    whole_t m = whole(abs_of(a)), n = whole(abs_of(b));
    while (n) {
        const whole_t left = m % n;
        m = n;
        n = left;
    }
    return (real)m;
}

POINTWISE real lcm_of(real a, real b)
{
    const real divisor = gcd_of(a, b);
    if (divisor == 0) return 0;
    return (real)(unsigned)((bits_t)whole(abs_of(a) / divisor) * (bits_t)whole(abs_of(b)));
}

/* ---- bits: the low 32 are right ---- */

POINTWISE real shl_of(real a, real b)
{
    return b < 0 || b > 31 ? 0 : (real)(unsigned)((bits_t)whole(a) << (int)b);
}

POINTWISE real shr_of(real a, real b)
{
    return b < 0 || b > 31 ? (a < 0 ? -1 : 0) : (real)(whole(a) >> (int)b);
}

POINTWISE real popcount_of(real a)
{
    unsigned left = (unsigned)whole(a);
    int count = 0;
    for (; left; left &= left - 1) count++;
    return (real)count;
}

/* ---- exponentials ---- */

/* Where low is above high, high; NaN passes. */
POINTWISE real clip_of(real v, real low, real high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

POINTWISE real logaddexp_of(real a, real b)
{
    const real larger = a != a || a > b ? a : b, apart = abs_of(a - b);
    if (a == b) return a + (real)0.69314718055994531; /* infinities, too */
    return larger + log1p_unit_of(exp_of(-apart));
}

POINTWISE real logaddexp2_of(real a, real b)
{
    const real larger = a != a || a > b ? a : b, apart = abs_of(a - b);
    if (a == b) return a + 1;
    return larger + log1p_unit_of(exp2_of(-apart)) * (real)1.4426950408889634;
}

/* ---- products with what is small ---- */

/* v from 1 to 2 */
#ifndef OVER_UNIT
#define OVER_UNIT(a, v) ((a) / (v))
#endif

/* e^-64 */
#define RAISED ((real)1.6038108905486379e-28)

/* e^v is the result times `by`, v being 20 or less. Where e^v may be subnormal, a product with it
 * has all its digits if `by` comes last. */
POINTWISE real exp_raised_of(real v, real *by)
{
#ifdef EXP_RAISED
    *by = EXP_LOWERED;
    return EXP_RAISED(v);
#else
    *by = v < -64 ? RAISED : 1;
    return exp_of(v < -64 ? v + 64 : v); /* a sum that is exact */
#endif
}

/* a / (1 + e^-v); |a| is no more than |v|. */
POINTWISE real times_sigmoid_of(real a, real v)
{
    real by;
    const real e = exp_raised_of(-abs_of(v), &by);
    return OVER_UNIT(v < 0 ? a * e * by : a, 1 + e * by);
}

/* v times the normal distribution's integral up to v; where that is small by the series of what is
 * left of it beside the density. */
POINTWISE real times_normal_far(real v)
{
    if (!(v < (sizeof(real) == 4 ? -12 : -36) && v > -50)) return v * normal_of(v);
    const real square = v * v, less = fma_of(v, v, -square), w = 1 / square;
    real series = 945 - w * 10395;
    series = 105 - w * series;
    series = 15 - w * series;
    series = 3 - w * series;
    series = 1 - w * series;
    series = 1 - w * series;
    const real e = exp_of(64 - square / 2) * (1 - less / 2);
    return series * e * ((real)-0.3989422804014327 * RAISED);
}
#ifndef TIMES_NORMAL
#define TIMES_NORMAL(v) times_normal_far(v)
#endif
POINTWISE real times_normal_of(real v)
{
    return TIMES_NORMAL(v);
}

/* tanh(log(1 + e^v)) is n / (n + 2) with n = e^v (e^v + 2). */
POINTWISE real mish_of(real v)
{
    real by;
    const real e = exp_raised_of(v > 20 ? 20 : v, &by);
    const real n = e * (e * by + 2);
    return v > 20 ? v : v * (n / (n * by + 2)) * by;
}

/* ---- circles ---- */

/* v - 2 round(v / 2) is exact: half a turn is 1. */
POINTWISE real sinpi_of(real v)
{
    const real pi = (real)3.14159265358979324;
    real r = v - 2 * rint_of(v / 2);
    r = r > (real)0.5 ? 1 - r : r < (real)-0.5 ? -1 - r : r;
    return sin_of(pi * r);
}

POINTWISE real cospi_of(real v)
{
    const real pi = (real)3.14159265358979324;
    const real r = abs_of(v - 2 * rint_of(v / 2));
    return r <= (real)0.25   ? cos_of(pi * r)
           : r <= (real)0.75 ? sin_of(pi * ((real)0.5 - r))
                             : -cos_of(pi * (1 - r));
}

/* ---- gamma ---- */

/* Reflection, then up by recurrence to where the asymptotic series holds. */
POINTWISE real digamma_of(real v)
{
    const real pi = (real)3.14159265358979324;
    real sum = 0;
    if (v == 0) return copysign_of(infinity_of(), -v);
    if (v < 0) {
        const real r = v - rint_of(v);
        if (r == 0 || r != r) return infinity_of() - infinity_of();
        sum = -pi * cospi_of(r) / sinpi_of(r);
        v = 1 - v;
    }
    for (; v < 10; v += 1) sum -= 1 / v;
    const real z = 1 / (v * v);
    real series = (real)(-1.0 / 12);
    series = (real)(691.0 / 32760) + z * series;
    series = (real)(-1.0 / 132) + z * series;
    series = (real)(1.0 / 240) + z * series;
    series = (real)(-1.0 / 252) + z * series;
    series = (real)(1.0 / 120) + z * series;
    series = (real)(-1.0 / 12) + z * series;
    return sum + (log_of(v) - (real)0.5 / v + z * series);
}
