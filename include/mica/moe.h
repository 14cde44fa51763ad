/* SPDX-License-Identifier: Apache-2.0
 * A layer of a mixture of experts: each token goes to k of E small networks, and gets the weighted
 * sum of what they make of it. x is T x H, y T x O (mostly O = H).
 *
 *     u = w1[e] x + b1[e]                     e: an expert of the token
 *     h = act(u)                              gated: act(w1[e] x + b1[e]) * (w3[e] x + b3[e])
 *     y[t] = sum_j weights[t,j] (w2[e] h + b2[e]),    e = indices[t,j]
 *
 * SwiGLU (Mixtral, DeepSeek, Qwen) is act=silu gated=1, GEGLU act=gelu, ReGLU act=relu. Without w3
 * the rows of w3 lie behind those of w1, in w1 of E x 2I x H, and b3 behind b1 likewise. Weights
 * are stored as a linear layer's, an output's row after the other. A bias has a row for each
 * expert, or is one vector for all.
 *
 * The routes are one of
 *
 *   indices, weights   as moe_route gives them; k is that of indices. An index outside of 0 to
 *                      E - 1 is a choice that is not there
 *   logits             T x E: routed here, by the fields from k to scale (mica/moe_route.h)
 *   router             E x H: logits = router x, in f32 (f64)
 *
 * With a capacity an expert takes so many choices, the first ones, and the others are left out.
 * Any load of experts is served, with the same plan: all tokens may go to one.
 *
 * Types: x f64 f32 f16 bf16; weights, and u and h between the products, of x's type; sums in f32
 * (f64). In the forward pass experts may be in few bits, all three matrices of one type:
 *
 *   activations=plain  s4 u4 s8 u8 e4m3 e5m2 e2m1, x not f64: w[e,n,i] stands for (w - zeros)
 *                      scales, `group` neighbours of a row sharing both, as quantized_gemm has it.
 *                      x and h are not quantised
 *   activations=e4m3   e4m3, with a scale for each square of 128 x 128 of an expert. x and h, as
 *                      they are stored, become e4m3 with a scale for 128 neighbours of a row, as
 *                      quantize makes them (pass=amax): a / 448, a being the largest magnitude
 *
 * Between the passes: fwd leaves u in `hidden`, if that is given, in the order of moe_permute's
 * rows, where rows of no choice are 0. bwd finds u again where it is not given, and
 * routes, which are cheap, always.
 *
 *   bwd   dx and what is wanted of dw1, dw2, dw3, db1, db2, db3; dweights, with given weights;
 *         dlogits, with logits; drouter, with router (dx then has the router's part). Which experts
 *         were chosen is a constant
 *
 * Sums have the same bits in each run. T, H, I and O may be 0. */
#ifndef MICA_MOE_H
#define MICA_MOE_H

#include "mica/epilogue.h"
#include "mica/moe_route.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_MOE_X,
    MICA_MOE_W1,
    MICA_MOE_W2,
    MICA_MOE_W3,
    MICA_MOE_B1,
    MICA_MOE_B2,
    MICA_MOE_B3,
    MICA_MOE_INDICES,
    MICA_MOE_WEIGHTS,
    MICA_MOE_LOGITS,
    MICA_MOE_ROUTER,
    MICA_MOE_SCORE_BIAS,
    MICA_MOE_Y,
    MICA_MOE_HIDDEN,
    MICA_MOE_DY,
    MICA_MOE_DX,
    MICA_MOE_DW1,
    MICA_MOE_DW2,
    MICA_MOE_DW3,
    MICA_MOE_DB1,
    MICA_MOE_DB2,
    MICA_MOE_DB3,
    MICA_MOE_DWEIGHTS,
    MICA_MOE_DLOGITS,
    MICA_MOE_DROUTER,
    MICA_MOE_SCALES1,
    MICA_MOE_SCALES2,
    MICA_MOE_SCALES3,
    MICA_MOE_ZEROS1,
    MICA_MOE_ZEROS2,
    MICA_MOE_ZEROS3
};

typedef enum mica_moe_pass { MICA_MOE_FWD, MICA_MOE_BWD } mica_moe_pass;

typedef enum mica_moe_activations {
    MICA_MOE_ACTIVATIONS_PLAIN,
    MICA_MOE_ACTIVATIONS_E4M3
} mica_moe_activations;

typedef struct mica_moe_desc {
    mica_moe_pass pass;         /* 0 means fwd */
    mica_tensor x;              /* T x H; needed */
    mica_tensor w1;             /* E x I x H, or both halves: E x 2I x H; needed */
    mica_tensor w2;             /* E x O x I; needed */
    mica_tensor w3;             /* gated: E x I x H; 0 means none */
    mica_tensor b1, b2, b3;     /* of an expert's outputs, or of those of each; 0 means none */
    mica_tensor indices;        /* T x k, s32; 0 means none: routed here */
    mica_tensor weights;        /* T x k; 0 means inferred with indices: f32 (f64) */
    mica_tensor logits;         /* T x E; 0 means none */
    mica_tensor router;         /* E x H; 0 means none */
    mica_tensor score_bias;     /* E, f32 (f64), as the bias of moe_route; 0 means none */
    mica_tensor y;              /* fwd: T x O; 0 means inferred: of x's type */
    mica_tensor hidden;         /* rows x I, gated 2I, of x's type; 0 means not kept */
    mica_tensor dy;             /* bwd: T x O; 0 means inferred: of x's type */
    mica_tensor dx;             /* bwd; 0 means inferred: as x */
    mica_tensor dw1, dw2;       /* bwd: as w1, w2; 0 means not wanted */
    mica_tensor dw3;            /* bwd: as w3; 0 means not wanted */
    mica_tensor db1, db2;       /* bwd: as b1, b2; 0 means not wanted */
    mica_tensor db3;            /* bwd: as b3; 0 means not wanted */
    mica_tensor dweights;       /* bwd: T x k; 0 means not wanted */
    mica_tensor dlogits;        /* bwd: T x E; 0 means not wanted */
    mica_tensor drouter;        /* bwd: E x H; 0 means not wanted */
    mica_act act;               /* 0 means identity */
    bool gated;                 /* 0 means no */
    double act_a, act_b;        /* parameters, see MICA_ACTIVATIONS; 0 means the function's own */
    mica_compute compute;       /* 0 means default */
    int64_t k;                  /* 1 to 32; 0 means that of indices, else 1 */
    mica_moe_route_score score; /* 0 means softmax */
    int64_t groups;             /* up to 32; 0 means 1 */
    int64_t topk_groups;        /* 0 means all */
    mica_moe_route_group_score group_score; /* 0 means sum2 */
    bool renormalise;                       /* 0 means no */
    double scale;                           /* of the weights; 0 means 1 */
    int64_t capacity;                       /* most choices of an expert; 0 means no limit */
    mica_moe_activations activations;       /* 0 means plain */
    /* Of w1, w2, w3: E x outputs x ceil(inputs/group), or one element, of f32, f16, bf16, e4m3,
     * e8m0; activations=e4m3: E x ceil(outputs/128) x ceil(inputs/128) of f32.
     * 0 means weights in few bits: inferred, as f32; else none */
    mica_tensor scales1, scales2, scales3;
    /* Of integers; as scales, of the weights' or the scales' type; 0 means none */
    mica_tensor zeros1, zeros2, zeros3;
    int64_t group; /* inputs with one scale; 0 means inferred from scales, or all; e4m3: 128 */
} mica_moe_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_moe_plan(mica_context *context, const mica_moe_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "moe", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
