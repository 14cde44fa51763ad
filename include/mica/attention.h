/* SPDX-License-Identifier: Apache-2.0
 * Attention: out = softmax(scores) v, head by head, without the scores in memory.
 *
 *     s[i,j]   = cap(scale * scale_q * scale_k * sum_d q[i,d] k[j,d]) + alibi + bias[i,j]
 *     lse[i]   = log(sum_j exp(s[i,j]) + exp(sink))      over the keys j that query i attends to
 *     p[i,j]   = exp(s[i,j] - lse[i])
 *     out[i,c] = scale_v * sum_j p[i,j] drop[i,j] v[j,c]
 *
 *   fwd   q, k, v -> out, and lse, scores (s), weights (p) if their tensors are given
 *   bwd   q, k, v, out, lse, dout -> dq, dk, dv, and dbias, dsinks if their tensors are given
 *
 * Dimensions, in logical order: q is B x H x Sq x D, k is B x Hk x Sk x D, v is B x Hk x Sk x Dv,
 * out is B x H x Sq x Dv, lse is B x H x Sq. H is a multiple of Hk: query head h reads key head
 * h / (H/Hk) (GQA, MQA). Memory order is a matter of strides: layout bshd in text is B x S x H x D;
 * packed QKV are three tensors with the strides of one. D and Dv are at most 1024.
 *
 * Types. f64 throughout; or q, k and v alike in f32, f16 or bf16; or (fwd) q in e4m3 or e5m2 with k
 * and v in either; or (fwd) q in f32, f16 or bf16 with k and v in e4m3, e5m2 or s8. out is as q or
 * f32, of 8-bit q f32, f16 or bf16; gradients are as q or f32. lse and statistics are f32 (f64 for
 * f64).
 *
 * Precision. Sums are f32 (f64). Where q has 16 bits, engines may round weights (about the maximum
 * of their row) to its type before they multiply values. Where q has 8 bits, one (sm90_f8) rounds
 * them to e4m3, each by up to 1/16, as v was when it got its 8 bits, and sums the products of a
 * score and of a tile of keys with 13 bits behind the point of the largest: mica explain says what
 * an engine's unit is.
 *
 * Which keys. Sequence n has Q queries and K keys. Query i attends to key j if all of these agree:
 *
 *   causal         d = j - i - shift <= 0; shift is diagonal, with top_left (the diagonal starts at
 *                  the first key) alone, with bottom_right (it ends at the last one) added to K - Q
 *   window_left    d > -window_left; so many keys up to the diagonal, itself counted
 *   window_right   d < window_right; the same on the other side. 0: no window
 *   mask           mask[n,h,i,j] is not 0
 *   pages          the page of key j is one of the pool (a page number outside marks absent keys)
 *
 * A query that attends to no key has out 0 and lse -inf (with a sink: lse = sink) and no part in
 * any gradient. It never makes a NaN. So have rows of q that belong to no sequence, and their sinks
 * do not count either: lse is -inf. Rows of k that belong to none have dk = dv = 0. What lies in
 * such rows is not used, it may be NaN.
 *
 * Edges. Weights are exp(s - max) / sum, so keys whose scores are equal weigh the same however
 * large those are: a row of the lowest number of its type on all keys, as masks are often written,
 * gives the mean of v. A score of -inf has no weight, of +inf or NaN it makes its row NaN. A sink
 * of +inf takes all: out 0, lse +inf. Sinks beyond +-2.2e38 may count as that. Keys of weight 0
 * that lie inside a sequence (masked, outside a causal or other window) may be multiplied with 0,
 * so NaN and infinity in their v may reach rows that do not attend to them; behind the end of a
 * sequence and in absent pages they do not. Backward p is exp(s - lse), and lse is one number of 24
 * bits (f64: 53): p is wrong by a factor of up to 1 + |lse| 2^-23 while |lse| is below 2^20; from
 * 2^24 on, where *all* keys of a row have such scores (a row of -1e9, not one key of it), lse has
 * lost the logarithm of the sum and p is up to as many times too large as there are keys. Mask such
 * rows with `mask` or -inf instead, which gives no gradient. (A second statistic would be read by
 * every gradient kernel, written by every forward one and merged, for rows that no weight should
 * come from; FlashAttention and cuDNN keep one too.)
 *
 * Sequences of different lengths:
 *
 *   cu_q, cu_k     packed: q is 1 x H x T x D, k is 1 x Hk x T' x D. N+1 offsets, not decreasing:
 *                  sequence n has the rows from cu[n] to before cu[n+1]
 *   seq_q, seq_k   padded: of batch item n so many rows count
 *   pages          k and v are pools, P x Hk x page x D; key j of sequence n is row j % page of
 *                  page pages[n, j / page]. N x pages of a sequence; seq_k says how many keys count
 *
 * One side may be packed and the other padded or paged; both have N sequences. Lengths and offsets
 * outside the tensors count as the nearest inside. Offsets that decrease have no meaning, but
 * nothing outside the tensors is touched.
 *
 * Scores and weights, B x H x Sq x Sk, are what the formulas above call s and p: what a query does
 * not attend to has a score of -inf and a weight of 0, and so has a row of no sequence; dropout and
 * scale_v are not in them. They are for q, k and v that are neither packed, nor paged, nor of 8
 * bits, and cost what they are: memory of that size, that is written once and read a few times.
 *
 * Dropout. p is kept with probability 1 - dropout and then divided by it; lse knows nothing of it.
 * rng holds {seed, offset}. Element (n, h, i, j), i and j counted within the sequence, is dropped
 * if word j % 4 of Philox4x32-10 (Salmon and others 2011) is below dropout * 2^32, rounded down:
 *
 *     key     = {seed mod 2^32, seed / 2^32}
 *     counter = {j / 4, i, n H + h, offset}, each modulo 2^32
 *
 * Order of the additions to a score: cap is soft_cap * tanh(x / soft_cap) if soft_cap is not 0;
 * alibi is -slopes[h] * |d|, with d as above.
 * Zero sizes: no queries, nothing to do but dk = dv = 0; no keys, out = 0; D = 0, scores of 0.
 * Sources: Milakov and Gimelshein 2018 (online softmax); Dao and others 2022 (tiling, backward). */
#ifndef MICA_ATTENTION_H
#define MICA_ATTENTION_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_attention_pass { MICA_ATTENTION_FWD, MICA_ATTENTION_BWD } mica_attention_pass;

typedef enum mica_attention_causal {
    MICA_ATTENTION_NOT_CAUSAL,
    MICA_ATTENTION_TOP_LEFT,
    MICA_ATTENTION_BOTTOM_RIGHT
} mica_attention_causal;

typedef enum mica_attention_align {
    MICA_ATTENTION_ALIGN_TOP_LEFT,
    MICA_ATTENTION_ALIGN_BOTTOM_RIGHT
} mica_attention_align;

enum {
    MICA_ATTENTION_Q,
    MICA_ATTENTION_K,
    MICA_ATTENTION_V,
    MICA_ATTENTION_OUT,
    MICA_ATTENTION_LSE,
    MICA_ATTENTION_DOUT,
    MICA_ATTENTION_DQ,
    MICA_ATTENTION_DK,
    MICA_ATTENTION_DV,
    MICA_ATTENTION_DBIAS,
    MICA_ATTENTION_DSINKS,
    MICA_ATTENTION_SCALE_Q,
    MICA_ATTENTION_SCALE_K,
    MICA_ATTENTION_SCALE_V,
    MICA_ATTENTION_SLOPES,
    MICA_ATTENTION_BIAS,
    MICA_ATTENTION_MASK,
    MICA_ATTENTION_SINKS,
    MICA_ATTENTION_RNG,
    MICA_ATTENTION_CU_Q,
    MICA_ATTENTION_CU_K,
    MICA_ATTENTION_SEQ_Q,
    MICA_ATTENTION_SEQ_K,
    MICA_ATTENTION_PAGES,
    MICA_ATTENTION_SCORES,
    MICA_ATTENTION_WEIGHTS
};

typedef struct mica_attention_desc {
    mica_attention_pass pass; /* 0 means fwd */
    mica_tensor q;            /* needed */
    /* Of these a type alone is enough: the rest is inferred, in the memory order of what they are
     * inferred from (out: of q). */
    mica_tensor k, v;       /* 0 means inferred: k as q, v as k */
    mica_tensor out;        /* 0 means inferred: as q; of 8-bit q f32 */
    mica_tensor lse;        /* 0 means none in fwd, inferred in bwd */
    mica_tensor dout;       /* bwd; 0 means inferred: as out */
    mica_tensor dq, dk, dv; /* bwd; 0 means inferred: as q, k, v */
    mica_tensor dbias;      /* bwd: as bias, summed over what it is broadcast to; 0 means none */
    mica_tensor dsinks;     /* bwd: as sinks; 0 means none */
    mica_tensor scale_q, scale_k, scale_v; /* f32, for 8-bit q, k, v: 1 element, or one per key
                                              head; 0 means none, as if it were 1 */
    double scale;                          /* of scores; 0 means 1 / sqrt(D), or 1 if D is 0 */
    double soft_cap;                       /* 0 means none */
    mica_attention_causal causal;          /* 0 means none */
    int64_t window_left, window_right;     /* 0 means all */
    mica_attention_align align;            /* where the diagonal lies, for windows and ALiBi;
                                              causal=bottom_right implies it; 0 means top_left */
    mica_tensor slopes;                    /* ALiBi: H, f32 (f64 for f64); 0 means none */
    mica_tensor bias; /* B x H x Sq x Sk, each dimension that or 1; floating-point; 0 means none */
    mica_tensor mask; /* likewise, bool or u8; 0 means none */
    mica_tensor
        sinks;       /* H, floating-point: a logit that only takes part in the sum; 0 means none */
    double dropout;  /* 0 <= dropout < 1; 0 means none */
    mica_tensor rng; /* s64, 2 elements; 0 means inferred with dropout */
    mica_tensor cu_q, cu_k;   /* s32, N + 1; 0 means none */
    mica_tensor seq_q, seq_k; /* s32, N; 0 means none */
    mica_tensor pages;        /* s32, N x pages of a sequence; 0 means none */
    int64_t max_q,
        max_k; /* longest sequences expected: they only help to choose; 0 means unknown */
    mica_compute compute; /* tf32 allows engines to round f32 inputs; 0 means default */
    int64_t diagonal;    /* keys that the diagonal lies right of its corner, below 0 left of it, for
                            causal, windows and ALiBi; 0 means in its corner */
    mica_tensor scores;  /* fwd: as q or f32 (f64 for f64); 0 means none */
    mica_tensor weights; /* fwd: likewise; 0 means none */
} mica_attention_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_attention_plan(mica_context *context,
                                              const mica_attention_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "attention", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
