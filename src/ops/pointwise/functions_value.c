/* SPDX-License-Identifier: Apache-2.0
 * One value in f64, of libm's functions: what the references are made of. The engine's loops have
 * functions of their own (cpu/functions_real.c). */
typedef double real;

#include <math.h>

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

#define lgamma_of(v)     lgamma_r(v, &(int){0}) /* without the global sign */
#define j0_of(v)         j0(v)
#define j1_of(v)         j1(v)
#define exp_of(v)        exp(v)
#define exp2_of(v)       exp2(v)
#define expm1_of(v)      expm1(v)
#define log_of(v)        log(v)
#define log2_of(v)       log2(v)
#define log10_of(v)      log10(v)
#define log1p_of(v)      log1p(v)
#define log1p_unit_of(v) log1p(v)
#define tanh_of(v)       tanh(v)

static inline double sigmoid_of(double v)
{
    double e = exp(-fabs(v));
    return (v < 0 ? e : 1) / (1 + e);
}

static inline double softplus_of(double v)
{
    return (v < 0 ? 0 : v) + log1p(exp(-fabs(v)));
}

/* b a may be infinite where the result is not. */
static inline double softplus_beta_of(double a, double b)
{
    return (b * a > 0 ? a : 0) + log1p(exp(-fabs(b * a))) / b;
}

/* v / sqrt 2 is y + rest: in the tail erfc is as many units off as y^2 times those of its argument.
 */
static inline double normal_of(double v)
{
    if (fabs(v) > 40) return v > 0; /* 0 even as a subnormal number */
    const double y = v * -M_SQRT1_2;
    const double rest = fma(v, -M_SQRT1_2, -y) + v * 4.8336466567264567e-17;
    return 0.5 * (erfc(y) - 1.1283791670955126 * exp(-y * y) * rest);
}

#include "ops/pointwise/functions_loops.h"

double mica_function_value(int function, double a, double b, double c)
{
    static row_function *const rows[] = {
#define FUNCTION(name, ...) fn_##name,
#include "ops/pointwise/functions.def"
    };
    return rows[function](a, b, c);
}
