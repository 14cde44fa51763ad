/* SPDX-License-Identifier: Apache-2.0
 * Windows of a tensor as columns of a matrix (im2col, unfold), and the sums of such columns where
 * they came from (col2im, fold), which is the gradient. One to three axes.
 *
 *   fwd   y[n, c K + k, l] = x[n, c, l stride + k dilation - pad], or 0 beside x
 *   bwd   dx[n, c, i] = sum of dy[n, c K + k, l] over all taps k and windows l that read i
 *
 * k counts the K taps of a window and l the windows, both with the last axis fastest: the layout of
 * PyTorch's unfold and fold and of ONNX's Col2Im, N x C K x L. Along an axis there are
 * (x + 2 pad + pad_extra - (kernel - 1) dilation - 1) / stride + 1 windows, rounded down. As an
 * operation of its own fold is bwd: dy are the columns, dx is the image; and the gradient of that
 * is fwd. Any strides, of y too: rows of a matrix may be windows or taps.
 *
 * Types: f64 f32 f16 bf16. fwd copies; bwd sums in f64 for f64, else in f32, in the order of k, and
 * rounds once: bits do not vary. */
#ifndef MICA_IM2COL_H
#define MICA_IM2COL_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_im2col_pass { MICA_IM2COL_FWD, MICA_IM2COL_BWD } mica_im2col_pass;

enum { MICA_IM2COL_X, MICA_IM2COL_Y, MICA_IM2COL_DY, MICA_IM2COL_DX };

typedef struct mica_im2col_desc {
    mica_im2col_pass pass; /* 0 means fwd */
    mica_tensor x;         /* fwd: N x C x 1 to 3 axes; needed */
    mica_tensor y;         /* fwd: N x C K x L; 0 means inferred */
    mica_tensor dy;        /* bwd: as y; 0 means inferred */
    mica_tensor dx;        /* bwd: as x; needed */
    int64_t kernel[3];     /* taps per axis; 0 means 1 */
    int64_t stride[3];     /* from window to window; 0 means 1 */
    int64_t pad[3];        /* zeros before and behind each axis; 0 means none */
    int64_t pad_extra[3];  /* added to pad behind an axis; 0 means none */
    int64_t dilation[3];   /* from tap to tap; 0 means 1 */
} mica_im2col_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_im2col_plan(mica_context *context, const mica_im2col_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "im2col", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
