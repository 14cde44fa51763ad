/* SPDX-License-Identifier: Apache-2.0
 * The element functions in f32 and in f64, in blocks; and one value in f64. In f32 vector loops
 * where exp and its relatives suffice, libm's functions elsewhere. */
#include "ops/convert/cpu/functions_f32.h"
#include "ops/convert/cpu/real.h"

#include <float.h>
#include <stdbool.h>
#include <tgmath.h> /* sqrt and others of `real`, whichever that is */

#define sqrt_of(v)        sqrt(v)
#define cbrt_of(v)        cbrt(v)
#define abs_of(v)         fabs(v)
#define floor_of(v)       floor(v)
#define ceil_of(v)        ceil(v)
#define trunc_of(v)       trunc(v)
#define rint_of(v)        rint(v)
#define round_of(v)       round(v)
#define copysign_of(a, b) copysign(a, b)
#define fmod_of(a, b)     fmod(a, b)
#define fma_of(a, b, c)   fma(a, b, c)
#define pow_of(a, b)      pow(a, b)
#define sin_of(v)         sin(v)
#define cos_of(v)         cos(v)
#define tan_of(v)         tan(v)
#define asin_of(v)        asin(v)
#define acos_of(v)        acos(v)
#define atan_of(v)        atan(v)
#define atan2_of(a, b)    atan2(a, b)
#define hypot_of(a, b)    hypot(a, b)
#define sinh_of(v)        sinh(v)
#define cosh_of(v)        cosh(v)
#define asinh_of(v)       asinh(v)
#define acosh_of(v)       acosh(v)
#define atanh_of(v)       atanh(v)
#define erf_of(v)         erf(v)
#define erfc_of(v)        erfc(v)
#define tgamma_of(v)      tgamma(v)
#define exp10_of(v)       pow((real)10, v)

#if REAL_F64

#define lgamma_of(v) lgamma_r(v, &(int){0}) /* without the global sign */
#define j0_of(v)     j0(v)
#define j1_of(v)     j1(v)
#define exp_of(v)    exp(v)
#define exp2_of(v)   exp2(v)
#define expm1_of(v)  expm1(v)
#define log_of(v)    log(v)
#define log2_of(v)   log2(v)
#define log10_of(v)  log10(v)
#define log1p_of(v)  log1p(v)
#define tanh_of(v)   tanh(v)

static inline double sigmoid_of(double v)
{
    double e = exp(-fabs(v));
    return (v < 0 ? e : 1) / (1 + e);
}

static inline double softplus_of(double v)
{
    return (v < 0 ? 0 : v) + log1p(exp(-fabs(v)));
}

static inline double normal_of(double v)
{
    return 0.5 * erfc(v * -M_SQRT1_2);
}

#else

#define lgamma_of(v) lgammaf_r(v, &(int){0})
#define j0_of(v)     j0f(v)
#define j1_of(v)     j1f(v)
#define exp_of(v)    mica_exp_f32(v)
#define exp2_of(v)   exp2_f32(v)
#define expm1_of(v)  expm1_f32(v)
#define log_of(v)    log_f32(v)
#define log2_of(v)   (log_f32(v) * 1.44269504f)
#define log10_of(v)  (log_f32(v) * 0.434294482f)
#define log1p_of(v)  log1p_f32(v)
#define tanh_of(v)   mica_tanh_f32(v)

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

#endif

#include "ops/pointwise/functions_loops.h"

#if REAL_F64
#define FUNCTION_BLOCK  mica_function_f64
#define FUNCTION_CLONES /* few want f64 */

double mica_function_value(int function, double a, double b, double c)
{
    static row_function *const rows[] = {
#define FUNCTION(name, ...) fn_##name,
#include "ops/pointwise/functions.def"
#undef FUNCTION
    };
    return rows[function](a, b, c);
}
#else
#define FUNCTION_BLOCK  mica_function_f32
#define FUNCTION_CLONES MICA_NARROW_CLONES
#endif

FUNCTION_CLONES
void FUNCTION_BLOCK(int function, real *out, const real *const in[MICA_FUNCTION_ARGS], int64_t n)
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
