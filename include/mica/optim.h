/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps, in place, as torch.optim.SGD, Adam and AdamW take them. With
 * g = grad_scale grad (negated with maximize):
 *
 *   sgd    g += weight_decay p
 *          m = momentum m + (1 - dampening) g      at step 1: m = g, the old m is not read
 *          p -= lr (nesterov ? g + momentum m : m)  without momentum: p -= lr g, there is no m
 *   adam   g += weight_decay p
 *          m = beta1 m + (1 - beta1) g
 *          v = beta2 v + ((1 - beta2) g) g     finite up to g = 5e20 with the default beta2
 *          p -= lr m^ / (sqrt(v^) + eps)            m^ = m / (1 - beta1^step), v^ alike with beta2
 *   adamw  as adam, but weight_decay stays out of g: p -= lr weight_decay p
 *
 * step counts from 1 (a run with less is MICA_INVALID on every engine but "ref"); m and v of adam
 * begin as zeros. Sums are formed in f32, in f64 if any tensor is f64, and p moves by the m and v
 * that were formed, not by their roundings to the stored types. A p of f32, f16 or bf16 may have an
 * f32 master: then the master is stepped, p receives its rounding, and p's old value is not read.
 */
#ifndef MICA_OPTIM_H
#define MICA_OPTIM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_optim_rule { MICA_OPTIM_SGD, MICA_OPTIM_ADAM, MICA_OPTIM_ADAMW } mica_optim_rule;

enum { MICA_OPTIM_P, MICA_OPTIM_GRAD, MICA_OPTIM_M, MICA_OPTIM_V, MICA_OPTIM_MASTER };
/* Scalars: lr (default 1e-3), step (default 1), grad_scale (default 1). */
enum { MICA_OPTIM_LR, MICA_OPTIM_STEP, MICA_OPTIM_GRAD_SCALE };

typedef struct mica_optim_desc {
    mica_optim_rule rule; /* 0 means sgd */
    mica_tensor p;        /* parameters, any shape; read and written; needed */
    mica_tensor grad;     /* any of the four float types; 0 means inferred: as p */
    mica_tensor m; /* sgd: only with momentum; 0 means inferred where the rule has it: p's shape,
                      f32 (f64 for f64) */
    mica_tensor v; /* adam and adamw; 0 means inferred where the rule has it: as m */
    mica_tensor master;  /* f32, as p; 0 means none */
    double momentum;     /* sgd; nesterov and dampening need it; 0 means none */
    double dampening;    /* sgd, not with nesterov; 0 means none */
    bool nesterov;       /* sgd; 0 means no */
    double beta1;        /* 0 means 0.9 */
    double beta2;        /* 0 means 0.999 */
    double eps;          /* 0 means 1e-08 */
    double weight_decay; /* 0 means none */
    bool maximize;       /* ascend instead; 0 means no */
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
