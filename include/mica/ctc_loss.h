/* SPDX-License-Identifier: Apache-2.0
 * Connectionist temporal classification (Graves and others 2006): of each sequence b of logits, or
 * of log-probabilities, the negative logarithm of the probability that its steps say its labels.
 * Each step says a label or the blank; what is said is read with repeats merged and blanks dropped.
 *
 *   loss[b] = -log(sum over alignments of prod over t of exp(l[t,b,alignment[t]])),
 *   l = log softmax(x), or x with input=log_probs
 *
 *   fwd   writes loss: one element for mean and sum, B for none. The mean is that of
 *         loss[b] / max(label_lengths[b], 1) over the sequences, as in PyTorch.
 *   bwd   dx[t,b,c] = dloss[b] (exp(l[t,b,c]) - q[t,b,c]), q being the share of the alignments that
 *         say c at t, weighted by their probability; dloss over the divisors of a mean. That is the
 *         gradient by the logits, also where x is log-probabilities: as PyTorch's and cuDNN's, it
 *         passes unchanged through the gradient of a log softmax in front. gradient=by_log_probs
 *         is -dloss q, the derivative by x. Steps past a sequence's length have gradient 0.
 *
 * labels are B x L, of which the first label_lengths[b] count, or those of all sequences one after
 * the other. Labels may repeat and may be none. No alignment is left (too few steps, or all of
 * probability 0): the loss is inf, the gradient NaN; with zero_infinity both are 0. A label
 * that is the blank or no class, or a length below 0 or past what is there, makes the loss and the
 * gradient of its sequence NaN; nothing is read out of bounds.
 *
 * Probabilities are kept as a significand and an exponent of their own, not as logarithms: each
 * step costs a few roundings whatever the length, and nothing underflows. f32, or f64 if any tensor
 * is; of logits the logarithm of each sum of exponentials is rounded to that. Sums over sequences
 * are in f64. bwd keeps what precedes and follows each step in the workspace: 4 numbers of twice
 * that type for each step and label, a blank included. The same bits each time. */
#ifndef MICA_CTC_LOSS_H
#define MICA_CTC_LOSS_H

#include "mica/cross_entropy.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_ctc_loss_pass { MICA_CTC_LOSS_FWD, MICA_CTC_LOSS_BWD } mica_ctc_loss_pass;
typedef enum mica_ctc_loss_input {
    MICA_CTC_LOSS_LOGITS,
    MICA_CTC_LOSS_LOG_PROBS
} mica_ctc_loss_input;
typedef enum mica_ctc_loss_gradient {
    MICA_CTC_LOSS_BY_LOGITS,
    MICA_CTC_LOSS_BY_LOG_PROBS
} mica_ctc_loss_gradient;

enum {
    MICA_CTC_LOSS_X,
    MICA_CTC_LOSS_LABELS,
    MICA_CTC_LOSS_LABEL_LENGTHS,
    MICA_CTC_LOSS_INPUT_LENGTHS,
    MICA_CTC_LOSS_LOSS,
    MICA_CTC_LOSS_DLOSS,
    MICA_CTC_LOSS_DX
};

typedef struct mica_ctc_loss_desc {
    mica_ctc_loss_pass pass;         /* 0 means fwd */
    mica_tensor x;                   /* T x B x C; needed */
    mica_tensor labels;              /* B x L, or all in a row; s32 or s64; needed */
    mica_tensor label_lengths;       /* B, s32 or s64; 0 means inferred: as s64 */
    mica_tensor input_lengths;       /* B, s32 or s64; 0 means T each */
    mica_tensor loss;                /* fwd; 0 means inferred: f32 (f64 for f64) */
    mica_tensor dloss;               /* bwd; 0 means inferred: as loss */
    mica_tensor dx;                  /* bwd; 0 means inferred: as x */
    mica_reduction reduction;        /* 0 means mean */
    mica_ctc_loss_input input;       /* what x is; 0 means logits */
    mica_ctc_loss_gradient gradient; /* by what; 0 means by_logits */
    int64_t blank;                   /* 0 means class 0 */
    bool zero_infinity;              /* without an alignment loss and gradient are 0; 0 means no */
} mica_ctc_loss_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_ctc_loss_plan(mica_context *context, const mica_ctc_loss_desc *desc,
                                             const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "ctc_loss", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
