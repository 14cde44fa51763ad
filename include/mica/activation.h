/* SPDX-License-Identifier: Apache-2.0
 * Activations, and their gated forms (GLU, ReGLU, GEGLU, SwiGLU, ...).
 *   fwd   y = act(x);            gated: x is split in two halves u, v along `axis`, y = act(u) * v
 *   bwd   dx = dy * act'(x);     gated: du = dy v act'(u), dv = dy act(u)
 * GLU is act=sigmoid gated=1, SwiGLU act=silu gated=1, GEGLU act=gelu gated=1.
 * In place is allowed without gating: y on x, dx on dy, with equal tensors.
 * At a kink the derivative is that of the left branch (relu'(0) = 0), as in PyTorch.
 *
 * Accuracy: f64 and f32 within 8 units in the last place, relative to the result wherever that
 * lies, deep tails included (gelu at -9 is -1.0e-18, the slope of tanh at 20 is 1.7e-17); of gelu,
 * gelu_tanh and quick_gelu, and of softplus with an act_a, within 8 (1 + |ln s|) units, s being
 * what v is multiplied by, for the exponent of a tail is rounded. Slopes that are a sum of two
 * terms: relative to the terms' absolute values. 16-bit results are the f32 ones, rounded. Edges: a
 * value is what the formula gives in IEEE arithmetic, so v s(v) at -inf is NaN (-inf times 0),
 * softsign at +-inf, too. Slopes at +-inf are their limits: nothing overflows on the way. NaN gives
 * NaN, as a value and as a slope, of relu and the clips too (PyTorch's relu lets dy pass). dx is a
 * product: infinite dy where the slope is 0 gives NaN. Clip's bounds may be infinite, and where
 * act_a is above act_b the value is act_b. Integers are clipped by pointwise: min(max(x0,x1),x2).
 */
#ifndef MICA_ACTIVATION_H
#define MICA_ACTIVATION_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_activation_pass { MICA_ACTIVATION_FWD, MICA_ACTIVATION_BWD } mica_activation_pass;
enum { MICA_ACTIVATION_X, MICA_ACTIVATION_Y, MICA_ACTIVATION_DY, MICA_ACTIVATION_DX };
enum { MICA_ACTIVATION_ALPHA, MICA_ACTIVATION_BETA };

typedef struct mica_activation_desc {
    mica_activation_pass pass; /* 0 means fwd */
    mica_act act;              /* 0 means identity */
    mica_tensor x;             /* needed */
    mica_tensor y;             /* fwd; 0 means inferred: as x, with half of axis if gated */
    mica_tensor dy, dx;        /* bwd; 0 means inferred */
    bool gated;                /* 0 means no */
    int64_t axis;              /* of the split; negative counts from the end; 0 means axis 0 */
    double act_a, act_b;       /* parameters, see MICA_ACTIVATIONS; 0 means the function's own */
} mica_activation_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_activation_plan(mica_context *context,
                                               const mica_activation_desc *desc,
                                               const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "activation", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
