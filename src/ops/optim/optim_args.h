/* SPDX-License-Identifier: Apache-2.0
 * What one optimiser step needs; host and device share this file. */
#ifndef MICA_OPS_OPTIM_ARGS_H
#define MICA_OPS_OPTIM_ARGS_H

#include "cuda/device/layout.h"

/* All that follows from the description and the run's scalars, worked out in double on the host. */
typedef struct mica_optim_factors {
    double grad_scale;  /* of the gradient; negative to ascend */
    double decay;       /* of the parameter, added to the gradient */
    double keep;        /* of the parameter: 1 - lr weight_decay (adamw), else 1 */
    double lr;          /* sgd: of the update; adam, adamw: lr / (1 - beta1^step) */
    double beta1, add1; /* m = beta1 m + add1 g (sgd: momentum, 1 - dampening) */
    double beta2, add2; /* v = beta2 v + add2 g^2 */
    double root;        /* of sqrt(v): 1 / sqrt(1 - beta2^step) */
    double eps;
    int first; /* sgd, step 1: m = g */
} mica_optim_factors;

typedef struct mica_optim_args {
    void *p, *m, *v, *master;
    const void *grad;
    mica_layout layout; /* of p, grad, m, v, master; those that are absent as p */
    mica_optim_factors factors;
    int whole; /* the pointers are aligned for vectors */
} mica_optim_args;

#endif
