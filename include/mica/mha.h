/* SPDX-License-Identifier: Apache-2.0
 * Multi-head attention with its four projections, as one operation:
 *
 *     qh = q wq^T + bq    kh = k wk^T + bk    vh = v wv^T + bv      cut into heads
 *     oh, lse = attention(qh, kh, vh)                               see mica/attention.h
 *     out = oh wo^T + bo
 *
 * It has three passes, which hand their results to each other in tensors of the caller:
 *
 *   fwd           q, k, v, weights, biases -> qh, kh, vh, oh, lse, out
 *   bwd_data      the gradient of out in `out`; weights, qh, kh, vh, oh, lse -> gradients of the
 *                 inputs in `q`, `k`, `v`, and doh, dqh, dkh, dvh: those of oh, qh, kh, vh
 *   bwd_weights   the gradient of out in `out`; q, k, v, oh, dqh, dkh, dvh -> gradients of weights
 *                 and biases in `wq`, `wk`, `wv`, `wo` and `bq`, `bk`, `bv`, `bo`
 *
 * So `out` is the gradient of out in both backward passes, as mica/conv.h has it. The gradient of
 * an input that stands for several of q, k, v is their sum. Every pass adds beta times what was
 * there to its last results (fwd: out; bwd_data: q, k, v; bwd_weights: weights and biases). Those
 * of bias and sinks come with bwd_data, in `dbias` and `dsinks`, and know no beta.
 *
 * Dimensions, in logical order: q is B x Sq x Eq, k is B x Sk x Ek, v is B x Sk x Ev, out is
 * B x Sq x Eo; B of k and v is another than q's only where one side is packed. Weights are outputs
 * x inputs: wq is H D x Eq, wk is Hk D x Ek, wv is Hk Dv x Ev, wo is Eo x H Dv; biases have as many
 * elements as their weights have rows. Row h D + d of wq makes element d of head h. qh and dqh are
 * B x H x Sq x D, kh and dkh B x Hk x Sk x D, vh and dvh B x Hk x Sk x Dv, oh and doh
 * B x H x Sq x Dv, lse is B x H x Sq; inferred, memory is in the order B x S x H x D. H is a
 * multiple of Hk. D and Dv are at most 1024.
 *
 * Which keys a query attends to, what is added to its scores and what is dropped are attention's
 * fields, under the same names and with the same meaning: mica/attention.h says it all, "q" being
 * qh there, "k" kh and "v" vh. Rows that belong to no sequence (cu_q, cu_k, seq_q, seq_k) are
 * projected like all others: what lies in them has to be finite. Their oh is 0, so that their out
 * is bo, and no gradient passes through attention there; but the gradient of bo counts their rows
 * of out.
 *
 * Any strides: where neither batch and rows, nor heads and their columns, lie at one distance, a
 * copy that does is made in the workspace. Zero sizes: sums of nothing are 0, as everywhere.
 *
 * Types: f64, f32, f16 or bf16, all alike; biases may also be f32, and so may the gradients of
 * weights. lse is f32 (f64 for f64). What stands between the steps is rounded to the type.
 * A query that attends to no key has oh 0 (so that out is bo), lse -inf (with a sink: the sink),
 * and no gradients. */
#ifndef MICA_MHA_H
#define MICA_MHA_H

#include "mica/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_mha_pass { MICA_MHA_FWD, MICA_MHA_BWD_DATA, MICA_MHA_BWD_WEIGHTS } mica_mha_pass;

enum {
    MICA_MHA_Q,
    MICA_MHA_K,
    MICA_MHA_V,
    MICA_MHA_WQ,
    MICA_MHA_WK,
    MICA_MHA_WV,
    MICA_MHA_WO,
    MICA_MHA_BQ,
    MICA_MHA_BK,
    MICA_MHA_BV,
    MICA_MHA_BO,
    MICA_MHA_OUT,
    MICA_MHA_QH,
    MICA_MHA_KH,
    MICA_MHA_VH,
    MICA_MHA_OH,
    MICA_MHA_LSE,
    MICA_MHA_DOH,
    MICA_MHA_DQH,
    MICA_MHA_DKH,
    MICA_MHA_DVH,
    MICA_MHA_MASK,
    MICA_MHA_SLOPES,
    MICA_MHA_BIAS,
    MICA_MHA_SINKS,
    MICA_MHA_RNG,
    MICA_MHA_CU_Q,
    MICA_MHA_CU_K,
    MICA_MHA_SEQ_Q,
    MICA_MHA_SEQ_K,
    MICA_MHA_DBIAS,
    MICA_MHA_DSINKS
};
enum { MICA_MHA_BETA };

typedef struct mica_mha_desc {
    mica_mha_pass pass;         /* 0 means fwd */
    mica_tensor q;              /* needed */
    mica_tensor k, v;           /* 0 means inferred: k as q, v as k */
    int64_t heads;              /* H; 0 means 1 */
    int64_t kv_heads;           /* Hk; 0 means heads */
    int64_t head_dim;           /* D; 0 means by wq, else Eq / heads */
    int64_t value_dim;          /* Dv; 0 means by wv, else head_dim */
    mica_tensor wq, wk, wv, wo; /* 0 means inferred: packed; Eo, where out says nothing, as Eq */
    mica_tensor bq, bk, bv, bo; /* a type is enough; not in bwd_data; 0 means none */
    mica_tensor out;            /* 0 means inferred */
    mica_tensor qh, kh, vh, oh; /* 0 means inferred where the pass has them */
    mica_tensor lse;            /* 0 means inferred where the pass has it */
    mica_tensor doh, dqh, dkh, dvh; /* 0 means inferred where the pass has them */
    double scale;                   /* of scores; 0 means 1 / sqrt(D), or 1 if D is 0 */
    mica_attention_causal causal;   /* 0 means none */
    mica_tensor mask; /* B x H x Sq x Sk, each dimension that or 1; bool or u8, 0 where a query does
                         not attend; fwd and bwd_data; 0 means none */
    mica_compute compute; /* tf32 allows engines to round f32 inputs; 0 means default */
    /* As mica_attention_desc has them, for fwd and bwd_data. */
    double soft_cap;                   /* 0 means none */
    int64_t window_left, window_right; /* 0 means all */
    mica_attention_align align;        /* 0 means top_left */
    mica_tensor slopes;                /* H; 0 means none */
    mica_tensor bias;                  /* B x H x Sq x Sk, each dimension that or 1; 0 means none */
    mica_tensor sinks;                 /* H; 0 means none */
    double dropout;                    /* of the weights of attention; 0 means none */
    mica_tensor
        rng; /* s64, {seed, offset}: the same in both passes; 0 means inferred with dropout */
    mica_tensor cu_q, cu_k;    /* s32, N + 1: B is 1, rows are those of N sequences; 0 means none */
    mica_tensor seq_q, seq_k;  /* s32, B; 0 means none */
    mica_tensor dbias, dsinks; /* bwd_data; 0 means none */
    int64_t max_q, max_k;      /* 0 means unknown */
} mica_mha_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_mha_plan(mica_context *context, const mica_mha_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "mha", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
