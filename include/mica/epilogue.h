/* SPDX-License-Identifier: Apache-2.0
 * Steps that an operation applies to its result before storing it, in the same launch. */
#ifndef MICA_EPILOGUE_H
#define MICA_EPILOGUE_H

#include "mica/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- activations ---------------------------------------------------------------------------
 * X(NAME, spelling, formula). a and b are the descriptor's act_a and act_b. NaN gives NaN, with
 * maxima and minima, too; but for relu by an engine whose contract has hides_nan. */
#define MICA_ACTIVATIONS(X)                                                                        \
    X(IDENTITY, "identity", "v")                                                                   \
    X(RELU, "relu", "max(v, 0)")                                                                   \
    X(CLIP, "clip", "min(max(v, a), b)")                                                           \
    X(LEAKY_RELU, "leaky_relu", "v > 0 ? v : a v  (a: default 0.01)")                              \
    X(ELU, "elu", "v > 0 ? v : a (exp(v) - 1)  (a: default 1)")                                    \
    X(SELU, "selu", "1.0507009873554805 (v > 0 ? v : 1.6732632423543772 (exp(v) - 1))")            \
    X(SIGMOID, "sigmoid", "1 / (1 + exp(-v))")                                                     \
    X(TANH, "tanh", "tanh(v)")                                                                     \
    X(SILU, "silu", "v sigmoid(v)")                                                                \
    X(GELU, "gelu", "v (1 + erf(v / sqrt 2)) / 2")                                                 \
    X(GELU_TANH, "gelu_tanh", "v (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))) / 2")                   \
    X(QUICK_GELU, "quick_gelu", "v sigmoid(1.702 v)")                                              \
    X(SOFTPLUS, "softplus", "log(1 + exp(a v)) / a  (a: default 1)")                               \
    X(SOFTSIGN, "softsign", "v / (1 + |v|)")                                                       \
    X(MISH, "mish", "v tanh(log(1 + exp(v)))")                                                     \
    X(HARD_SIGMOID, "hard_sigmoid", "min(max(v / 6 + 1/2, 0), 1)")                                 \
    X(HARD_SWISH, "hard_swish", "v hard_sigmoid(v)")                                               \
    X(HARD_TANH, "hard_tanh", "min(max(v, -1), 1)")                                                \
    X(RELU6, "relu6", "min(max(v, 0), 6)")                                                         \
    X(SQUARED_RELU, "squared_relu", "max(v, 0)^2")

typedef enum mica_act {
#define MICA_X(name, text, formula) MICA_ACT_##name,
    MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
        MICA_ACT_COUNT
} mica_act;

/* ---- epilogue steps -------------------------------------------------------------------------
 * A descriptor's `epilogue` lists steps in the order of application, ended by MICA_STEP_END.
 * Vectors are per output channel (conv: K; gemm: N) and of the type the descriptor's tensor
 * gives, f32 if none; the residual has the output's shape. An activation is written as
 * MICA_STEP_ACT + MICA_ACT_RELU, in text as its spelling: epilogue=bias,residual,relu. */
typedef enum mica_step {
    MICA_STEP_END,
    MICA_STEP_BIAS,     /* v += bias[c] */
    MICA_STEP_SCALE,    /* v *= scale[c] */
    MICA_STEP_SHIFT,    /* v += shift[c] */
    MICA_STEP_RESIDUAL, /* v += residual[...] */
    MICA_STEP_ACT       /* + activation: v = act(v) */
} mica_step;
#define MICA_MAX_STEPS 8

/* How sums are formed. The default is IEEE arithmetic of the input's precision or better: f64
 * sums for f64, s32 for integers, f32 for all others. */
typedef enum mica_compute {
    MICA_COMPUTE_DEFAULT,
    MICA_COMPUTE_TF32 /* f32 inputs are rounded to 11 bits of significand before products */
} mica_compute;

#ifdef __cplusplus
}
#endif
#endif
