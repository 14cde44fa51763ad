/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation: each element is divided by a power of the sum of squares around it.
 *
 *   fwd   s[i] = k + a sum over j in W(i) of u[j]^2,  y[i] = x[i] s[i]^-beta,  u = x - means
 *   bwd   dx[j] = dy[j] s[j]^-beta - t[j],  dmeans[j] = t[j],
 *         t[j] = 2 a beta u[j] sum over i with j in W(i) of dy[i] x[i] s[i]^(-beta - 1)
 *
 * kind says along which axes the window W(i) reaches, `size` elements along each of them; what lies
 * beside x counts as 0:
 *   across     the channels (ONNX and PyTorch, cuDNN's CROSS_CHANNEL_DIM1, Caffe's ACROSS_CHANNELS)
 *   within     all axes behind the channels (Caffe's WITHIN_CHANNEL)
 *   divisive   as within, of u = x - means where means are given (cuDNN's DivisiveNormalization
 *              with precomputed means: any numbers, each taken from its own element of x, as local
 *              contrast normalisation has it; Jarrett et al., 2009)
 *
 * a is alpha / size for across and alpha / size^axes for the others: the mean of squares counts.
 * With `sum` it is alpha itself, as TensorFlow has it. Libraries differ in the rest, too:
 *   extra   of an even size more elements lie behind i than before it (after: ONNX, cuDNN), or more
 *           before it (before: PyTorch). oneDNN leaves one out. Caffe has odd sizes only.
 *   k       1 in ONNX, PyTorch and Caffe (where within has no other); 2 in cuDNN
 *
 * Sums are formed anew for each element, never by adding and subtracting along an axis, which would
 * drift. No square overflows or vanishes: what is large or small is taken as a fraction and an
 * exponent. An infinity makes 0 of finite elements whose window holds it, and NaN of itself. With
 * k=0 an element whose window is all 0 is 0 / 0: NaN.
 *
 * Types: f64 f32 f16 bf16, the same for all tensors; sums are f64 for f64, else f32. */
#ifndef MICA_LRN_H
#define MICA_LRN_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_lrn_pass { MICA_LRN_FWD, MICA_LRN_BWD } mica_lrn_pass;
typedef enum mica_lrn_kind { MICA_LRN_ACROSS, MICA_LRN_WITHIN, MICA_LRN_DIVISIVE } mica_lrn_kind;
typedef enum mica_lrn_extra { MICA_LRN_AFTER, MICA_LRN_BEFORE } mica_lrn_extra;

enum { MICA_LRN_X, MICA_LRN_MEANS, MICA_LRN_Y, MICA_LRN_DY, MICA_LRN_DX, MICA_LRN_DMEANS };

typedef struct mica_lrn_desc {
    mica_lrn_pass pass;   /* 0 means fwd */
    mica_lrn_kind kind;   /* 0 means across */
    mica_lrn_extra extra; /* 0 means after */
    bool sum;             /* alpha multiplies the sum of squares, not their mean; 0 means no */
    mica_tensor x;        /* N x C x up to 3 axes, for within and divisive at least 1; needed */
    mica_tensor means;    /* divisive: as x; 0 means none: all 0 */
    mica_tensor y;        /* 0 means inferred */
    mica_tensor dy;       /* bwd: gradient of y; 0 means inferred */
    mica_tensor dx;       /* bwd: gradient of x; 0 means inferred */
    mica_tensor dmeans;   /* bwd: gradient of means; 0 means none */
    int64_t size;         /* elements of the window along an axis; 0 means 5 */
    double alpha;         /* not negative; 0 means 0.0001 */
    double beta;          /* 0 to 1000; 0 means 0.75 */
    double k;             /* not negative; 0 means 1 */
} mica_lrn_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_lrn_plan(mica_context *context, const mica_lrn_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "lrn", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
