/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of a linear layer's outputs, without these in memory:
 *
 *   logits = x w^T
 *   loss[i] = lse[i] - (1 - smoothing) logits[i, label[i]] - smoothing mean over c of logits[i, c]
 *
 * x is N x K, w V x K: a language model's last layer. lse is log(sum(exp(logits))) of a row. dx and
 * dw, if given, receive the gradients of the loss (with reduction=none of the sum of the losses),
 * so that a training step calls this once; where the loss goes into others, multiply them by its
 * gradient.
 *
 * Logits are made for `chunk` classes at a time, in f32 (f64 for f64), and made again for the
 * gradients: each of dw's elements is one sum over the rows, rounded once, and dx is summed over
 * chunks in f32. Workspace: N chunk (4 + bytes of x) + 4 N K where dx has several chunks, and some
 * numbers for each row and chunk; N (V (4 + bytes of x)) are saved.
 *
 * Labels, ignore_index, the divisor of a mean and smoothing are cross_entropy's: rows whose label
 * is ignore_index have a loss and a gradient of 0, a mean over no rows is NaN, a label out of range
 * gives NaN in its row. Types: x and w f64, f32, f16, bf16, of one type. */
#ifndef MICA_LINEAR_CROSS_ENTROPY_H
#define MICA_LINEAR_CROSS_ENTROPY_H

#include "mica/cross_entropy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_LINEAR_CROSS_ENTROPY_X,
    MICA_LINEAR_CROSS_ENTROPY_W,
    MICA_LINEAR_CROSS_ENTROPY_LABELS,
    MICA_LINEAR_CROSS_ENTROPY_LOSS,
    MICA_LINEAR_CROSS_ENTROPY_LSE,
    MICA_LINEAR_CROSS_ENTROPY_DX,
    MICA_LINEAR_CROSS_ENTROPY_DW
};

typedef struct mica_linear_cross_entropy_desc {
    mica_tensor x;            /* N x K; needed */
    mica_tensor w;            /* V x K; needed */
    mica_tensor labels;       /* N; s32 or s64; 0 means inferred: s64 */
    mica_tensor loss;         /* 0 means inferred: f32 (f64 for f64), one element or N */
    mica_tensor lse;          /* N; 0 means none */
    mica_tensor dx;           /* as x, or in f32; 0 means not wanted */
    mica_tensor dw;           /* as w, or in f32; 0 means not wanted */
    mica_reduction reduction; /* 0 means mean */
    double smoothing;         /* 0 to 1; 0 means none */
    bool ignore;              /* ignore_index holds; 0 means no */
    int64_t ignore_index;     /* such as -100; 0 means class 0 */
    int64_t chunk;            /* classes at a time; 0 means 4096 */
} mica_linear_cross_entropy_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_linear_cross_entropy_plan(mica_context *context,
                                                         const mica_linear_cross_entropy_desc *desc,
                                                         const mica_options *options,
                                                         mica_plan **plan)
{
    return mica_plan_create(context, "linear_cross_entropy", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
