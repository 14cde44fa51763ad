/* SPDX-License-Identifier: Apache-2.0
 * Activations in double precision. */
#include "ops/shared/activation.h"

#include <math.h>

const char *const mica_act_spellings[] = {
#define MICA_X(name, text, formula) text,
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
        NULL};

void mica_act_defaults(mica_act act, double *a, double *b)
{
    (void)b;
    if (*a != 0) return;
    if (act == MICA_ACT_LEAKY_RELU) *a = 0.01;
    if (act == MICA_ACT_ELU || act == MICA_ACT_SOFTPLUS) *a = 1;
}

static const double selu_scale = 1.0507009873554805, selu_alpha = 1.6732632423543772;
static const double sqrt_2_over_pi = 0.7978845608028654, gelu_cubic = 0.044715;

/* Neither branch overflows. */
static double sigmoid(double v)
{
    double e = exp(-fabs(v));
    return v >= 0 ? 1 / (1 + e) : e / (1 + e);
}

static double softplus(double v)
{
    return fmax(v, 0) + log1p(exp(-fabs(v)));
}
static double gelu_inner(double v)
{
    return sqrt_2_over_pi * (v + gelu_cubic * v * v * v);
}
/* NaN passes. */
static double clip(double v, double low, double high)
{
    return v < low ? low : v > high ? high : v;
}
static double hard_sigmoid(double v)
{
    return clip(v / 6 + 0.5, 0, 1);
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
        return 0.5 * v * (1 + erf(v * M_SQRT1_2));
    case MICA_ACT_GELU_TANH:
        return 0.5 * v * (1 + tanh(gelu_inner(v)));
    case MICA_ACT_QUICK_GELU:
        return v * sigmoid(1.702 * v);
    case MICA_ACT_SOFTPLUS:
        return softplus(a * v) / a;
    case MICA_ACT_SOFTSIGN:
        return v / (1 + fabs(v));
    case MICA_ACT_MISH:
        return v * tanh(softplus(v));
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

static double gelu_tanh_slope(double v)
{
    double t = tanh(gelu_inner(v));
    double inner = sqrt_2_over_pi * (1 + 3 * gelu_cubic * v * v);
    return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * inner;
}

static double gelu_slope(double v)
{
    double density = 0.3989422804014327 * exp(-0.5 * v * v);
    return 0.5 * (1 + erf(v * M_SQRT1_2)) + v * density;
}

/* d/dv of v sigmoid(c v) */
static double swish_slope(double v, double c)
{
    double s = sigmoid(c * v);
    return s + c * v * s * (1 - s);
}

static double mish_slope(double v)
{
    double t = tanh(softplus(v));
    return t + v * (1 - t * t) * sigmoid(v);
}

double mica_act_slope(mica_act act, double v, double a, double b)
{
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
        return sigmoid(v) * sigmoid(-v);
    case MICA_ACT_TANH:
        return 1 - tanh(v) * tanh(v);
    case MICA_ACT_SILU:
        return swish_slope(v, 1);
    case MICA_ACT_GELU:
        return gelu_slope(v);
    case MICA_ACT_GELU_TANH:
        return gelu_tanh_slope(v);
    case MICA_ACT_QUICK_GELU:
        return swish_slope(v, 1.702);
    case MICA_ACT_SOFTPLUS:
        return sigmoid(a * v);
    case MICA_ACT_SOFTSIGN:
        return 1 / ((1 + fabs(v)) * (1 + fabs(v)));
    case MICA_ACT_MISH:
        return mish_slope(v);
    case MICA_ACT_HARD_SIGMOID:
        return inside(v, -3, 3) / 6;
    case MICA_ACT_HARD_SWISH:
        return v <= -3 ? 0 : v >= 3 ? 1 : v / 3 + 0.5;
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

void mica_prologue_activations(mica_text *prologue)
{
    mica_text_add(prologue, "enum {");
#define MICA_X(name, text, formula)                                                                \
    mica_text_add(prologue, " ACT_" #name " = %d,", MICA_ACT_##name);
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
    mica_text_add(prologue, " };\n");
}
