/* SPDX-License-Identifier: Apache-2.0
 * Losses of two or three tensors, and their gradients.
 *   fwd   y = the losses of elements or rows, or their mean or sum
 *   bwd   dx, dtarget, dother = dy times the derivatives; of a mean over its divisor
 *
 *   mse l1 smooth_l1 huber               of x and target
 *   bce bce_logits                       binary cross-entropy; target 0 to 1
 *   kl_div                               x log-probabilities, target probabilities (or logarithms)
 *   hinge_embedding soft_margin          target -1 or 1
 *   margin_ranking                       x and other, target -1 or 1
 *   poisson_nll gaussian_nll             other: the variance
 *   multilabel_soft_margin               rows along the last dimension
 *   cosine_embedding                     rows of x and other; target -1 or 1, one for each row
 *   triplet_margin                       rows: x the anchor, target the positive, other the
 * negative
 *   multi_margin                         rows; target one class for each; weight of classes
 *   multilabel_margin                    rows; target a list of classes for each, which -1 ends
 *
 * Values, gradients and divisors are PyTorch's: weights do not count in the divisor of a mean,
 * but those of mse and l1: it is their sum; the logarithms of bce are -100 or more, and its
 * gradient has a divisor of 1e-12, as f32 has that, or more; gaussian_nll's variance is eps or
 * more, and its gradient passes as if it were not; of a mean over nothing y is NaN. soft_margin and
 * the logarithms of bce_logits do not overflow. Types: x, other and weights f64, f32, f16, bf16,
 * target also s8, u8, s32, u32, bool; computed in f32, or in f64 if a tensor is f64, s32 or u32.
 * Classes are s32 or s64, and lie within x's last dimension: of others x counts as 0. The time of
 * multilabel_margin goes with the square of the number of classes.
 * weight and pos_weight broadcast to x as in NumPy, the others have its dimensions. The elements'
 * losses pass from the expression to the sum without memory; sums do not depend on the number of
 * threads. */
#ifndef MICA_LOSS_H
#define MICA_LOSS_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_loss_pass { MICA_LOSS_FWD, MICA_LOSS_BWD } mica_loss_pass;

typedef enum mica_loss_kind {
    MICA_LOSS_KIND_MSE,
    MICA_LOSS_KIND_L1,
    MICA_LOSS_KIND_SMOOTH_L1,
    MICA_LOSS_KIND_HUBER,
    MICA_LOSS_KIND_BCE,
    MICA_LOSS_KIND_BCE_LOGITS,
    MICA_LOSS_KIND_KL_DIV,
    MICA_LOSS_KIND_HINGE_EMBEDDING,
    MICA_LOSS_KIND_MARGIN_RANKING,
    MICA_LOSS_KIND_SOFT_MARGIN,
    MICA_LOSS_KIND_POISSON_NLL,
    MICA_LOSS_KIND_GAUSSIAN_NLL,
    MICA_LOSS_KIND_MULTILABEL_SOFT_MARGIN,
    MICA_LOSS_KIND_COSINE_EMBEDDING,
    MICA_LOSS_KIND_TRIPLET_MARGIN,
    MICA_LOSS_KIND_MULTI_MARGIN,
    MICA_LOSS_KIND_MULTILABEL_MARGIN
} mica_loss_kind;

/* Of what is there of each element or row. batchmean, of kl_div: the sum over x's first dimension.
 */
typedef enum mica_loss_reduction {
    MICA_LOSS_MEAN,
    MICA_LOSS_SUM,
    MICA_LOSS_NONE,
    MICA_LOSS_BATCHMEAN
} mica_loss_reduction;

enum {
    MICA_LOSS_X,
    MICA_LOSS_TARGET,
    MICA_LOSS_OTHER,
    MICA_LOSS_WEIGHT,
    MICA_LOSS_POS_WEIGHT,
    MICA_LOSS_Y,
    MICA_LOSS_DY,
    MICA_LOSS_DX,
    MICA_LOSS_DTARGET,
    MICA_LOSS_DOTHER
};

typedef struct mica_loss_desc {
    mica_loss_pass pass;           /* 0 means fwd */
    mica_loss_kind kind;           /* 0 means mse */
    mica_loss_reduction reduction; /* 0 means mean */
    mica_tensor x;                 /* needed */
    mica_tensor target; /* as x, of cosine_embedding and multi_margin without the last dimension;
                           needed */
    mica_tensor other;  /* as x; 0 means none; needed by the kinds that have it */
    mica_tensor weight; /* mse, l1, huber, bce, bce_logits, multilabel_soft_margin, multi_margin;
                           0 means none */
    mica_tensor pos_weight; /* bce_logits: of target; 0 means none */
    mica_tensor y;          /* fwd; 0 means inferred: x's type */
    mica_tensor dy;         /* bwd; 0 means inferred: as y would be */
    mica_tensor dx;         /* bwd; 0 means inferred: as x */
    mica_tensor dtarget;    /* bwd; 0 means not wanted */
    mica_tensor dother;     /* bwd; 0 means not wanted */
    double margin;          /* 0 means 0 of margin_ranking and cosine_embedding, else 1 */
    double beta;            /* smooth_l1's beta, huber's delta; 0 means 1 */
    double eps;             /* 0 means 1e-8 of poisson_nll, else 1e-6 */
    double p;               /* triplet_margin: of the distance; multi_margin, multilabel_margin: 1
                               or 2; 0 means 2 of triplet_margin, else 1 */
    bool log_target;        /* kl_div: target is a log-probability; 0 means no */
    bool rates;             /* poisson_nll: x is a rate, not its logarithm; 0 means no */
    bool full;              /* poisson_nll, gaussian_nll: with the constant term; 0 means no */
    bool swap;              /* triplet_margin: or from target, if that is nearer; 0 means no */
} mica_loss_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_loss_plan(mica_context *context, const mica_loss_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "loss", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
