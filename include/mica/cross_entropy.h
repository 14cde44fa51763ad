/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of logits, or of log-probabilities (the negative log-likelihood):
 *
 *   loss[i] = -sum over c of t[i,c] l[i,c],  l = log softmax(x), or x with input=log_probs
 *   t[i,c] = weight[c] ((1 - smoothing) p[i,c] + smoothing / C),  p[i,c] = (c == label[i]), or
 *            target[i,c] with targets=probabilities
 *
 *   fwd   writes loss: one element for mean and sum, one per row for none. lse, if given, receives
 *         log(sum(exp(x))) of every row.
 *   bwd   dx = dloss (softmax(x) sum(t) - t), of log-probabilities -dloss t, over the divisor of a
 *         mean. In place is allowed: dx on x, with equal tensors. dtarget, if given, receives
 *         -dloss (1 - smoothing) weight l.
 *
 * The divisor of a mean is the number of rows that count; of labels with weights it is the sum of
 * the weights of their labels, smoothing or not; of probabilities it is the number of rows.
 *
 * Rows whose label is ignore_index do not count: their loss and their gradient are 0. A mean over
 * no rows is NaN, and its gradient 0, as in PyTorch 2. A label out of range gives NaN in its row of
 * the loss and of the gradient, and so in the mean or sum, and has no weight in the divisor;
 * nothing is read out of bounds. PyTorch has no such rule, it raises an error. Probabilities need
 * not sum to 1; one of 0 times a logarithm of -inf is NaN, as in PyTorch. Sums over classes are in
 * f32, or f64 if any tensor is; sums over rows are in f64, in an order that depends on nothing but
 * the problem and the plan's config. */
#ifndef MICA_CROSS_ENTROPY_H
#define MICA_CROSS_ENTROPY_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_cross_entropy_pass {
    MICA_CROSS_ENTROPY_FWD,
    MICA_CROSS_ENTROPY_BWD
} mica_cross_entropy_pass;
typedef enum mica_reduction { MICA_REDUCE_MEAN, MICA_REDUCE_SUM, MICA_REDUCE_NONE } mica_reduction;
typedef enum mica_cross_entropy_input {
    MICA_CROSS_ENTROPY_LOGITS,
    MICA_CROSS_ENTROPY_LOG_PROBS
} mica_cross_entropy_input;
typedef enum mica_cross_entropy_targets {
    MICA_CROSS_ENTROPY_CLASSES,
    MICA_CROSS_ENTROPY_PROBABILITIES
} mica_cross_entropy_targets;

enum {
    MICA_CROSS_ENTROPY_X,
    MICA_CROSS_ENTROPY_LABELS,
    MICA_CROSS_ENTROPY_LOSS,
    MICA_CROSS_ENTROPY_LSE,
    MICA_CROSS_ENTROPY_DLOSS,
    MICA_CROSS_ENTROPY_DX,
    MICA_CROSS_ENTROPY_TARGET,
    MICA_CROSS_ENTROPY_WEIGHT,
    MICA_CROSS_ENTROPY_DTARGET
};

typedef struct mica_cross_entropy_desc {
    mica_cross_entropy_pass pass; /* 0 means fwd */
    mica_tensor x;                /* N x C, or N x C x spatial; needed */
    /* N, or N x spatial; s32 or s64; 0 means inferred with targets=classes: as s64 */
    mica_tensor labels;
    mica_tensor loss;                   /* fwd; 0 means inferred: f32 (f64 for f64) */
    mica_tensor lse;                    /* fwd; as labels; 0 means none */
    mica_tensor dloss;                  /* bwd; 0 means inferred: as loss */
    mica_tensor dx;                     /* bwd; 0 means inferred: as x */
    mica_reduction reduction;           /* 0 means mean */
    double smoothing;                   /* 0 to 1; 0 means none */
    bool ignore;                        /* ignore_index holds; 0 means no */
    int64_t ignore_index;               /* such as -100; 0 means class 0 */
    mica_cross_entropy_input input;     /* what x is; 0 means logits */
    mica_cross_entropy_targets targets; /* 0 means classes */
    /* In place of labels; 0 means inferred with targets=probabilities: as x */
    mica_tensor target;
    mica_tensor weight;  /* of classes, C; 0 means none */
    mica_tensor dtarget; /* bwd, targets=probabilities; 0 means not wanted */
} mica_cross_entropy_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_cross_entropy_plan(mica_context *context,
                                                  const mica_cross_entropy_desc *desc,
                                                  const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "cross_entropy", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
