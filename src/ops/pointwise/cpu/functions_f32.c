/* SPDX-License-Identifier: Apache-2.0
 * The element functions in f32, in blocks: vector loops where exp and its relatives suffice, libm
 * elsewhere. */
#include "ops/shared/cpu/functions_f32.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define real            float
#define sqrt_of(v)      sqrtf(v)
#define cbrt_of(v)      cbrtf(v)
#define abs_of(v)       fabsf(v)
#define floor_of(v)     floorf(v)
#define ceil_of(v)      ceilf(v)
#define trunc_of(v)     truncf(v)
#define rint_of(v)      rintf(v)
#define round_of(v)     roundf(v)
#define copysign_of     copysignf
#define fmod_of(a, b)   fmodf(a, b)
#define fma_of(a, b, c) fmaf(a, b, c)
#define exp_of(v)       mica_exp_f32(v)
#define exp2_of(v)      exp2_f32(v)
#define exp10_of(v)     powf(10, v)
#define expm1_of(v)     expm1_f32(v)
#define log_of(v)       log_f32(v)
#define log2_of(v)      (log_f32(v) * 1.44269504f)
#define log10_of(v)     (log_f32(v) * 0.434294482f)
#define log1p_of(v)     log1p_f32(v)
#define pow_of(a, b)    powf(a, b)
#define sin_of(v)       sinf(v)
#define cos_of(v)       cosf(v)
#define tan_of(v)       tanf(v)
#define asin_of(v)      asinf(v)
#define acos_of(v)      acosf(v)
#define atan_of(v)      atanf(v)
#define atan2_of(a, b)  atan2f(a, b)
#define hypot_of(a, b)  hypotf(a, b)
#define sinh_of(v)      sinhf(v)
#define cosh_of(v)      coshf(v)
#define tanh_of(v)      mica_tanh_f32(v)
#define asinh_of(v)     asinhf(v)
#define acosh_of(v)     acoshf(v)
#define atanh_of(v)     atanhf(v)
#define erf_of(v)       erff(v)
#define erfc_of(v)      erfcf(v)
#define lgamma_of(v)    lgammaf_r(v, &(int){0}) /* without the global sign */
#define tgamma_of(v)    tgammaf(v)
#define j0_of(v)        j0f(v)
#define j1_of(v)        j1f(v)

/* Of any x: the mantissa lies between sqrt(1/2) and sqrt(2), so that nothing cancels near 1. */
MICA_INLINE float log_f32(float x)
{
    const bool small = x < 0x1p-126f;
    const uint32_t u = mica_bits_of(small ? x * 0x1p25f : x) - 0x3f3504f3;
    const float n = (float)((int32_t)u >> 23) - (small ? 25.0f : 0.0f);
    const float rest = mica_log1p_f32(mica_float_of((u & 0x7fffff) + 0x3f3504f3) - 1);
    float log = n * 0x1.62e4p-1f + (rest + n * 0x1.7f7d1cp-20f);
    log = x > FLT_MAX ? x : log;
    return x > 0 ? log : x == 0 ? -(float)INFINITY : (float)NAN;
}

/* What 1 + x has rounded away is added to the logarithm. */
MICA_INLINE float log1p_f32(float x)
{
    const float u = 1 + x, log = log_f32(u) + (x - (u - 1)) / u;
    return x == 0 || x > FLT_MAX ? x : x == -1 ? -(float)INFINITY : log;
}

/* 2^n is made in two steps: 2^128 has no float bits of its own. */
MICA_INLINE float expm1_f32(float x)
{
    float r;
    x = x < -30 ? -30 : x;
    x = x > 89 ? 89 : x;
    const float half = mica_float_of((mica_bits_of(mica_exp_split(x, &r)) + 126) << 23);
    return 2 * (half * mica_exp_rest(r) + (half - 0.5f));
}

MICA_INLINE float exp2_f32(float x)
{
    const float round = 12582912;
    x = x < -151 ? -151 : x;
    x = x > 129 ? 129 : x;
    const float shifted = x + round, r = (x - (shifted - round)) * 0.693147181f;
    const int32_t k = (int32_t)(mica_bits_of(shifted) - 0x4b400000), half = k >> 1;
    return (mica_exp_rest(r) + 1) * mica_float_of((uint32_t)(half + 127) << 23) *
           mica_float_of((uint32_t)(k - half + 127) << 23);
}

MICA_INLINE float sigmoid_of(float v)
{
    return mica_sigmoid_f32(v);
}

MICA_INLINE float softplus_of(float v)
{
    return mica_softplus_f32(v, 1);
}

MICA_INLINE float normal_of(float v)
{
    float density;
    return mica_normal_f32(v, &density);
}

#include "ops/pointwise/functions_loops.h"

MICA_NARROW_CLONES
void mica_function_f32(int function, float *out, const float *const in[MICA_FUNCTION_ARGS],
                       int64_t n)
{
    switch ((mica_function_id)function) {
#define FUNCTION(name, ...)                                                                        \
    case MICA_FN_##name:                                                                           \
        map(fn_##name, out, in, n);                                                                \
        return;
#include "ops/pointwise/functions.def"
#undef FUNCTION
    default: /* formulas are none */
        return;
    }
}
