/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32. */
#include "ops/shared/activation_f32.h"
#include "cpu/cpu.h"

#include <math.h>

#define INLINE __attribute__((always_inline)) static inline

INLINE float sigmoid_f32(float v)
{
    float e = expf(-fabsf(v));
    return v >= 0 ? 1 / (1 + e) : e / (1 + e);
}

INLINE float softplus_f32(float v)
{
    return fmaxf(v, 0) + log1pf(expf(-fabsf(v)));
}

INLINE float clip_f32(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

/* act is a constant at every call: one branch is left. */
INLINE float value_f32(mica_act act, float v, float a, float b)
{
    switch (act) {
    case MICA_ACT_RELU:
        return v < 0 ? 0 : v;
    case MICA_ACT_CLIP:
        return clip_f32(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? v : a * v;
    case MICA_ACT_ELU:
        return v > 0 ? v : a * expm1f(v);
    case MICA_ACT_SELU:
        return 1.0507009873554805f * (v > 0 ? v : 1.6732632423543772f * expm1f(v));
    case MICA_ACT_SIGMOID:
        return sigmoid_f32(v);
    case MICA_ACT_TANH:
        return tanhf(v);
    case MICA_ACT_SILU:
        return v * sigmoid_f32(v);
    case MICA_ACT_GELU:
        return 0.5f * v * (1 + erff(v * 0.70710678f));
    case MICA_ACT_GELU_TANH:
        return 0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    case MICA_ACT_QUICK_GELU:
        return v * sigmoid_f32(1.702f * v);
    case MICA_ACT_SOFTPLUS:
        return softplus_f32(a * v) / a;
    case MICA_ACT_SOFTSIGN:
        return v / (1 + fabsf(v));
    case MICA_ACT_MISH:
        return v * tanhf(softplus_f32(v));
    case MICA_ACT_HARD_SIGMOID:
        return clip_f32(v / 6 + 0.5f, 0, 1);
    case MICA_ACT_HARD_SWISH:
        return v * clip_f32(v / 6 + 0.5f, 0, 1);
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

INLINE float inside_f32(float v, float low, float high)
{
    return v > low && v < high ? 1 : 0;
}

INLINE float swish_slope_f32(float v, float c)
{
    float s = sigmoid_f32(c * v);
    return s + c * v * s * (1 - s);
}

INLINE float gelu_tanh_slope_f32(float v)
{
    float t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));
    return 0.5f * (1 + t) + 0.5f * v * (1 - t * t) * 0.7978845608f * (1 + 0.134145f * v * v);
}

INLINE float mish_slope_f32(float v)
{
    float t = tanhf(softplus_f32(v));
    return t + v * (1 - t * t) * sigmoid_f32(v);
}

INLINE float slope_f32(mica_act act, float v, float a, float b)
{
    switch (act) {
    case MICA_ACT_RELU:
        return v > 0 ? 1 : 0;
    case MICA_ACT_CLIP:
        return inside_f32(v, a, b);
    case MICA_ACT_LEAKY_RELU:
        return v > 0 ? 1 : a;
    case MICA_ACT_ELU:
        return v > 0 ? 1 : a * expf(v);
    case MICA_ACT_SELU:
        return 1.0507009873554805f * (v > 0 ? 1 : 1.6732632423543772f * expf(v));
    case MICA_ACT_SIGMOID:
        return sigmoid_f32(v) * sigmoid_f32(-v);
    case MICA_ACT_TANH:
        return 1 - tanhf(v) * tanhf(v);
    case MICA_ACT_SILU:
        return swish_slope_f32(v, 1);
    case MICA_ACT_GELU:
        return 0.5f * (1 + erff(v * 0.70710678f)) + v * 0.39894228f * expf(-0.5f * v * v);
    case MICA_ACT_GELU_TANH:
        return gelu_tanh_slope_f32(v);
    case MICA_ACT_QUICK_GELU:
        return swish_slope_f32(v, 1.702f);
    case MICA_ACT_SOFTPLUS:
        return sigmoid_f32(a * v);
    case MICA_ACT_SOFTSIGN:
        return 1 / ((1 + fabsf(v)) * (1 + fabsf(v)));
    case MICA_ACT_MISH:
        return mish_slope_f32(v);
    case MICA_ACT_HARD_SIGMOID:
        return inside_f32(v, -3, 3) / 6;
    case MICA_ACT_HARD_SWISH:
        return v <= -3 ? 0 : v >= 3 ? 1 : v / 3 + 0.5f;
    case MICA_ACT_HARD_TANH:
        return inside_f32(v, -1, 1);
    case MICA_ACT_RELU6:
        return inside_f32(v, 0, 6);
    case MICA_ACT_SQUARED_RELU:
        return v > 0 ? 2 * v : 0;
    default:
        return 1;
    }
}

INLINE void values_row(mica_act act, const float *v, float *out, int64_t n, float a, float b)
{
    for (int64_t i = 0; i < n; i++) out[i] = value_f32(act, v[i], a, b);
}

INLINE void slopes_row(mica_act act, const float *v, float *out, int64_t n, float a, float b)
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
