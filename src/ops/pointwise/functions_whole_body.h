/* SPDX-License-Identifier: Apache-2.0
 * What the values of functions.def are made of where they are of s64: C (cpu/functions_s64.c) and,
 * within a namespace, CUDA (expression.cu). Bits beyond 64 are lost, overflow is none. POINTWISE is
 * as in functions_body.h, whose names these are. */

typedef long long whole_t;
typedef unsigned long long bits_t;

POINTWISE whole_t whole(whole_t v)
{
    return v;
}

POINTWISE whole_t sum_of(whole_t a, whole_t b)
{
    return (whole_t)((bits_t)a + (bits_t)b);
}

POINTWISE whole_t difference_of(whole_t a, whole_t b)
{
    return (whole_t)((bits_t)a - (bits_t)b);
}

POINTWISE whole_t product_of(whole_t a, whole_t b)
{
    return (whole_t)((bits_t)a * (bits_t)b);
}

POINTWISE whole_t negative_of(whole_t v)
{
    return difference_of(0, v);
}

POINTWISE whole_t abs_of(whole_t v)
{
    return v < 0 ? negative_of(v) : v;
}

POINTWISE whole_t clip_of(whole_t v, whole_t low, whole_t high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

/* ---- roundings: whole numbers are themselves ---- */

POINTWISE whole_t floor_of(whole_t v)
{
    return v;
}

POINTWISE whole_t ceil_of(whole_t v)
{
    return v;
}

POINTWISE whole_t trunc_of(whole_t v)
{
    return v;
}

POINTWISE whole_t rint_of(whole_t v)
{
    return v;
}

POINTWISE whole_t round_of(whole_t v)
{
    return v;
}

/* ---- quotients: 0 where b is 0, and the least number by -1 is itself ---- */

POINTWISE whole_t fmod_of(whole_t a, whole_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}

POINTWISE whole_t rem_of(whole_t a, whole_t b)
{
    const whole_t r = fmod_of(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

POINTWISE whole_t floordiv_of(whole_t a, whole_t b)
{
    if (b == 0) return 0;
    if (b == -1) return negative_of(a);
    const whole_t quotient = a / b, left = a % b;
    return left != 0 && (left < 0) != (b < 0) ? quotient - 1 : quotient;
}

POINTWISE whole_t gcd_of(whole_t a, whole_t b)
{
    bits_t m = (bits_t)abs_of(a), n = (bits_t)abs_of(b);
    while (n) {
        const bits_t left = m % n;
        m = n;
        n = left;
    }
    return (whole_t)m;
}

POINTWISE whole_t lcm_of(whole_t a, whole_t b)
{
    const bits_t divisor = (bits_t)gcd_of(a, b);
    if (divisor == 0) return 0;
    return (whole_t)((bits_t)abs_of(a) / divisor * (bits_t)abs_of(b));
}

/* ---- bits ---- */

POINTWISE whole_t shl_of(whole_t a, whole_t b)
{
    return b < 0 || b > 63 ? 0 : (whole_t)((bits_t)a << (int)b);
}

POINTWISE whole_t shr_of(whole_t a, whole_t b)
{
    return b < 0 || b > 63 ? (a < 0 ? -1 : 0) : a >> (int)b;
}

POINTWISE whole_t popcount_of(whole_t v)
{
    bits_t left = (bits_t)v;
    int count = 0;
    for (; left; left &= left - 1) count++;
    return count;
}

/* ---- from and to reals ---- */

/* Towards 0, saturating, NaN is 0. */
POINTWISE whole_t whole_of(double v)
{
    const double end = 9223372036854775808.0;
    if (v >= end) return 0x7fffffffffffffffLL;
    if (v < -end) return -0x7fffffffffffffffLL - 1;
    return v != v ? 0 : (whole_t)v;
}

/* Rounded to odd in its upper bits, so that the rounding to f32 or less that follows is the only
 * one that counts. */
POINTWISE double near_of(whole_t v)
{
    const whole_t below = v & ~(whole_t)2047;
    const bool exact = v == below || (v < ((whole_t)1 << 53) && v > -((whole_t)1 << 53));
    return (double)(exact ? v : below | 2048);
}
