/* SPDX-License-Identifier: Apache-2.0
 * Speculative decoding: which of a chain of draft tokens are accepted, and the token behind them,
 * so that tokens are distributed as if drawn from the target model alone (Y. Leviathan et al.,
 * "Fast Inference from Transformers via Speculative Decoding", 2023; vLLM's rejection sampler).
 *
 * Of a sequence with n drafts (lengths, or K) position by position, until one is rejected: with p
 * and q the target's and the draft model's probabilities of the draft token,
 *
 *     accepted  if u q < p, u drawn from (0, 1)
 *     rejected  else: the token is drawn from max(p - q, 0) of all columns, or from p if that is 0
 *               everywhere
 *
 * If all n are accepted one more token follows: bonus, or drawn from row n of p. tokens is the
 * accepted drafts, that token, then -1; accepted is how many drafts were accepted. Without q drafts
 * are certain: q is 1 at the draft token and 0 elsewhere (n-grams). Greedy decoding is p of 1 at
 * the best token: a draft is then accepted if it is that one.
 *
 * Probabilities are taken as they are: rows that do not sum to 1 are not made to. What is not above
 * 0 is 0, NaN too, and more than 1 is 1. A draft that is no column has p and q of 0. Where nothing
 * can be drawn the token is -1.
 *
 * A sequence's result depends on its rows and parameters alone, not on the other sequences, the
 * device, threads or strides: CPUs and GPUs choose the same. Differences are rounded to f32 and
 * weighed as integers, multiples of 2^-40, rounded down; the token is the first column whose
 * cumulated weight is above v S / 2^64, rounded down, S the sum. For position i
 *
 *     words = Philox4x32-10(key = {seed mod 2^32, seed / 2^32},
 *                           counter = {offset mod 2^32, offset / 2^32, row, 2^31 + 1 + i})
 *     u     = ((words[0] + 2^32 words[1]) / 2^12 rounded down + 1/2) / 2^52
 *     v     = words[2] + 2^32 words[3]
 *
 * row is 0 where there are seeds, else the sequence's number. `sample` uses other counters, so that
 * both may share seed and offset. At most 4,194,304 columns and 65,536 drafts.
 *
 * Errors, MICA_INVALID: more; shapes that do not agree. */
#ifndef MICA_SPECULATE_H
#define MICA_SPECULATE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_SPECULATE_P,
    MICA_SPECULATE_Q,
    MICA_SPECULATE_DRAFTS,
    MICA_SPECULATE_TOKENS,
    MICA_SPECULATE_ACCEPTED,
    MICA_SPECULATE_BONUS,
    MICA_SPECULATE_LENGTHS,
    MICA_SPECULATE_SEEDS,
    MICA_SPECULATE_OFFSETS
};

/* Run-time scalars, below 2^53: 0 by default. */
enum { MICA_SPECULATE_SEED, MICA_SPECULATE_OFFSET };

typedef struct mica_speculate_desc {
    mica_tensor p;        /* target's probabilities, B x K+1 x columns, B x K x columns with bonus;
                             f32, f16, bf16, any strides; needed */
    mica_tensor q;        /* draft model's, B x K x columns; 0 means drafts are certain */
    mica_tensor drafts;   /* B x K, s64 or s32; needed */
    mica_tensor tokens;   /* B x K+1, s64 or s32; 0 means inferred */
    mica_tensor accepted; /* B, s64 or s32; 0 means inferred */
    mica_tensor bonus; /* B, s64 or s32: token behind drafts that are all accepted; 0 means drawn */
    mica_tensor lengths; /* B, s32: drafts of each sequence, 0 to K; 0 means all */
    mica_tensor seeds;   /* B, s64; 0 means the scalar */
    mica_tensor offsets; /* B, s64; 0 means the scalar */
} mica_speculate_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_speculate_plan(mica_context *context,
                                              const mica_speculate_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "speculate", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
