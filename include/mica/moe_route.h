/* SPDX-License-Identifier: Apache-2.0
 * Routing of a mixture of experts: which k of E experts each token goes to, and how much each of
 * them counts. logits are T x E, indices and weights T x k.
 *
 *   score        s = softmax of the token's logits, or their sigmoids
 *   choice       the k largest s + bias, the largest first; without bias and where groups do not
 *                add scores, the k largest logits, which is the same choice. Of equal ones the one
 *                of the lower number comes first; NaN counts as the largest, as in torch.topk.
 *                The bias takes part in nothing else (DeepSeek-V3's balance without a loss)
 *   groups       experts lie in `groups` groups of E / groups neighbours each, and only those of
 *                the topk_groups best may be chosen. A group is worth the sum of its two largest
 *                s + bias (sum2, DeepSeek-V3) or the largest (max, DeepSeek-V2)
 *   weights      scale s of the chosen. renormalise: scale s / (sum of the chosen s); that of a
 *                softmax is the softmax over the chosen logits (Mixtral, gpt-oss), that of sigmoids
 *                has 1e-20 added to the sum, as DeepSeek-V3's
 *
 * Scores that decide a choice are formed in f32 (f64 for f64 logits), each step rounded by itself
 * and the sum of a softmax as a sum of integers: CPUs and GPUs choose the same experts, whatever
 * they compute weights with.
 *
 *   counts       c[e]: how many tokens chose expert e
 *   aux          E sum_e (c[e] / T) (mean over the tokens of softmax e): the balance loss of Switch
 *                and Mixtral; of score=softmax
 *   z            mean over the tokens of logsumexp(logits)^2; of score=softmax
 *
 *   bwd          dlogits from dweights, at the indices that fwd chose, which are a constant. daux
 *                and dz, one element each, add the gradients of the two losses; counts, which
 *                daux needs, is a constant. An index outside of 0 to E - 1 is a choice that is not
 *                there. The bias has no gradient
 *
 * T may be 0: then aux and z are NaN, as means over nothing are. */
#ifndef MICA_MOE_ROUTE_H
#define MICA_MOE_ROUTE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_MOE_ROUTE_LOGITS,
    MICA_MOE_ROUTE_BIAS,
    MICA_MOE_ROUTE_INDICES,
    MICA_MOE_ROUTE_WEIGHTS,
    MICA_MOE_ROUTE_COUNTS,
    MICA_MOE_ROUTE_AUX,
    MICA_MOE_ROUTE_Z,
    MICA_MOE_ROUTE_DWEIGHTS,
    MICA_MOE_ROUTE_DAUX,
    MICA_MOE_ROUTE_DZ,
    MICA_MOE_ROUTE_DLOGITS
};

typedef enum mica_moe_route_pass { MICA_MOE_ROUTE_FWD, MICA_MOE_ROUTE_BWD } mica_moe_route_pass;
typedef enum mica_moe_route_score {
    MICA_MOE_ROUTE_SOFTMAX,
    MICA_MOE_ROUTE_SIGMOID
} mica_moe_route_score;
typedef enum mica_moe_route_group_score {
    MICA_MOE_ROUTE_SUM2,
    MICA_MOE_ROUTE_MAX
} mica_moe_route_group_score;

typedef struct mica_moe_route_desc {
    mica_moe_route_pass pass;               /* 0 means fwd */
    mica_tensor logits;                     /* T x E, f64 f32 f16 bf16, E up to 1024; needed */
    mica_tensor bias;                       /* fwd: E, f32 (f64 for f64); 0 means none */
    mica_tensor indices;                    /* T x k, s32; 0 means inferred */
    mica_tensor weights;                    /* fwd: T x k; 0 means inferred: f32 (f64 for f64) */
    mica_tensor counts;                     /* E, s32; 0 means not wanted, in bwd none */
    mica_tensor aux, z;                     /* fwd: one element; 0 means not wanted */
    mica_tensor dweights;                   /* bwd: T x k; 0 means inferred: f32 (f64 for f64) */
    mica_tensor daux, dz;                   /* bwd: one element; 0 means none */
    mica_tensor dlogits;                    /* bwd; 0 means inferred: as logits */
    int64_t k;                              /* 1 to 32; 0 means 1 */
    mica_moe_route_score score;             /* 0 means softmax */
    int64_t groups;                         /* up to 32; 0 means 1 */
    int64_t topk_groups;                    /* 0 means all */
    mica_moe_route_group_score group_score; /* 0 means sum2 */
    bool renormalise;                       /* 0 means no */
    double scale;                           /* of the weights (routed_scaling_factor); 0 means 1 */
} mica_moe_route_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_moe_route_plan(mica_context *context,
                                              const mica_moe_route_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "moe_route", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
