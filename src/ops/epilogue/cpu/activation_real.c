/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32, and of f64. */
#include "ops/epilogue/cpu/activation_runs.h"
#include "ops/convert/cpu/functions_f64.h"
#include "ops/convert/cpu/real.h"

#if REAL_F64
#define ACT_VALUES    mica_act_values_f64
#define ACT_SLOPES    mica_act_slopes_f64
#define abs_of        fabs
#define copysign_of   copysign
#define exp_negative  mica_exp_negative_f64
#define exp_unclamped mica_exp_unclamped_f64
#define tanh_of       mica_tanh_f64
#define sigmoid_of    mica_sigmoid_f64
#define normal        mica_normal_f64
#define normal_reach  mica_normal_reach_f64

#define softplus_beta_of mica_softplus_f64
/* Rows call these where the argument is negative alone. */
#define exp_of   exp_negative
#define expm1_of mica_expm1_negative_f64

enum { EXP_REACH = 746, GELU_REACH = 40, MISH_REACH = 1000 };
#else
#define ACT_VALUES    mica_act_values_f32
#define ACT_SLOPES    mica_act_slopes_f32
#define abs_of        fabsf
#define copysign_of   copysignf
#define exp_negative  mica_exp_negative_f32
#define exp_unclamped mica_exp_unclamped_f32
#define tanh_of       mica_tanh_f32
#define sigmoid_of    mica_sigmoid_f32
#define normal        mica_normal_f32
#define normal_reach  mica_normal_reach_f32

#define softplus_beta_of mica_softplus_f32
/* Rows call these where the argument is negative alone. */
#define exp_of           exp_negative
#define expm1_of         mica_expm1_negative_f32

enum { EXP_REACH = 104, GELU_REACH = 16, MISH_REACH = 128 };
#endif

/* ---- what the rows of functions.def are made of ---- */

/* Where low is above high, high. NaN passes. */
MICA_INLINE real clip_of(real v, real low, real high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

MICA_INLINE real times_sigmoid_of(real a, real v)
{
    return a * sigmoid_of(v);
}

MICA_INLINE real times_normal_of(real v)
{
    real density;
    return v * normal(v, &density);
}

/* gelu_tanh's, for the slope */
MICA_INLINE real gelu_inner(real v)
{
    return (real)1.5957691216057308 * (v + (real)0.044715 * v * v * v);
}

/* tanh(log(1 + e^v)) = n / d with n = e^2v + 2 e^v and d = n + 2, or both over e^2v */
MICA_INLINE real mish_fraction(real v, real *n, real *d)
{
    real e = exp_negative(-abs_of(v));
    *n = v < 0 ? e * e + 2 * e : 1 + 2 * e;
    *d = *n + (v < 0 ? 2 : 2 * e * e);
    return e;
}

MICA_INLINE real mish_of(real v)
{
    real n, d;
    (void)mish_fraction(v, &n, &d);
    return v * (n / d);
}

MICA_INLINE real inside_of(real v, real low, real high)
{
    return v > low && v < high ? 1 : v != v ? v : 0; /* NaN passes */
}

/* s (1 - s), no digits lost where s is near 1 */
MICA_INLINE real sigmoid_slope_of(real v)
{
    real e = exp_negative(-abs_of(v)), r = 1 / (1 + e);
    return e * r * r;
}

/* Terms of v end where e is 0: v, or its product, may be infinite. */
MICA_INLINE real swish_slope_of(real v, real c)
{
    real a = c * abs_of(v), n = a > EXP_REACH ? EXP_REACH : a;
    real e = exp_unclamped(-n), r = 1 / (1 + e), rest = n * (e * r * r);
    return v < 0 ? e * r - rest : r + rest;
}

MICA_INLINE real gelu_slope_of(real v)
{
    real density, part = normal(v, &density);
    return part + copysign_of(normal_reach(v), v) * (real)0.3989422804014327 * density;
}

MICA_INLINE real gelu_tanh_slope_of(real v)
{
    real u = gelu_inner(v), e = exp_negative(-abs_of(u)), r = 1 / (1 + e);
    real near =
        clip_of(v, -GELU_REACH, GELU_REACH); /* farther, e is 0, and the square might be infinite */
    return (v < 0 ? e : 1) * r +
           near * (e * r * r) * (real)1.5957691216057308 * (1 + (real)0.134145 * near * near);
}

/* t + v (1 - t^2) sigmoid(v), t = n / d */
MICA_INLINE real mish_slope_of(real v)
{
    real n, d, e = mish_fraction(v, &n, &d), r = 1 / d;
    real rest = (v < 0 ? 2 : 2 * e * e) * (d + n) * (r * r);
    return n * r + clip_of(v, -MISH_REACH, MISH_REACH) * rest * ((v < 0 ? e : 1) / (1 + e));
}

/* ---- the rows; act is a constant at every call: one branch is left ---- */

MICA_INLINE real value_of(mica_act act, real a, real b, real c)
{
    (void)b, (void)c;
    switch (act) {
#define ACTIVATION(fn, kind, arity, exact, ulps, inner, value, da, db, dc, doc, name, ...)         \
    case MICA_ACT_##name:                                                                          \
        return (real)(value);
#include "ops/pointwise/functions.def"
    default:
        return a;
    }
}

MICA_INLINE real slope_of(mica_act act, real a, real b, real c)
{
    (void)b, (void)c;
    switch (act) {
#define ACTIVATION(fn, kind, arity, exact, ulps, inner, value, da, db, dc, doc, name, spelling,    \
                   formula, act_a, slope)                                                          \
    case MICA_ACT_##name:                                                                          \
        return (real)(slope);
#include "ops/pointwise/functions.def"
    default:
        return 1;
    }
}

/* Loops are made for whole vectors of any machine, of which one version each suffices: 20 functions
 * twice would take three times the space. So n is a multiple, and is rounded for the compiler to
 * know. What is left over goes through a line of its own. */
enum { WHOLE = 64 / sizeof(real) };

MICA_INLINE void values_row(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    if (n <= 0) return;
    n = (n + WHOLE - 1) & -WHOLE;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = value_of(act, v[i], a, b);
}

MICA_INLINE void slopes_row(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    if (n <= 0) return;
    n = (n + WHOLE - 1) & -WHOLE;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = slope_of(act, v[i], a, b);
}

CLONES
static void values(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    switch (act) {
#define MICA_X(name, text, formula)                                                                \
    case MICA_ACT_##name:                                                                          \
        values_row(MICA_ACT_##name, v, out, n, a, b);                                              \
        return;
        MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
    default:
        return;
    }
}

CLONES
static void slopes(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    switch (act) {
#define MICA_X(name, text, formula)                                                                \
    case MICA_ACT_##name:                                                                          \
        slopes_row(MICA_ACT_##name, v, out, n, a, b);                                              \
        return;
        MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
    default:
        return;
    }
}

void ACT_VALUES(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    const int64_t whole = n & -WHOLE, left = n - whole;
    if (whole) values(act, v, out, whole, a, b);
    if (!left) return;
    MICA_ALIGNED real line[WHOLE] = {0};
    memcpy(line, v + whole, (size_t)left * sizeof *line);
    values(act, line, line, WHOLE, a, b);
    memcpy(out + whole, line, (size_t)left * sizeof *line);
}

void ACT_SLOPES(mica_act act, const real *v, real *out, int64_t n, real a, real b)
{
    const int64_t whole = n & -WHOLE, left = n - whole;
    if (whole) slopes(act, v, out, whole, a, b);
    if (!left) return;
    MICA_ALIGNED real line[WHOLE] = {0};
    memcpy(line, v + whole, (size_t)left * sizeof *line);
    slopes(act, line, line, WHOLE, a, b);
    memcpy(out + whole, line, (size_t)left * sizeof *line);
}
