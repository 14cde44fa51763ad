/* SPDX-License-Identifier: Apache-2.0
 * Normalisation: layer, RMS, batch, group, instance; forward and backward; fused with the addition
 * of a residual, where transformers (layer, rms) or residual networks (the others) have it, and an
 * activation behind it.
 *   layer, rms:               u = x + residual, which sum receives
 *                             y = act(scale * (u - mean) * rstd + bias)
 *   batch, group, instance:   y = act(scale * (x - mean) * rstd + bias + residual)
 * rms: mean = 0, rstd = 1/sqrt(mean(u^2) + eps).
 * Statistics over: layer, rms: the last `axes` dimensions; batch: all but dimension 1; instance:
 * all but dimensions 0 and 1; group: C/groups channels and all spatial positions of one sample.
 * mean and rstd have one element per such set: layer and rms the dimensions of x before the last
 * `axes`, batch C, instance N x C, group N x groups. A set without elements has mean and variance
 * 0.
 *
 * Variances are biased (divided by n) and never formed as E[x^2] - mean^2. fwd normalises u before
 * it is rounded to sum's type. The running variance of batch training is unbiased as in PyTorch,
 *   running = (1 - momentum) * running + momentum * batch statistic,
 * so training with running_var and one value per channel is MICA_INVALID (n - 1 is 0); with
 * running_biased=1 it is the variance itself, as in ONNX. Either of
 * running_mean and running_var may be absent there; mode=infer reads both and changes neither.
 *
 * bwd reads x (layer and rms with a residual: the sum u, and dx is the gradient of x and of the
 * residual alike), y's gradient dy, and mean and rstd as saved by fwd; mode=infer takes
 * running_mean and running_var as constants instead. It writes dx, and dscale and dbias if those
 * tensors are given. With an activation it recomputes the value in front of it, for which alone it
 * reads bias and, where that was added there, residual; the gradient of that value is the
 * residual's, and goes to dresidual (batch, group, instance) if that tensor is given. dx, dscale,
 * dbias and sum may be NULL at run time. All sums have a fixed order. dx = gradient + beta * dx so
 * that the gradient of a way past the norm, lying in dx, needs no addition of its own; no other
 * result knows beta.
 * Edges: squares are formed in f32 (f64 if x is). A set whose squared deviations (rms: values) add
 * up to more than that holds, with deviations of 1.8e19 / sqrt(n) and more, gives NaN in all of it,
 * never a 0 that looks like a result; so does an infinite running variance. NaN and infinities of x
 * make their set NaN.
 * In place: y on x, sum on residual, dx on dy if beta is 0, with equal tensors.
 * x, residual, y, sum, dy, dx, dresidual may each be f64, f32, f16 or bf16. */
#ifndef MICA_NORM_H
#define MICA_NORM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_norm_pass { MICA_NORM_FWD, MICA_NORM_BWD } mica_norm_pass;
typedef enum mica_norm_kind {
    MICA_NORM_LAYER,
    MICA_NORM_RMS,
    MICA_NORM_BATCH,
    MICA_NORM_GROUP,
    MICA_NORM_INSTANCE
} mica_norm_kind;
typedef enum mica_norm_mode {
    MICA_NORM_TRAIN, /* statistics of this batch */
    MICA_NORM_INFER  /* batch only: running statistics */
} mica_norm_mode;

/* fwd reads X RESIDUAL SCALE BIAS and writes Y SUM MEAN RSTD, and updates (infer: reads)
 * RUNNING_MEAN and RUNNING_VAR; bwd reads X RESIDUAL DY SCALE BIAS MEAN RSTD (infer: RUNNING_MEAN
 * RUNNING_VAR in place of the last two) and writes DX DSCALE DBIAS DRESIDUAL. */
enum {
    MICA_NORM_X,
    MICA_NORM_RESIDUAL,
    MICA_NORM_SCALE,
    MICA_NORM_BIAS,
    MICA_NORM_Y,
    MICA_NORM_SUM,
    MICA_NORM_MEAN,
    MICA_NORM_RSTD,
    MICA_NORM_RUNNING_MEAN,
    MICA_NORM_RUNNING_VAR,
    MICA_NORM_DY,
    MICA_NORM_DX,
    MICA_NORM_DSCALE,
    MICA_NORM_DBIAS,
    MICA_NORM_DRESIDUAL
};
enum { MICA_NORM_BETA };

typedef struct mica_norm_desc {
    mica_norm_pass pass;     /* 0 means fwd */
    mica_norm_kind kind;     /* 0 means layer */
    mica_norm_mode mode;     /* 0 means train */
    mica_tensor x;           /* needed */
    mica_tensor residual;    /* dims of x: fused addition; bwd: unused but for an activation with
                                batch, group, instance; 0 means none */
    mica_tensor scale, bias; /* layer, rms: the last `axes` dims; others: C; f32 or x's type; 0
                                means none, as if they were 1 and 0 */
    mica_tensor y;           /* may have another floating type; 0 means inferred: as x */
    mica_tensor sum;         /* 0 means inferred with residual: as x */
    mica_tensor mean, rstd;  /* f32 (f64 for f64), one per set; 0 means none in fwd, inferred in bwd
                                (train), where they are needed at run time */
    mica_tensor running_mean, running_var; /* batch; C, typed as mean; train updates them, infer
                                              reads them; 0 means none, in mode infer inferred */
    mica_tensor dy, dx;                    /* bwd; 0 means inferred: as x */
    mica_tensor dscale;                    /* bwd; 0 means inferred with scale */
    mica_tensor dbias;                     /* bwd; 0 means inferred with bias */
    mica_tensor dresidual; /* bwd of batch, group, instance; dims of x; 0 means none */
    int64_t axes;          /* layer, rms: trailing dimensions; 0 means 1 */
    int64_t groups;        /* needed for kind group */
    double eps;            /* 0 means 1e-05 */
    double momentum;       /* 0 means 0.1 */
    mica_act act;          /* behind the affine step; 0 means identity */
    double act_a, act_b;   /* 0 means the function's own */
    bool running_biased;   /* batch: running_var takes the variance itself, as ONNX's, instead of
                              n / (n - 1) of it, as PyTorch's; 0 means no */
} mica_norm_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_norm_plan(mica_context *context, const mica_norm_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "norm", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
