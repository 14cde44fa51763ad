/* SPDX-License-Identifier: Apache-2.0
 * Functions of libm in f32 for loops that the compiler turns into vector code, as functions_f32.h:
 * no branches, no calls. What f32 would lose (a reduced angle, the exponent of a power) is formed
 * in f64. Within the units that functions.def allows; but angles only up to MICA_ANGLES_F32 and
 * quotients up to MICA_QUOTIENTS_F32. */
#ifndef MICA_OPS_POINTWISE_CPU_ELEMENTARY_F32_H
#define MICA_OPS_POINTWISE_CPU_ELEMENTARY_F32_H

#include "ops/convert/cpu/functions_f64.h"

#define MICA_ANGLES_F32    1e6f
#define MICA_QUOTIENTS_F32 0x1p28f

/* Of any x: the mantissa lies between sqrt(1/2) and sqrt(2), so that nothing cancels near 1. */
MICA_INLINE float mica_log_any_f32(float x)
{
    const int small = x < FLT_MIN;
    const uint32_t u = mica_bits_of(small ? x * 0x1p25f : x) - 0x3f3504f3;
    const float n = (float)((int32_t)u >> 23) - (small ? 25.0f : 0.0f);
    const float rest = mica_log1p_f32(mica_float_of((u & 0x7fffff) + 0x3f3504f3) - 1);
    float log = n * 0x1.62e4p-1f + (rest + n * 0x1.7f7d1cp-20f);
    log = x > FLT_MAX ? x : log;
    return x > 0 ? log : x == 0 ? -(float)INFINITY : (float)NAN;
}

/* What 1 + x has rounded away is added to the logarithm. */
MICA_INLINE float mica_log1p_any_f32(float x)
{
    const float u = 1 + x, log = mica_log_any_f32(u) + (x - (u - 1)) / u;
    return x == 0 || x > FLT_MAX ? x : x == -1 ? -(float)INFINITY : log;
}

/* The power is halved, for 2^128 has no float bits of its own, and neither has half of the smallest
 * x. */
MICA_INLINE float mica_expm1_f32(float x)
{
    float r;
    const int tiny = fabsf(x) < FLT_EPSILON / 2;
    const float same = x;
    x = x < -30 ? -30 : x;
    x = x > 89 ? 89 : x;
    const float half = mica_float_of((mica_bits_of(mica_exp_split(x, &r)) + 126) << 23);
    return tiny ? same : 2 * (half * mica_exp_rest(r) + (half - 0.5f));
}

/* exp(r) 2^k, k from -300 to 300 */
MICA_INLINE float mica_scaled_exp_f32(float r, int32_t k)
{
    const int32_t half = k >> 1;
    return (mica_exp_rest(r) + 1) * mica_float_of((uint32_t)(half + 127) << 23) *
           mica_float_of((uint32_t)(k - half + 127) << 23);
}

MICA_INLINE float mica_exp2_f32(float x)
{
    const float round = 12582912;
    x = x < -151 ? -151 : x;
    x = x > 129 ? 129 : x;
    const float shifted = x + round, r = (x - (shifted - round)) * 0.693147181f;
    return mica_scaled_exp_f32(r, (int32_t)(mica_bits_of(shifted) - 0x4b400000));
}

/* 10^x = 2^n e^r; n log10(2) in two parts, n times the first of which is exact */
MICA_INLINE float mica_exp10_f32(float x)
{
    const float round = 12582912;
    x = x < -46 ? -46 : x;
    x = x > 39 ? 39 : x;
    const float shifted = x * 3.32192809f + round, n = shifted - round;
    const float r = ((x - n * 0x1.344p-2f) - n * 0x1.3509f8p-18f) * 2.30258509f;
    return mica_scaled_exp_f32(r, (int32_t)(mica_bits_of(shifted) - 0x4b400000));
}

/* exp(|x|) / 2, finite where sinh and cosh are */
MICA_INLINE float mica_half_exp_f32(float x)
{
    float r;
    x = fabsf(x) > 91 ? 91 : fabsf(x);
    const uint32_t bits = mica_bits_of(mica_exp_split(x, &r)) - 0x4b400000;
    return mica_scaled_exp_f32(r, (int32_t)bits - 1);
}

MICA_INLINE float mica_cosh_f32(float x)
{
    const float half = mica_half_exp_f32(x);
    return half + 0.25f / half;
}

MICA_INLINE float mica_sinh_f32(float x)
{
    const float a = fabsf(x), z = a * a, half = mica_half_exp_f32(x);
    return copysignf(a < 1 ? a + a * z * mica_sinh_poly_f32(z) : half - 0.25f / half, x);
}

MICA_INLINE float mica_asinh_f32(float x)
{
    const int large = fabsf(x) > 0x1p60f; /* the square would be infinite */
    const float a = fabsf(x), near = large ? 1 : a;
    const float rest = near + near * near / (1 + sqrtf(1 + near * near));
    const float log = mica_log1p_any_f32(large ? a : rest);
    return copysignf(large ? log + 0.693147181f : log, x);
}

MICA_INLINE float mica_acosh_f32(float x)
{
    const int large = x > 0x1p60f;
    const float t = large ? 1 : x - 1, log = mica_log1p_any_f32(large ? x : t + sqrtf(t * (t + 2)));
    return x < 1 ? (float)NAN : large ? log + 0.693147181f : log;
}

MICA_INLINE float mica_atanh_f32(float x)
{
    const float a = fabsf(x), z = a * a, log = 0.5f * mica_log_any_f32((1 + a) / (1 - a));
    return copysignf(a < 0.5f ? a + a * z * mica_atanh_odd_poly_f32(z) : log, x);
}

/* ---- circles ---- */

/* x = n pi / 2 + r; n's low bits */
MICA_INLINE uint32_t mica_quadrant_f32(float x, float *r)
{
    const double round = 0x1.8p52, wide = (double)x;
    const double shifted = wide * 0.63661977236758134 + round, n = shifted - round;
    *r = (float)((wide - n * 0x1.921fb544p0) - n * 0x1.0b4611a626331p-34);
    return (uint32_t)mica_bits_of_f64(shifted);
}

/* For |r| <= pi / 4. */
MICA_INLINE float mica_sin_near_f32(float r)
{
    const float z = r * r;
    return z == 0 ? r : r + r * z * mica_sin_poly_f32(z); /* -0 */
}

MICA_INLINE float mica_cos_near_f32(float r)
{
    const float z = r * r;
    return (1 - 0.5f * z) + z * z * mica_cos_poly_f32(z);
}

/* The sine of an angle quarters further than n says. */
MICA_INLINE float mica_turned_f32(uint32_t n, float r)
{
    const float v = n & 1 ? mica_cos_near_f32(r) : mica_sin_near_f32(r);
    return mica_float_of(mica_bits_of(v) ^ (n & 2) << 30);
}

MICA_INLINE float mica_sin_f32(float x)
{
    float r;
    const uint32_t n = mica_quadrant_f32(x, &r);
    return mica_turned_f32(n, r);
}

MICA_INLINE float mica_cos_f32(float x)
{
    float r;
    const uint32_t n = mica_quadrant_f32(x, &r);
    return mica_turned_f32(n + 1, r);
}

MICA_INLINE float mica_tan_f32(float x)
{
    float r;
    const uint32_t n = mica_quadrant_f32(x, &r);
    const float s = mica_sin_near_f32(r), c = mica_cos_near_f32(r);
    return (n & 1 ? -c : s) / (n & 1 ? s : c);
}

/* The arc sine of a from 0 to 1 is this up to MIDDLE, else pi / 2 - twice this. */
#define MICA_ASIN_MIDDLE 0.5625f
MICA_INLINE float mica_asin_part_f32(float a)
{
    const int far = a > MICA_ASIN_MIDDLE;
    const float z = far ? 0.5f * (1 - a) : a * a, root = far ? sqrtf(z) : a;
    return root + root * z * mica_asin_poly_f32(z);
}

MICA_INLINE float mica_asin_f32(float x)
{
    const float a = fabsf(x), part = mica_asin_part_f32(a);
    const float far = 0x1.921fb6p0f - (2 * part + 0x1.777a5cp-25f);
    return copysignf(a > MICA_ASIN_MIDDLE ? far : part, x);
}

MICA_INLINE float mica_acos_f32(float x)
{
    const float a = fabsf(x), part = mica_asin_part_f32(a);
    const float far = x < 0 ? 0x1.921fb6p1f - (2 * part + 0x1.777a5cp-24f) : 2 * part;
    const float near = 0x1.921fb6p0f - (copysignf(part, x) + 0x1.777a5cp-25f);
    return a > MICA_ASIN_MIDDLE ? far : near;
}

/* For a from 0 to 1. */
MICA_INLINE float mica_atan_part_f32(float a)
{
    const float z = a * a;
    return a + a * z * mica_atan_poly_f32(z);
}

MICA_INLINE float mica_atan_f32(float x)
{
    const float a = fabsf(x), part = mica_atan_part_f32(a > 1 ? 1 / a : a);
    return copysignf(a > 1 ? 0x1.921fb6p0f - (part + 0x1.777a5cp-25f) : part, x);
}

MICA_INLINE float mica_atan2_f32(float y, float x)
{
    const float a = fabsf(y), b = fabsf(x), low = a < b ? a : b, high = a < b ? b : a;
    const float ratio = low == high ? (high == 0 ? 0 : 1) : low / high; /* 0 / 0, inf / inf */
    float angle = mica_atan_part_f32(ratio);
    angle = a > b ? 0x1.921fb6p0f - (angle + 0x1.777a5cp-25f) : angle;
    angle = mica_bits_of(x) >> 31 ? 0x1.921fb6p1f - (angle + 0x1.777a5cp-24f) : angle;
    return x != x || y != y ? x + y : copysignf(angle, y);
}

MICA_INLINE float mica_hypot_f32(float x, float y)
{
    const double a = (double)x, b = (double)y;
    const float root = (float)sqrt(a * a + b * b);
    return fabsf(x) > FLT_MAX || fabsf(y) > FLT_MAX ? (float)INFINITY : root;
}

/* ---- the error function ---- */

/* exp(-x^2), the square in two parts, of which the first is exact. */
MICA_INLINE float mica_exp_square_f32(float x)
{
    float r;
    const float high = mica_float_of(mica_bits_of(x) & 0xfffff000);
    const uint32_t n = mica_bits_of(mica_exp_split(-high * high, &r));
    return (mica_exp_rest(r + (high - x) * (high + x)) + 1) * mica_float_of((n + 127 + 64) << 23) *
           0x1p-64f;
}

/* erfc(a) for a from 0: twice the normal distribution's tail beyond sqrt(2) a */
MICA_INLINE float mica_erf_tail_f32(float a)
{
    a = a > 10.5f ? 10.5f : a;
    return 2 * mica_normal_tail(1 / (1 + 0.49497475f * a)) * mica_exp_square_f32(a);
}

MICA_INLINE float mica_erfc_f32(float x)
{
    const float a = fabsf(x), tail = mica_erf_tail_f32(a);
    const float near = 1 - (x + x * mica_erf_poly_f32(a * a));
    return a < 0.5f ? near : x < 0 ? 2 - tail : tail;
}

MICA_INLINE float mica_erf_f32(float x)
{
    const float a = fabsf(x), z = a * a;
    return copysignf(a < 1 ? a + a * mica_erf_poly_f32(z) : 1 - mica_erf_tail_f32(a), x);
}

/* ---- roots, powers, quotients ---- */

/* A third of the bits is a root to 5 digits; two of Halley's steps triple them each. */
MICA_INLINE float mica_cbrt_f32(float x)
{
    const float a = fabsf(x), scaled = a < FLT_MIN ? a * 0x1p24f : a;
    const double v = (double)scaled;
    double root = (double)mica_float_of(mica_bits_of(scaled) / 3 + 709958130);
    root *= (root * root * root + 2 * v) / (2 * root * root * root + v);
    root *= (root * root * root + 2 * v) / (2 * root * root * root + v);
    const float result = (float)root * (a < FLT_MIN ? 0x1p-8f : 1);
    return copysignf(a > 0 && a <= FLT_MAX ? result : a, x);
}

/* |a|^b = exp(b log |a|), in f64 where its exponent is good to more digits than the power needs;
 * what is below the normal numbers of f32 is not below those of f64. */
MICA_INLINE float mica_pow_f32(float a, float b)
{
    const float size = fabsf(a);
    double log = mica_log_normal_f64((double)size, 0);
    log = size > 0 ? log : -1e300; /* b from the smallest: as good as an infinity, but for b = 0 */
    log = size <= FLT_MAX ? log : 1e300;
    const float power = (float)mica_exp_f64((double)b * log);
    const int whole = truncf(b) == b, odd = whole && truncf(0.5f * b) != 0.5f * b;
    float value = odd ? copysignf(power, a) : power;
    value = a < 0 && size <= FLT_MAX && !whole ? (float)NAN : value; /* no real power */
    value = a != a ? a : value;
    return b == 0 || a == 1 || (a == -1 && fabsf(b) > FLT_MAX) ? 1 : value;
}

/* a - b trunc(a / b), exact: the quotient, one too large at most, times b has 53 digits. */
MICA_INLINE float mica_fmod_f32(float a, float b)
{
    const double x = fabs((double)a), y = fabs((double)b);
    double rest = x - y * trunc(x / y);
    rest = rest < 0 ? rest + y : rest;
    rest = x < y ? x : rest; /* b may be infinite */
    return copysignf((float)rest, a);
}

#endif
