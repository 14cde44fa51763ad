/* SPDX-License-Identifier: Apache-2.0
 * Activations in double precision. */
#include "ops/epilogue/activation.h"
#include "base/fields.h"

#include <math.h>

const char *const mica_act_spellings[] = {
#define MICA_X(name, text, formula) text,
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
        NULL};

void mica_act_defaults(mica_act act, double *a, double *b)
{
    (void)b;
    bool slope = act == MICA_ACT_LEAKY_RELU,
         scale = act == MICA_ACT_ELU || act == MICA_ACT_SOFTPLUS;
    if (*a == 0 && !slope && !scale) *a = 0; /* given or not, it is the same */
    if (mica_left_out(*a)) *a = slope ? 0.01 : scale ? 1 : 0;
}

static const double selu_scale = 1.0507009873554805, selu_alpha = 1.6732632423543772;
static const double sqrt_2_over_pi = 0.7978845608028654, gelu_cubic = 0.044715;

/* Everything here keeps its relative accuracy where results are small: no 1 + erf, 1 - tanh^2 or
 * v / 6 + 1/2, which lose what is left of a tail. */

/* Neither branch overflows. */
static double sigmoid(double v)
{
    double e = exp(-fabs(v));
    return v >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/* s (1 - s), s the sigmoid of v or -v */
static double sigmoid_slope(double v)
{
    double e = exp(-fabs(v)), r = 1 / (1 + e);
    return e * r * r;
}

/* log(1 + exp(a v)) / a; a v may be infinite where the result is not. */
static double softplus(double v, double a)
{
    return (a * v > 0 ? v : 0) + log1p(exp(-fabs(a * v))) / a;
}

/* (1 + tanh(u)) / 2 = sigmoid(2 u); this is 2 u */
static double gelu_inner(double v)
{
    return 2 * sqrt_2_over_pi * (v + gelu_cubic * v * v * v);
}

/* The normal distribution's integral up to v. v / sqrt 2 is y + rest: in the tail erfc is as many
 * units off as y^2 times those of its argument. */
static double normal(double v)
{
    if (fabs(v) > 40) return v > 0; /* 0 even as a subnormal number */
    double y = v * -M_SQRT1_2;
    double rest = fma(v, -M_SQRT1_2, -y) + v * 4.8336466567264567e-17;
    return 0.5 * (erfc(y) - 1.1283791670955126 * exp(-y * y) * rest);
}

/* exp(-v^2 / 2) / sqrt(2 pi) */
static double normal_density(double v)
{
    double square = v * v, rest = fma(v, v, -square);
    return 0.3989422804014327 * exp(-0.5 * square) * (1 - 0.5 * rest);
}

/* As the header's formula: where a is above b, b. NaN passes. */
static double clip(double v, double low, double high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}
static double hard_sigmoid(double v)
{
    return clip(v + 3, 0, 6) / 6;
}

/* tanh(log(1 + e^v)) = n / d with n = e^2v + 2 e^v and d = n + 2, or both over e^2v */
static double mish_fraction(double v, double *n, double *d)
{
    double e = exp(-fabs(v));
    *n = v < 0 ? e * e + 2 * e : 1 + 2 * e;
    *d = *n + (v < 0 ? 2 : 2 * e * e);
    return e;
}

static double mish(double v)
{
    double n, d;
    (void)mish_fraction(v, &n, &d);
    return v * (n / d);
}

double mica_act_value(mica_act act, double v, double a, double b)
{
    switch (act) {
    case MICA_ACT_RELU:
        return v < 0 ? 0 : v;
    case MICA_ACT_CLIP:
        return clip(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? v : a * v;
    case MICA_ACT_ELU:
        return v > 0 ? v : a * expm1(v);
    case MICA_ACT_SELU:
        return selu_scale * (v > 0 ? v : selu_alpha * expm1(v));
    case MICA_ACT_SIGMOID:
        return sigmoid(v);
    case MICA_ACT_TANH:
        return tanh(v);
    case MICA_ACT_SILU:
        return v * sigmoid(v);
    case MICA_ACT_GELU:
        return v * normal(v);
    case MICA_ACT_GELU_TANH:
        return v * sigmoid(gelu_inner(v));
    case MICA_ACT_QUICK_GELU:
        return v * sigmoid(1.702 * v);
    case MICA_ACT_SOFTPLUS:
        return softplus(v, a);
    case MICA_ACT_SOFTSIGN:
        return v / (1 + fabs(v));
    case MICA_ACT_MISH:
        return mish(v);
    case MICA_ACT_HARD_SIGMOID:
        return hard_sigmoid(v);
    case MICA_ACT_HARD_SWISH:
        return v * hard_sigmoid(v);
    case MICA_ACT_HARD_TANH:
        return clip(v, -1, 1);
    case MICA_ACT_RELU6:
        return clip(v, 0, 6);
    case MICA_ACT_SQUARED_RELU:
        return v < 0 ? 0 : v * v;
    default:
        return v;
    }
}

/* Open interval: the slope at both ends is that outside. */
static double inside(double v, double low, double high)
{
    return v > low && v < high ? 1 : 0;
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
    return add(normal(v), near(v) * normal_density(near(v)));
}

static terms gelu_tanh_slope(double v)
{
    double u = gelu_inner(v), n = near(v);
    double inner = 2 * sqrt_2_over_pi * (1 + 3 * gelu_cubic * n * n);
    return add(sigmoid(u), n * sigmoid_slope(u) * inner);
}

/* d/dv of v sigmoid(c v) */
static terms swish_slope(double v, double c)
{
    return add(sigmoid(c * v), clip(c * v, -1000, 1000) * sigmoid_slope(c * v));
}

/* t + v (1 - t^2) sigmoid(v), t = n / d */
static terms mish_slope(double v)
{
    double n, d, e = mish_fraction(v, &n, &d);
    double rest = (v < 0 ? 2 : 2 * e * e) * (d + n) / (d * d);
    return add(n / d, clip(v, -1000, 1000) * rest * sigmoid(v));
}

/* Slopes that are a single term. NaN passes, of the piecewise ones too. */
static double one_term_slope(mica_act act, double v, double a, double b)
{
    if (isnan(v)) return v;
    switch (act) {
    case MICA_ACT_RELU:
        return v > 0 ? 1 : 0;
    case MICA_ACT_CLIP:
        return inside(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? 1 : a;
    case MICA_ACT_ELU:
        return v > 0 ? 1 : a * exp(v);
    case MICA_ACT_SELU:
        return selu_scale * (v > 0 ? 1 : selu_alpha * exp(v));
    case MICA_ACT_SIGMOID:
        return sigmoid_slope(v);
    case MICA_ACT_TANH:
        return 4 * sigmoid_slope(2 * v); /* tanh(v) = 2 sigmoid(2 v) - 1 */
    case MICA_ACT_SOFTPLUS:
        return sigmoid(a * v);
    case MICA_ACT_SOFTSIGN:
        return 1 / (1 + fabs(v)) / (1 + fabs(v)); /* the square may be infinite */
    case MICA_ACT_HARD_SIGMOID:
        return inside(v, -3, 3) / 6;
    case MICA_ACT_HARD_SWISH:
        return v <= -3 ? 0 : v >= 3 ? 1 : (v + 1.5) / 3;
    case MICA_ACT_HARD_TANH:
        return inside(v, -1, 1);
    case MICA_ACT_RELU6:
        return inside(v, 0, 6);
    case MICA_ACT_SQUARED_RELU:
        return v > 0 ? 2 * v : 0;
    default:
        return 1;
    }
}

static terms slope_terms(mica_act act, double v, double a, double b)
{
    switch (act) {
    case MICA_ACT_IDENTITY:
        return add(1, 0);
    case MICA_ACT_SILU:
        return swish_slope(v, 1);
    case MICA_ACT_GELU:
        return gelu_slope(v);
    case MICA_ACT_GELU_TANH:
        return gelu_tanh_slope(v);
    case MICA_ACT_QUICK_GELU:
        return swish_slope(v, 1.702);
    case MICA_ACT_MISH:
        return mish_slope(v);
    default:
        return add(one_term_slope(act, v, a, b), 0);
    }
}

double mica_act_slope(mica_act act, double v, double a, double b)
{
    return slope_terms(act, v, a, b).sum;
}
/* How many of its own units an activation's value is off by more than a few: the exponent of the
 * tail is rounded before the power is taken. */
static double tail_units(mica_act act, double v, double a, double b)
{
    switch (act) {
    case MICA_ACT_GELU:
    case MICA_ACT_GELU_TANH:
    case MICA_ACT_QUICK_GELU: {
        double share = mica_act_value(act, v, a, b) / v; /* of v: the sigmoid or the integral */
        return share > 0 ? fmin(-log(share), 800) : 0;
    }
    case MICA_ACT_SOFTPLUS:
        return a * v < 0 ? fmin(-a * v, 800) : 0;
    default:
        return 0;
    }
}

double mica_act_value_size(mica_act act, double v, double a, double b)
{
    return fabs(mica_act_value(act, v, a, b)) * (1 + tail_units(act, v, a, b));
}

double mica_act_slope_size(mica_act act, double v, double a, double b)
{
    return slope_terms(act, v, a, b).size * (1 + tail_units(act, v, a, b));
}

void mica_prologue_activations(mica_text *prologue)
{
    mica_text_add(prologue, "enum {");
#define MICA_X(name, text, formula)                                                                \
    mica_text_add(prologue, " ACT_" #name " = %d,", MICA_ACT_##name);
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
    mica_text_add(prologue, " };\n");
}
