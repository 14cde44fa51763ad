/* SPDX-License-Identifier: Apache-2.0
 * Convolution in one, two and three dimensions: forward, gradient of the input (dgrad), gradient
 * of the filter (wgrad); transposed, grouped, depthwise, dilated, any strides.
 *
 *   fwd:   y[n, k, q] = sum over c, t of
 *                       x[n, g C/G + c, q stride - pad + t dilation] w[k, c, t],  g = k / (K/G)
 *   dgrad: x = the gradient by x of sum(y * fwd(x, w)); reads y (the incoming gradient) and w
 *   wgrad: w = the gradient by w; reads x and y
 *
 * This is cross-correlation, as in PyTorch and cuDNN's default; flip=1 mirrors the filter.
 * transposed=1 exchanges the roles of x and y: fwd computes what dgrad of the plain convolution
 * computes, and the filter is C x K/G x R x S as in PyTorch.
 * result = alpha * conv + beta * (old content), then the epilogue (fwd only). A sum of nothing (an
 * empty batch in wgrad, no channels) is 0.
 * Types: f64 f32 f16 bf16, the two inputs alike, the result alike or f32, accumulated in f64 or
 * f32; s8 or u8 x by s8 w forward, accumulated exactly in s32, y s32, f32 or s8 (rounded to nearest
 * even, saturated); sums long enough to overflow s32 are refused; e4m3 or e5m2 x by either w
 * forward, y f32, f16 or bf16 (their scales: alpha, or the epilogue's scale). A transposed
 * convolution or another rank needs no other entry: rank 3, 4 or 5 says it.
 *
 * Forward passes may have more results (each is there if its tensor has a type):
 *
 *   aux           the value before the activation step, for a backward pass; as y, of any strides
 *   quantised y   e4m3, e5m2 or s8 from f32, f16 and bf16: y = saturate(round(scale_y v)), v being
 *                 the result of all steps; scale_y also goes with y s8 of integers. Rounding is to
 *                 nearest even; e4m3 stops at 448, e5m2 at 57344, infinities too, s8 at -128 and
 *                 127; a NaN stays one (in s8: 0). beta takes the old content of y as it is stored
 *   amax          max |v|, before scale_y and rounding; NaN if there is one
 *   stat_sum      K: the sum over batch and pixels of the y that is stored, as its type holds it;
 *   stat_square   K: the sum of its squares. With these a batch normalisation of y needs no pass
 *                 over it. For y of f64, f32, f16 and bf16
 *
 * The run sets them; nothing needs to be zeroed, and each run gives the same bits. Of an empty y
 * all are 0.
 *
 * Padding. Pixels beside the image are zeros. The reference leaves them out; an engine may multiply
 * them: a tap of w that is NaN or infinite and falls beside the image then makes NaN of it, as in
 * PyTorch, and which of the two is not promised. Every result whose window holds such a tap's pixel
 * inside the image is NaN or infinite in each engine. The other way round, an infinity or NaN in
 * the image reaches nothing that does not depend on it, except in engines whose contract says
 * `spreads`. */
#ifndef MICA_CONV_H
#define MICA_CONV_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_conv_pass { MICA_CONV_FWD, MICA_CONV_DGRAD, MICA_CONV_WGRAD } mica_conv_pass;

/* Run arguments. What is absent in the descriptor stays NULL. */
enum {
    MICA_CONV_X,
    MICA_CONV_W,
    MICA_CONV_Y,
    MICA_CONV_BIAS,
    MICA_CONV_SCALE,
    MICA_CONV_SHIFT,
    MICA_CONV_RESIDUAL,
    MICA_CONV_SCALE_Y,
    MICA_CONV_AUX,
    MICA_CONV_AMAX,
    MICA_CONV_STAT_SUM,
    MICA_CONV_STAT_SQUARE
};
/* Run-time scalars, defaults 1 and 0. */
enum { MICA_CONV_ALPHA, MICA_CONV_BETA };

typedef struct mica_conv_desc {
    mica_conv_pass pass; /* 0 means fwd */
    mica_tensor x;       /* N x C x spatial; needed, in dgrad inferred from y for stride 1 */
    mica_tensor w;       /* K x C/G x filter (transposed: C x K/G x filter); needed */
    mica_tensor y;  /* N x K x spatial; 0 means inferred, in dgrad needed. In the memory order of x;
                       a type alone is kept */
    int64_t pad[3]; /* zeros before and after each axis; negative: crops; 0 means none */
    int64_t pad_extra[3];  /* added to pad at the end of an axis: asymmetric; may be negative; 0
                              means none */
    int64_t stride[3];     /* 0 means 1 */
    int64_t dilation[3];   /* 0 means 1 */
    int64_t output_pad[3]; /* transposed: added to the end of y; 0 means as y has it, else none */
    int64_t groups;        /* C groups are a depthwise convolution; 0 means 1 */
    bool transposed;       /* x and y exchange their roles; 0 means no */
    bool flip;             /* true convolution: the filter is mirrored; 0 means no */
    mica_compute compute;  /* 0 means default */
    int32_t epilogue[MICA_MAX_STEPS]; /* 0 means none */
    double act_a, act_b; /* parameters of the activation step; 0 means the function's own */
    mica_tensor bias, scale, shift; /* K; 0 means inferred with its step: f32 (f64 for f64) */
    mica_tensor residual;           /* 0 means inferred with its step: as y */
    mica_tensor scale_y; /* 1 element of f32, for an 8-bit y; 0 means none. A type is enough here
                            and below: the rest is inferred */
    mica_tensor aux;     /* as y: f32 f16 bf16; f64 or f32 for f64; 0 means none */
    mica_tensor amax;    /* 1 element of f32; f64 for f64; 0 means none */
    mica_tensor stat_sum, stat_square; /* K elements of f32; f64 for f64; 0 means none */
} mica_conv_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_conv_plan(mica_context *context, const mica_conv_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "conv", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
