/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32. */
#include "ops/epilogue/cpu/activation_f32.h"
#include "ops/convert/cpu/functions_f32.h"
#include "cpu/cpu.h"

#include <math.h>

/* As the header's formula: where low is above high, high. NaN passes. */
MICA_INLINE float clip_f32(float v, float low, float high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}

MICA_INLINE float gelu_inner_f32(float v)
{
    return 1.595769122f * (v + 0.044715f * v * v * v);
}

/* tanh(log(1 + e^v)) = n / d with n = e^2v + 2 e^v and d = n + 2, or both over e^2v */
MICA_INLINE float mish_fraction_f32(float v, float *n, float *d)
{
    float e = mica_exp_negative_f32(-fabsf(v));
    *n = v < 0 ? e * e + 2 * e : 1 + 2 * e;
    *d = *n + (v < 0 ? 2 : 2 * e * e);
    return e;
}

MICA_INLINE float mish_f32(float v)
{
    float n, d;
    (void)mish_fraction_f32(v, &n, &d);
    return v * (n / d);
}

/* act is a constant at every call: one branch is left. */
MICA_INLINE float value_f32(mica_act act, float v, float a, float b)
{
    float density;
    switch (act) {
    case MICA_ACT_RELU:
        return v < 0 ? 0 : v;
    case MICA_ACT_CLIP:
        return clip_f32(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? v : a * v;
    case MICA_ACT_ELU:
        return v > 0 ? v : a * mica_expm1_negative_f32(v);
    case MICA_ACT_SELU:
        return 1.0507009873554805f * (v > 0 ? v : 1.6732632423543772f * mica_expm1_negative_f32(v));
    case MICA_ACT_SIGMOID:
        return mica_sigmoid_f32(v);
    case MICA_ACT_TANH:
        return mica_tanh_f32(v);
    case MICA_ACT_SILU:
        return v * mica_sigmoid_f32(v);
    case MICA_ACT_GELU:
        return v * mica_normal_f32(v, &density);
    case MICA_ACT_GELU_TANH: /* (1 + tanh(u)) / 2 = sigmoid(2 u) */
        return v * mica_sigmoid_f32(gelu_inner_f32(v));
    case MICA_ACT_QUICK_GELU:
        return v * mica_sigmoid_f32(1.702f * v);
    case MICA_ACT_SOFTPLUS:
        return mica_softplus_f32(v, a);
    case MICA_ACT_SOFTSIGN:
        return v / (1 + fabsf(v));
    case MICA_ACT_MISH:
        return mish_f32(v);
    case MICA_ACT_HARD_SIGMOID:
        return clip_f32(v + 3, 0, 6) / 6;
    case MICA_ACT_HARD_SWISH:
        return v * (clip_f32(v + 3, 0, 6) / 6);
    case MICA_ACT_HARD_TANH:
        return clip_f32(v, -1, 1);
    case MICA_ACT_RELU6:
        return clip_f32(v, 0, 6);
    case MICA_ACT_SQUARED_RELU:
        return v < 0 ? 0 : v * v;
    default:
        return v;
    }
}

MICA_INLINE float inside_f32(float v, float low, float high)
{
    return v > low && v < high ? 1 : v != v ? v : 0; /* NaN passes */
}

/* s (1 - s), no digits lost where s is near 1 */
MICA_INLINE float sigmoid_slope_f32(float v)
{
    float e = mica_exp_negative_f32(-fabsf(v)), r = 1 / (1 + e);
    return e * r * r;
}

/* Terms of v end where e is 0: v, or its product, may be infinite. */
MICA_INLINE float swish_slope_f32(float v, float c)
{
    float a = c * fabsf(v), n = a > 104 ? 104 : a;
    float e = mica_exp_unclamped_f32(-n), r = 1 / (1 + e), rest = n * (e * r * r);
    return v < 0 ? e * r - rest : r + rest;
}

MICA_INLINE float gelu_slope_f32(float v)
{
    float density, part = mica_normal_f32(v, &density);
    return part + copysignf(mica_normal_reach_f32(v), v) * 0.39894228f * density;
}

MICA_INLINE float gelu_tanh_slope_f32(float v)
{
    float u = gelu_inner_f32(v), e = mica_exp_negative_f32(-fabsf(u)), r = 1 / (1 + e);
    float near = clip_f32(v, -16, 16); /* farther, e is 0, and the square might be infinite */
    return (v < 0 ? e : 1) * r + near * (e * r * r) * 1.595769122f * (1 + 0.134145f * near * near);
}

/* t + v (1 - t^2) sigmoid(v), t = n / d */
MICA_INLINE float mish_slope_f32(float v)
{
    float n, d, e = mish_fraction_f32(v, &n, &d), r = 1 / d;
    float rest = (v < 0 ? 2 : 2 * e * e) * (d + n) * (r * r);
    return n * r + clip_f32(v, -128, 128) * rest * ((v < 0 ? e : 1) / (1 + e));
}

MICA_INLINE float slope_f32(mica_act act, float v, float a, float b)
{
    switch (act) {
    case MICA_ACT_RELU:
        return v > 0 ? 1 : v <= 0 ? 0 : v;
    case MICA_ACT_CLIP:
        return inside_f32(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? 1 : v <= 0 ? a : v;
    case MICA_ACT_ELU:
        return v > 0 ? 1 : a * mica_exp_negative_f32(v);
    case MICA_ACT_SELU:
        return 1.0507009873554805f * (v > 0 ? 1 : 1.6732632423543772f * mica_exp_negative_f32(v));
    case MICA_ACT_SIGMOID:
        return sigmoid_slope_f32(v);
    case MICA_ACT_TANH: /* tanh(v) = 2 sigmoid(2 v) - 1 */
        return 4 * sigmoid_slope_f32(2 * v);
    case MICA_ACT_SILU:
        return swish_slope_f32(v, 1);
    case MICA_ACT_GELU:
        return gelu_slope_f32(v);
    case MICA_ACT_GELU_TANH:
        return gelu_tanh_slope_f32(v);
    case MICA_ACT_QUICK_GELU:
        return swish_slope_f32(v, 1.702f);
    case MICA_ACT_SOFTPLUS:
        return mica_sigmoid_f32(a * v);
    case MICA_ACT_SOFTSIGN:
        return 1 / (1 + fabsf(v)) * (1 / (1 + fabsf(v))); /* the square may be infinite */
    case MICA_ACT_MISH:
        return mish_slope_f32(v);
    case MICA_ACT_HARD_SIGMOID:
        return inside_f32(v, -3, 3) / 6;
    case MICA_ACT_HARD_SWISH:
        return v <= -3 ? 0 : v >= 3 ? 1 : (v + 1.5f) / 3;
    case MICA_ACT_HARD_TANH:
        return inside_f32(v, -1, 1);
    case MICA_ACT_RELU6:
        return inside_f32(v, 0, 6);
    case MICA_ACT_SQUARED_RELU:
        return v <= 0 ? 0 : 2 * v;
    default:
        return 1;
    }
}

MICA_INLINE void values_row(mica_act act, const float *v, float *out, int64_t n, float a, float b)
{
    for (int64_t i = 0; i < n; i++) out[i] = value_f32(act, v[i], a, b);
}

MICA_INLINE void slopes_row(mica_act act, const float *v, float *out, int64_t n, float a, float b)
{
    for (int64_t i = 0; i < n; i++) out[i] = slope_f32(act, v[i], a, b);
}

MICA_CLONES
void mica_act_values_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b)
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

MICA_CLONES
void mica_act_slopes_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b)
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
