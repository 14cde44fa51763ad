/* SPDX-License-Identifier: Apache-2.0
 * Activations in double precision: the rows ACTIVATION of ops/pointwise/functions.def. */
#include "ops/epilogue/activation.h"
#include "ops/pointwise/functions.h"
#include "base/fields.h"

#include <math.h>

const char *const mica_act_spellings[] = {
#define MICA_X(name, text, formula) text,
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
        NULL};

typedef struct activation {
    int function; /* whose value it is */
    double a;     /* the parameter's default */
    const char *name, *value, *slope;
} activation;

static const activation rows[] = {
#define ACTIVATION(fn, kind, arity, exact, ulps, inner, value, da, db, dc, doc, name, spelling,    \
                   formula, a, slope)                                                              \
    [MICA_ACT_##name] = {MICA_FN_##fn, a, #name, #value, #slope},
#include "ops/pointwise/functions.def"
};
_Static_assert(sizeof rows / sizeof *rows == MICA_ACT_COUNT, "each activation has a row");

void mica_act_defaults(mica_act act, double *a, double *b)
{
    (void)b;
    if (*a == 0 && rows[act].a == 0) *a = 0; /* given or not, it is the same */
    if (mica_left_out(*a)) *a = rows[act].a;
}

double mica_act_value(mica_act act, double v, double a, double b)
{
    return mica_function_value(rows[act].function, v, a, b);
}

bool mica_act_is_exact(mica_act act)
{
    return mica_functions[rows[act].function].exact != MICA_EXACT_NO;
}

/* ---- what slopes are made of, each to its relative accuracy where it is small ---- */

typedef double real;
#define abs_of fabs
#define exp_of exp

/* Neither branch overflows. */
static double sigmoid_of(double v)
{
    double e = exp(-fabs(v));
    return v >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/* s (1 - s), s the sigmoid of v or -v */
static double sigmoid_slope_of(double v)
{
    double e = exp(-fabs(v)), r = 1 / (1 + e);
    return e * r * r;
}

/* (1 + tanh(u)) / 2 = sigmoid(2 u); this is 2 u */
static double gelu_inner(double v)
{
    return 1.5957691216057308 * (v + 0.044715 * v * v * v);
}

/* exp(-v^2 / 2) / sqrt(2 pi) */
static double normal_density(double v)
{
    double square = v * v, rest = fma(v, v, -square);
    return 0.3989422804014327 * exp(-0.5 * square) * (1 - 0.5 * rest);
}

/* NaN passes. */
static double clip(double v, double low, double high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

/* Open interval: the slope at both ends is that outside. */
static double inside_of(double v, double low, double high)
{
    return v > low && v < high ? 1 : isnan(v) ? v : 0;
}

/* Two terms of a slope, their sum, and of their absolute values. */
typedef struct terms {
    double sum, size;
} terms;

static terms add(double s, double rest)
{
    return (terms){s + rest, fabs(s) + fabs(rest)};
}

/* Past +-40 the factor of v is 0, and v, its square and what it is multiplied by may be infinite.
 */
static double near(double v)
{
    return clip(v, -40, 40);
}

static terms gelu_slope(double v)
{
    return add(mica_function_value(MICA_FN_ndtr, v, 0, 0), near(v) * normal_density(near(v)));
}

static terms gelu_tanh_slope(double v)
{
    double n = near(v), inner = 1.5957691216057308 * (1 + 0.134145 * n * n);
    return add(sigmoid_of(gelu_inner(v)), n * sigmoid_slope_of(gelu_inner(v)) * inner);
}

/* d/dv of v sigmoid(c v) */
static terms swish_slope(double v, double c)
{
    return add(sigmoid_of(c * v), clip(c * v, -1000, 1000) * sigmoid_slope_of(c * v));
}

/* t + v (1 - t^2) sigmoid(v), t = tanh(log(1 + e^v)) = n / d with n = e^2v + 2 e^v and d = n + 2,
 * or both over e^2v */
static terms mish_slope(double v)
{
    double e = exp(-fabs(v)), n = v < 0 ? e * e + 2 * e : 1 + 2 * e;
    double rest = v < 0 ? 2 : 2 * e * e, d = n + rest;
    return add(n / d, clip(v, -1000, 1000) * rest * (d + n) / (d * d) * sigmoid_of(v));
}

static double sum_of(terms t)
{
    return t.sum;
}

static double size_of(terms t)
{
    return t.size;
}

/* of: what is wanted of slopes of two terms */
#define gelu_slope_of(v)      of(gelu_slope(v))
#define gelu_tanh_slope_of(v) of(gelu_tanh_slope(v))
#define swish_slope_of(v, c)  of(swish_slope(v, c))
#define mish_slope_of(v)      of(mish_slope(v))
static double slope_by(mica_act act, double a, double b, double c, double (*of)(terms))
{
    switch (act) {
#define ACTIVATION(fn, kind, arity, exact, ulps, inner, value, da, db, dc, doc, name, spelling,    \
                   formula, act_a, slope)                                                          \
    case MICA_ACT_##name:                                                                          \
        return slope;
#include "ops/pointwise/functions.def"
    default:
        return 1;
    }
}

double mica_act_slope(mica_act act, double v, double a, double b)
{
    return slope_by(act, v, a, b, sum_of);
}

/* How many of its own units an activation's value is off by more than a few: the exponent of the
 * tail is rounded before the power is taken, where the row has an inner step. The power is what is
 * left of v, of softplus of 1. */
static double tail_units(mica_act act, double v, double a, double b)
{
    if (mica_functions[rows[act].function].inner == 0) return 0;
    if (act == MICA_ACT_SOFTPLUS) return a * v < 0 ? fmin(-a * v, 800) : 0;
    double share = mica_act_value(act, v, a, b) / v;
    return share > 0 ? fmin(-log(share), 800) : 0;
}

double mica_act_value_size(mica_act act, double v, double a, double b)
{
    return fabs(mica_act_value(act, v, a, b)) * (1 + tail_units(act, v, a, b));
}

double mica_act_slope_size(mica_act act, double v, double a, double b)
{
    return fabs(slope_by(act, v, a, b, size_of)) * (1 + tail_units(act, v, a, b));
}

void mica_prologue_activation(mica_text *prologue, mica_act act)
{
    mica_text_add(prologue, "enum {");
#define MICA_X(name, text, formula)                                                                \
    mica_text_add(prologue, " ACT_" #name " = %d,", MICA_ACT_##name);
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
    /* One statement with the enumerators, which kernel tables leave out: ACT and EPILOGUE say it.
     */
    mica_text_add(prologue, " }\n#define ACTIVATIONS ACTIVATION(%s, (%s), (%s))\n;\n",
                  rows[act].name, rows[act].value, rows[act].slope);
}
