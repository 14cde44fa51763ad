/* SPDX-License-Identifier: Apache-2.0
 * What the optimiser kernel receives; host and device share this file. */
#ifndef MICA_OPS_OPTIM_OPTIM_ARGS_H
#define MICA_OPS_OPTIM_OPTIM_ARGS_H

#include "kernels/layout.h"

/* The numbers of one step, formed on the host in double:
 *   g = grad_scale grad + decay p    (p: the master where there is one)
 *   m = keep_m m + take_g g          m is not read where keep_m is 0
 *   sgd          p = keep_p p - rate (ahead_g g + ahead_m m)
 *   adam, adamw  v = keep_v v + take_g2 g^2;  p = keep_p p - rate m / (sqrt(v) root_scale + eps) */
typedef struct mica_optim_numbers {
    double grad_scale, decay, keep_p, rate;
    double keep_m, take_g;
    double ahead_g, ahead_m;
    double keep_v, take_g2, root_scale, eps;
} mica_optim_numbers;

typedef struct mica_optim_args {
    void *p, *m, *v, *master;
    const void *grad;
    mica_layout layout; /* of the tensors there are, in the order of the arguments */
    int aligned;        /* all pointers are, to a thread's vector */
    mica_optim_numbers n;
} mica_optim_args;

#endif
