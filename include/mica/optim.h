/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps, in place. g is grad_scale times the gradient, negated with maximize.
 *
 *   sgd    g += weight_decay p
 *          m = momentum m + (1 - dampening) g;  on the first step m = g, whatever m held
 *          p -= lr (nesterov ? g + momentum m : m);  without momentum p -= lr g
 *   adam   g += weight_decay p
 *          m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *          p -= lr m^ / (sqrt(v^) + eps),  m^ = m / (1 - beta1^step),  v^ = v / (1 - beta2^step)
 *   adamw  as adam, but p -= lr weight_decay p instead of changing g
 *
 * as torch.optim has them. adam and adamw start from m = v = 0, which the caller sets. A
 * low-precision parameter may have a master copy: then the master is stepped and p receives its
 * rounding; p is not read. Arithmetic is in f32, or in f64 if any tensor is f64; what depends on
 * the scalars alone is worked out in double. The scalars are read when the run is enqueued: a
 * captured CUDA graph replays the lr and step it was captured with. */
#ifndef MICA_OPTIM_H
#define MICA_OPTIM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_optim_rule { MICA_OPTIM_SGD, MICA_OPTIM_ADAM, MICA_OPTIM_ADAMW } mica_optim_rule;

enum { MICA_OPTIM_P, MICA_OPTIM_GRAD, MICA_OPTIM_M, MICA_OPTIM_V, MICA_OPTIM_MASTER };
/* Scalars: lr (default 1e-3), step, which counts from 1 (default 1), grad_scale (default 1). */
enum { MICA_OPTIM_LR, MICA_OPTIM_STEP, MICA_OPTIM_GRAD_SCALE };

typedef struct mica_optim_desc {
    mica_optim_rule rule;
    mica_tensor p;      /* parameters, any shape; read and written */
    mica_tensor grad;   /* inferred as p */
    mica_tensor m;      /* inferred: p's shape, f32 (f64 for f64); sgd: only with momentum */
    mica_tensor v;      /* adam and adamw: as m */
    mica_tensor master; /* as p, of no shorter type; absent unless given */
    double momentum;    /* sgd; 0: none */
    double dampening;   /* sgd with momentum */
    bool nesterov;      /* sgd with momentum and no dampening */
    double beta1;       /* 0 means 0.9 */
    double beta2;       /* 0 means 0.999 */
    double eps;         /* 0 means 1e-8 */
    double weight_decay;
    bool maximize; /* ascend instead */
} mica_optim_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_optim_plan(mica_context *context, const mica_optim_desc *desc,
                                          const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "optim", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
