/* SPDX-License-Identifier: Apache-2.0
 * exp and its relatives in f32, for loops that the compiler turns into vector code: no branches, no
 * calls. Within a few units in the last place over the whole range, subnormal results included;
 * NaN passes. Polynomials by minimax fits of the relative error. */
#ifndef MICA_OPS_CONVERT_CPU_FUNCTIONS_F32_H
#define MICA_OPS_CONVERT_CPU_FUNCTIONS_F32_H

#include "kernels/normal_tail.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define MICA_INLINE __attribute__((always_inline)) static inline

MICA_INLINE float mica_float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

MICA_INLINE uint32_t mica_bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* x = n ln 2 + r; returns 1.5 2^23 + n, whose low bits are n. */
MICA_INLINE float mica_exp_split(float x, float *r)
{
    const float round = 12582912;
    const float ln2_high = 0x1.62e4p-1f; /* 16 digits: n times it is exact */
    const float ln2_low = 0x1.7f7d1cp-20f;
    float shifted = x * 1.44269504f + round, n = shifted - round;
    *r = (x - n * ln2_high) - n * ln2_low;
    return shifted;
}

/* exp(r) - 1 = r + r^2 q(r) for |r| <= ln 2 / 2; the fit is good to 3.9e-9 */
MICA_INLINE float mica_exp_rest(float r)
{
    float q = 0x1.6a244cp-10f;
    q = q * r + 0x1.1239d4p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    return q * (r * r) + r;
}

/* exp within 2 units */
MICA_INLINE float mica_exp_f32(float x)
{
    const float low = -104, high = 89; /* results past these are 0 and infinity */
    float r;
    x = x < low ? low : x;
    x = x > high ? high : x;
    int32_t k = (int32_t)(mica_bits_of(mica_exp_split(x, &r)) - 0x4b400000), half = k >> 1;
    /* Two factors: 2^128 and subnormal powers have no float bits of their own. */
    return (mica_exp_rest(r) + 1) * mica_float_of((uint32_t)(half + 127) << 23) *
           mica_float_of((uint32_t)(k - half + 127) << 23);
}

/* The same for x <= 0 (40 and less are right, too), in fewer steps: 2^n, too small for float bits,
 * is 2^(n + 64) times a constant. */
MICA_INLINE float mica_exp_raised_f32(float x) /* from -130; times 2^64 */
{
    float r;
    uint32_t n = mica_bits_of(mica_exp_split(x, &r)); /* the shift drops all but n */
    return (mica_exp_rest(r) + 1) * mica_float_of((n + 127 + 64) << 23);
}

MICA_INLINE float mica_exp_unclamped_f32(float x) /* from -130 */
{
    return mica_exp_raised_f32(x) * 0x1p-64f;
}

MICA_INLINE float mica_exp_negative_f32(float x)
{
    return mica_exp_unclamped_f32(x < -104 ? -104 : x);
}

/* exp(x) - 1 for x <= 0 */
MICA_INLINE float mica_expm1_negative_f32(float x)
{
    float r;
    x = x < -30 ? -30 : x;
    float power = mica_float_of((mica_bits_of(mica_exp_split(x, &r)) + 127) << 23);
    return power * mica_exp_rest(r) + (power - 1);
}

/* log(1 + x) for x in [0, 1]: 2 atanh(x / (2 + x)) */
MICA_INLINE float mica_log1p_f32(float x)
{
    float s = x / (2 + x), z = s * s;
    float q = 0x1.208bdep-3f;
    q = q * z + 0x1.1e5108p-3f;
    q = q * z + 0x1.99dae6p-3f;
    q = q * z + 0x1.5554e0p-2f;
    return 2 * (s + s * z * q);
}

/* log(x) within 2 units for normal x of 1 or more; NaN and infinity give NaN */
MICA_INLINE float mica_log_f32(float x)
{
    uint32_t u = mica_bits_of(x);
    float n = (float)(int32_t)((u >> 23) - 127);
    float rest = mica_log1p_f32(mica_float_of((u & 0x7fffff) | 0x3f800000) - 1);
    return n * 0x1.62e4p-1f + (rest + n * 0x1.7f7d1cp-20f) + (x - x);
}

MICA_INLINE float mica_tanh_f32(float x)
{
    float e = mica_expm1_negative_f32(-2 * fabsf(x));
    return copysignf(e / (e + 2), x);
}

/* 1 / (1 + exp(-x)) */
MICA_INLINE float mica_sigmoid_f32(float x)
{
    float e = mica_exp_negative_f32(-fabsf(x));
    return (x < 0 ? e : 1) / (1 + e);
}

/* log(1 + exp(a x)) / a; a x may be infinite where the result is not. */
MICA_INLINE float mica_softplus_f32(float x, float a)
{
    float log = mica_log1p_f32(mica_exp_negative_f32(-fabsf(a * x)));
    return (a * x <= 0 ? 0 : x) + log / a;
}

/* Past it the normal distribution's density is 0; NaN passes. */
MICA_INLINE float mica_normal_reach_f32(float x)
{
    x = fabsf(x);
    return x > 14.5f ? 14.5f : x;
}

/* The normal distribution's integral up to x; density receives exp(-x^2 / 2). In the far tail
 * the rounding of x^2 counts: x^2 / 2 units. */
MICA_INLINE float mica_normal_f32(float x, float *density)
{
    float a = mica_normal_reach_f32(x);
    float e = mica_exp_unclamped_f32(-0.5f * a * a), t = 1 / (1 + 0.35f * a);
    float tail = mica_normal_tail(t) * e;
    *density = e;
    return x < 0 ? tail : 1 - tail;
}

/* x times it, with all digits where the integral alone would be subnormal. */
MICA_INLINE float mica_times_normal_f32(float x)
{
    float a = fabsf(x), t = 1 / (1 + 0.35f * a);
    float raised = mica_normal_tail(t) * mica_exp_raised_f32(-0.5f * a * a);
    raised = a < 14.5f ? raised : 0;
    return x < 0 ? x * raised * 0x1p-64f : x * (1 - raised * 0x1p-64f);
}

#endif
