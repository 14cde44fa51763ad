/* SPDX-License-Identifier: Apache-2.0
 * Deformable convolution (v1, with a mask v2): each tap of each window reads beside its place, by
 * an offset of its own, between elements (torchvision.ops.deform_conv2d, ONNX's DeformConv); and
 * its gradients.
 *
 *     y[n, k, q] = bias[k] + sum over c, t of w[k, c, t] v[n, g C/G + c, t, q],   g = k / (K/G)
 *     v[n, c, t, q] = mask[n, o T + t, q] x[n, c, q stride - pad + t dilation + (dh, dw)]
 *     dh = offset[n, (o T + t) 2, q],   dw = offset[n, (o T + t) 2 + 1, q],   o = c / (C/O)
 *
 * of G groups, O offset groups and the filter's T = R S taps. x is read by bilinear interpolation
 * of the four elements around a place; elements beside x are 0, and those whose weight is 0 are not
 * read: whole offsets give the bits of a convolution's products. A place that is NaN or infinite
 * reads nothing. Places and weights are formed in f64 for f64, else in f32; v is rounded to x's
 * type, products are added as in gemm.
 *
 *   dgrad   dv[n, c, t, q] = sum over k of w[k, c, t] dy[n, k, q]
 *           dx: the sum of dv mask weight over all taps that read an element
 *           doffset: the sum over channels of dv mask times the derivative of what is read
 *           dmask: the sum over channels of dv times what is read, without the mask
 *   wgrad   dw[k, c, t] = sum over n, q of dy[n, k, q] v[n, c, t, q];  dbias: the sum of dy
 *
 * dv, as v, is rounded to x's type; all sums are in f64 for f64, else f32, each result is rounded
 * once, and bits do not vary between runs. Where a place is a whole number its derivative is that
 * towards greater ones, as torchvision has it: at -1 one is not 0. Elements that have no part in a
 * derivative are not read; a place that is NaN or infinite has none.
 *
 * Types: f64 f32 f16 bf16. */
#ifndef MICA_DEFORM_CONV_H
#define MICA_DEFORM_CONV_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_deform_conv_pass {
    MICA_DEFORM_CONV_FWD,
    MICA_DEFORM_CONV_DGRAD,
    MICA_DEFORM_CONV_WGRAD
} mica_deform_conv_pass;

enum {
    MICA_DEFORM_CONV_X,
    MICA_DEFORM_CONV_W,
    MICA_DEFORM_CONV_OFFSET,
    MICA_DEFORM_CONV_MASK,
    MICA_DEFORM_CONV_BIAS,
    MICA_DEFORM_CONV_Y,
    MICA_DEFORM_CONV_DY,
    MICA_DEFORM_CONV_DX,
    MICA_DEFORM_CONV_DOFFSET,
    MICA_DEFORM_CONV_DMASK,
    MICA_DEFORM_CONV_DW,
    MICA_DEFORM_CONV_DBIAS
};

typedef struct mica_deform_conv_desc {
    mica_deform_conv_pass pass; /* 0 means fwd */
    mica_tensor x;              /* N x C x H x W; needed */
    mica_tensor w;              /* fwd, dgrad: K x C/G x R x S, of x's type; needed */
    mica_tensor offset;         /* N x 2 O R S x spatial of y, of x's type; 0 means inferred */
    mica_tensor mask; /* N x O R S x spatial of y, of x's type; 0 means none, as if all were 1 */
    mica_tensor bias; /* fwd: K, of x's type; 0 means none */
    mica_tensor y;  /* fwd: N x K x spatial, of x's type; 0 means inferred, order in memory as x */
    int64_t pad[2]; /* before and after each axis; 0 means none */
    int64_t pad_extra[2];  /* added to pad at the end of an axis, to its negative; 0 means none */
    int64_t stride[2];     /* 0 means 1 */
    int64_t dilation[2];   /* 0 means 1 */
    int64_t groups;        /* 0 means 1 */
    int64_t offset_groups; /* 0 means 1 */
    mica_tensor dy;        /* dgrad, wgrad: as y; 0 means inferred */
    mica_tensor dx;        /* dgrad: as x; 0 means none, of the three one is needed */
    mica_tensor doffset;   /* dgrad: as offset; 0 means none */
    mica_tensor dmask;     /* dgrad: as mask; 0 means none */
    mica_tensor dw;        /* wgrad: as w; needed */
    mica_tensor dbias;     /* wgrad: as bias; 0 means none */
} mica_deform_conv_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_deform_conv_plan(mica_context *context,
                                                const mica_deform_conv_desc *desc,
                                                const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "deform_conv", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
