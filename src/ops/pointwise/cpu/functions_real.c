/* SPDX-License-Identifier: Apache-2.0
 * The element functions in f32 and in f64, in blocks: vector loops, of libm's functions only where
 * few want more. */
#include "ops/pointwise/cpu/elementary_f32.h"
#include "ops/convert/cpu/real.h"

#include <tgmath.h> /* sqrt and others of `real`, whichever that is */

#define sqrt_of(v)        sqrt(v)
#define abs_of(v)         fabs(v)
#define floor_of(v)       floor(v)
#define ceil_of(v)        ceil(v)
#define trunc_of(v)       trunc(v)
#define rint_of(v)        rint(v)
#define round_of(v)       round(v)
#define copysign_of(a, b) copysign(a, b)
#define fma_of(a, b, c)   fma(a, b, c)
#define tgamma_of(v)      tgamma(v)

#if REAL_F64

#define cbrt_of(v)       cbrt(v)
#define fmod_of(a, b)    fmod(a, b)
#define pow_of(a, b)     pow(a, b)
#define sin_of(v)        sin(v)
#define cos_of(v)        cos(v)
#define tan_of(v)        tan(v)
#define asin_of(v)       asin(v)
#define acos_of(v)       acos(v)
#define atan_of(v)       atan(v)
#define atan2_of(a, b)   atan2(a, b)
#define hypot_of(a, b)   hypot(a, b)
#define sinh_of(v)       sinh(v)
#define cosh_of(v)       cosh(v)
#define asinh_of(v)      asinh(v)
#define acosh_of(v)      acosh(v)
#define atanh_of(v)      atanh(v)
#define erf_of(v)        erf(v)
#define exp2_of(v)       exp2(v)
#define exp10_of(v)      pow((real)10, v)
#define log2_of(v)       log2(v)
#define log10_of(v)      log10(v)
#define lgamma_of(v)     lgamma_r(v, &(int){0}) /* without the global sign */
#define j0_of(v)         j0(v)
#define j1_of(v)         j1(v)
#define erfc_of(v)       mica_erfc_f64(v)
#define exp_of(v)        mica_exp_f64(v)
#define expm1_of(v)      mica_expm1_f64(v)
#define log_of(v)        mica_log_f64(v)
#define log1p_of(v)      mica_log1p_f64(v)
#define log1p_unit_of(v) mica_log1p_unit_f64(v)
#define tanh_of(v)       mica_tanh_f64(v)
#define sigmoid_of(v)    mica_sigmoid_f64(v)
#define softplus_of(v)   mica_softplus_f64(v, 1)
#define softplus_beta_of mica_softplus_f64
#define normal_of(v)     mica_normal_f64(v, &(double){0})

#define EXP_RAISED(v)   (v < -800 ? 0 : mica_exp_raised_f64(v, 0))
#define EXP_LOWERED     0x1p-256
#define TIMES_NORMAL(v) mica_times_normal_f64(v)

#else

#define cbrt_of(v)       mica_cbrt_f32(v)
#define fmod_of(a, b)    mica_fmod_f32(a, b)
#define pow_of(a, b)     mica_pow_f32(a, b)
#define sin_of(v)        mica_sin_f32(v)
#define cos_of(v)        mica_cos_f32(v)
#define tan_of(v)        mica_tan_f32(v)
#define asin_of(v)       mica_asin_f32(v)
#define acos_of(v)       mica_acos_f32(v)
#define atan_of(v)       mica_atan_f32(v)
#define atan2_of(a, b)   mica_atan2_f32(a, b)
#define hypot_of(a, b)   mica_hypot_f32(a, b)
#define sinh_of(v)       mica_sinh_f32(v)
#define cosh_of(v)       mica_cosh_f32(v)
#define asinh_of(v)      mica_asinh_f32(v)
#define acosh_of(v)      mica_acosh_f32(v)
#define atanh_of(v)      mica_atanh_f32(v)
#define erf_of(v)        mica_erf_f32(v)
#define erfc_of(v)       mica_erfc_f32(v)
#define exp_of(v)        mica_exp_f32(v)
#define exp2_of(v)       mica_exp2_f32(v)
#define exp10_of(v)      mica_exp10_f32(v)
#define expm1_of(v)      mica_expm1_f32(v)
#define log_of(v)        mica_log_any_f32(v)
#define log2_of(v)       (mica_log_any_f32(v) * 1.44269504f)
#define log10_of(v)      (mica_log_any_f32(v) * 0.434294482f)
#define log1p_of(v)      mica_log1p_any_f32(v)
#define log1p_unit_of(v) mica_log1p_f32(v)
#define tanh_of(v)       mica_tanh_f32(v)
#define sigmoid_of(v)    mica_sigmoid_f32(v)
#define softplus_of(v)   mica_softplus_f32(v, 1)
#define softplus_beta_of mica_softplus_f32
#define normal_of(v)     mica_normal_f32(v, &(float){0})
#define lgamma_of(v)     lgammaf_r(v, &(int){0}) /* without the global sign */
#define j0_of(v)         j0f(v)
#define j1_of(v)         j1f(v)

#define EXP_RAISED(v)   (v < -130 ? 0 : mica_exp_raised_f32(v))
#define EXP_LOWERED     0x1p-64f
#define TIMES_NORMAL(v) mica_times_normal_f32(v)

#endif

#include "ops/pointwise/functions_loops.h"

MICA_NARROW_CLONES
static void map_whole(int function, real *out, const real *const in[MICA_FUNCTION_ARGS], int64_t n)
{
    switch ((mica_function_id)function) {
#define FUNCTION(name, ...)                                                                        \
    case MICA_FN_##name:                                                                           \
        map(fn_##name, out, in, n);                                                                \
        return;
#include "ops/pointwise/functions.def"
    default: /* formulas are none */
        return;
    }
}

/* What is left over of whole vectors, by way of lines of its own. */
__attribute__((noinline)) static void map_left(int function, real *out, const real *const *in,
                                               int64_t n)
{
    MICA_ALIGNED real lines[MICA_FUNCTION_ARGS][MICA_WHOLE] = {0};
    for (int k = 0; k < mica_functions[function].arity; k++)
        memcpy(lines[k], in[k], (size_t)n * sizeof(real));
    map_whole(function, lines[0], (const real *const[]){lines[0], lines[1], lines[2]}, MICA_WHOLE);
    memcpy(out, lines[0], (size_t)n * sizeof(real));
}

static void map_any(int function, real *out, const real *const in[MICA_FUNCTION_ARGS], int64_t n)
{
    const int64_t whole = n & -MICA_WHOLE;
    if (whole) map_whole(function, out, in, whole);
    if (n == whole) return;
    const real *const at[] = {in[0] + whole, in[1] + whole, in[2] + whole};
    map_left(function, out + whole, at, n - whole);
}

#if REAL_F64

void mica_function_f64(int function, double *out, const double *const in[MICA_FUNCTION_ARGS],
                       int64_t n)
{
    map_any(function, out, in, n);
}

#else

/* ---- arguments for which the loops are not made ---- */

/* What is reduced, by pi / 2 or by the second argument, may be too large. */
static bool reduces_angle(int function)
{
    switch (function) {
    case MICA_FN_sin:
    case MICA_FN_cos:
    case MICA_FN_tan:
    case MICA_FN_sec:
    case MICA_FN_csc:
    case MICA_FN_cot:
        return true;
    default:
        return false;
    }
}

static bool reduces_quotient(int function)
{
    return function == MICA_FN_fmod || function == MICA_FN_rem || function == MICA_FN_floordiv;
}

static int is_far(bool angle, float a, float b)
{
    return fabsf(a) > (angle ? MICA_ANGLES_F32 : fabsf(b) * MICA_QUOTIENTS_F32);
}

MICA_NARROW_CLONES
static int any_far(bool angle, const float *a, const float *b, int64_t n)
{
    int any = 0;
    for (int64_t i = 0; i < n; i++) any |= is_far(angle, a[i], b[i]);
    return any;
}

/* Those are one by one as the reference has them; out may lie on the arguments. */
__attribute__((noinline)) static void mended(int function, bool angle, float *out,
                                             const float *const *in, int64_t n)
{
    enum { CHUNK = 256 };
    float a[CHUNK], b[CHUNK];
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t count = n - first < CHUNK ? n - first : CHUNK;
        const float *const at[] = {in[0] + first, in[1] + first, in[2] + first};
        const float *second = angle ? at[0] : at[1]; /* those of one argument may have no other */
        const bool far = any_far(angle, at[0], second, count);
        if (far) {
            memcpy(a, at[0], (size_t)count * sizeof *a);
            memcpy(b, second, (size_t)count * sizeof *b);
        }
        map_any(function, out + first, at, count);
        for (int64_t i = 0; far && i < count; i++)
            if (is_far(angle, a[i], b[i]))
                out[first + i] =
                    (float)mica_function_value(function, (double)a[i], (double)b[i], 0);
    }
}

void mica_function_f32(int function, float *out, const float *const in[MICA_FUNCTION_ARGS],
                       int64_t n)
{
    const bool angle = reduces_angle(function);
    if (angle || reduces_quotient(function))
        mended(function, angle, out, in, n);
    else
        map_any(function, out, in, n);
}

#endif
