/* SPDX-License-Identifier: Apache-2.0
 * Choice of the next token of language models: one of each row of logits [rows x columns], at most
 * 4,194,304 columns.
 *
 * A row's token depends on its logits and parameters alone, not on the other rows, the device,
 * threads or strides: CPUs and GPUs choose the same. Steps, in vLLM's order, each rounded to f32:
 *
 *     v = x                                           mask: tokens whose bit is 0 are left out
 *     v = v + bias
 *     v = v > 0 ? v / repetition : v repetition       tokens with counts above 0 or in the prompt
 *     v = v - frequency counts
 *     v = v - presence                                tokens with counts above 0
 *     temperature below 1e-5, or NaN: the token is the largest v, of equal ones the first. Else
 *     v = v / temperature
 *     e = exp(v - max v), weight = e 2^40, rounded down to an integer
 *     min_p     leaves out tokens of e < min_p (of 1 and more: all but the largest)
 *     top_k     leaves the first k; 0 and less: all
 *     top_p     leaves the first so many that their weights' sum is at least top_p of the sum of
 *               those left so far, at least one; 1 and more, and NaN: all
 *     typical_p leaves those whose -log probability is nearest to the entropy, of those left so
 * far, the nearest so many that their weights' sum is at least typical_p of the sum of those left
 * so far, at least one, and all that are as near as the last; 1 and more, and NaN: all (C. Meister
 * et al., "Locally Typical Sampling", 2023)
 *
 * "The first" is in the order of weights, large before small, and of equal ones of columns. So ties
 * at the end of top_k or top_p are cut by column, where PyTorch's and transformers' keep all ties
 * of top_k. NaN is never chosen, nor is -inf, nor what weighs less than 2^-40 of the largest; if
 * nothing is left in a row its token is -1 and its logprob -inf. A v of +inf leaves but those of
 * +inf. Weights are integers and their sums exact, so that neither order nor grouping matters;
 * exp is mica's own, of single rounded products and sums, within 3 units in the last place of f32.
 * top_p and typical_p are rounded up to multiples of 2^-32; -log of a share of the largest and its
 * mean, by which typical_p goes, to multiples of 2^-24.
 *
 * The token is drawn by the inverse of the cumulated weights of what is left, in that order, S
 * together: the first whose cumulated weight is above u S / 2^64, rounded down, where
 *
 *     words = Philox4x32-10(key = {seed mod 2^32, seed / 2^32},
 *                           counter = {offset mod 2^32, offset / 2^32, row, 2^31})
 *     u     = words[0] + 2^32 words[1]
 *
 * row is 0 where there are seeds, else the row's number, so that rows that share a seed differ. Who
 * draws again for a row counts its offset up: a token's position serves.
 *
 * Each parameter is a run-time scalar for all rows, or a tensor [rows], which then counts:
 * temperature (temperatures), top_k (top_ks), top_p (top_ps), min_p (min_ps), seed (seeds), offset
 * (offsets), repetition (repetitions), presence (presences), frequency (frequencies), typical_p
 * (typical_ps). Scalars default to 1, 0, 1, 0, 0, 0, 1, 0, 0, 1. Seeds and offsets that are scalars
 * are below 2^53.
 *
 * With input=probabilities x is what softmax made, or anything proportional to it: e = x / max x,
 * and what is not above 0 is never chosen. Temperature 0 chooses the largest; others do not count.
 * Bias and penalties are for logits.
 *
 * logprob is the logarithm of the chosen token's probability: logprobs=raw by x as it came, before
 * all steps (as vLLM's default), logprobs=processed by what was left to draw from, of rows at
 * temperature 0 by v of all tokens. From the same weights, so the same bits everywhere, within
 * 2^-20 of the exact one.
 *
 * top_tokens and top_logprobs are the columns and log-probabilities of the N largest of each row,
 * the largest first, of equal ones by columns: with logprobs=raw of x as it came, with processed of
 * v of those that were left to draw from, of rows at temperature 0 of v of all tokens. Where a row
 * has fewer than N, and of NaN and -inf, the token is -1 and the logprob -inf. N is at most 1024.
 *
 * Errors, MICA_INVALID: more columns; shapes that do not agree; bias or counts with probabilities;
 * prompt without counts; N of 0 or above 1024. */
#ifndef MICA_SAMPLE_H
#define MICA_SAMPLE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_SAMPLE_X,
    MICA_SAMPLE_TOKEN,
    MICA_SAMPLE_LOGPROB,
    MICA_SAMPLE_TEMPERATURES,
    MICA_SAMPLE_TOP_KS,
    MICA_SAMPLE_TOP_PS,
    MICA_SAMPLE_MIN_PS,
    MICA_SAMPLE_SEEDS,
    MICA_SAMPLE_OFFSETS,
    MICA_SAMPLE_MASK,
    MICA_SAMPLE_BIAS,
    MICA_SAMPLE_COUNTS,
    MICA_SAMPLE_PROMPT,
    MICA_SAMPLE_REPETITIONS,
    MICA_SAMPLE_PRESENCES,
    MICA_SAMPLE_FREQUENCIES,
    MICA_SAMPLE_TYPICAL_PS,
    MICA_SAMPLE_TOP_TOKENS,
    MICA_SAMPLE_TOP_LOGPROBS
};

/* Run-time scalars. */
enum {
    MICA_SAMPLE_TEMPERATURE,
    MICA_SAMPLE_TOP_K,
    MICA_SAMPLE_TOP_P,
    MICA_SAMPLE_MIN_P,
    MICA_SAMPLE_SEED,
    MICA_SAMPLE_OFFSET,
    MICA_SAMPLE_REPETITION,
    MICA_SAMPLE_PRESENCE,
    MICA_SAMPLE_FREQUENCY,
    MICA_SAMPLE_TYPICAL_P
};

typedef enum mica_sample_input { MICA_SAMPLE_LOGITS, MICA_SAMPLE_PROBABILITIES } mica_sample_input;
typedef enum mica_sample_logprobs { MICA_SAMPLE_RAW, MICA_SAMPLE_PROCESSED } mica_sample_logprobs;

typedef struct mica_sample_desc {
    mica_sample_input input;       /* 0 means logits */
    mica_sample_logprobs logprobs; /* 0 means raw */
    mica_tensor x;                 /* rows x columns, f32, f16, bf16, any strides; needed */
    mica_tensor token;             /* rows, s64 or s32; 0 means inferred */
    mica_tensor logprob;           /* rows, f32; 0 means not wanted */
    mica_tensor temperatures;      /* rows, f32; 0 means the scalar */
    mica_tensor top_ks;            /* rows, s32; 0 means the scalar */
    mica_tensor top_ps;            /* rows, f32; 0 means the scalar */
    mica_tensor min_ps;            /* rows, f32; 0 means the scalar */
    mica_tensor seeds;             /* rows, s64; 0 means the scalar */
    mica_tensor offsets;           /* rows, s64; 0 means the scalar */
    mica_tensor mask;              /* bit c % 32 of word c / 32: token c may be chosen; rows x
                                      columns / 32 rounded up, u32 or s32; 0 means all may */
    mica_tensor bias;              /* rows x columns; 0 means none */
    mica_tensor counts;       /* rows x columns, s32: how often tokens were made; 0 means none */
    mica_tensor prompt;       /* as mask: tokens of the prompt; 0 means none */
    mica_tensor repetitions;  /* rows, f32; 0 means the scalar */
    mica_tensor presences;    /* rows, f32; 0 means the scalar */
    mica_tensor frequencies;  /* rows, f32; 0 means the scalar */
    mica_tensor typical_ps;   /* rows, f32; 0 means the scalar */
    mica_tensor top_tokens;   /* rows x N, s64 or s32: columns of the largest; 0 means not wanted */
    mica_tensor top_logprobs; /* rows x N, f32: their log-probabilities; 0 means not wanted */
} mica_sample_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_sample_plan(mica_context *context, const mica_sample_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "sample", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
