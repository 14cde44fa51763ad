/* SPDX-License-Identifier: Apache-2.0
 * Operands and numbers of an optimiser step; host and device share this file. */
#ifndef MICA_OPS_OPTIM_ARGS_H
#define MICA_OPS_OPTIM_ARGS_H

/* What is stepped is the master where there is one; then p receives its rounding. */
enum { OPTIM_STEPPED, OPTIM_ROUNDED, OPTIM_GRAD, OPTIM_M, OPTIM_V };
enum { OPTIM_PLAIN, OPTIM_MOMENTUM, OPTIM_ADAM };

/* The numbers of one step, formed on the host in double:
 *   g = grad_scale grad + decay p    (p: the master where there is one)
 *   m = keep_m m + take_g g          m is not read where keep_m is 0
 *   sgd          p = keep_p p - rate (ahead_g g + ahead_m m)
 *   adam, adamw  v = keep_v v + take_g2 g^2;  p = keep_p p - rate m / (sqrt(v) root_scale + eps) */
enum {
    OPTIM_GRAD_SCALE,
    OPTIM_DECAY,
    OPTIM_KEEP_P,
    OPTIM_RATE,
    OPTIM_KEEP_M,
    OPTIM_TAKE_G,
    OPTIM_AHEAD_G,
    OPTIM_AHEAD_M,
    OPTIM_KEEP_V,
    OPTIM_TAKE_G2,
    OPTIM_ROOT_SCALE,
    OPTIM_EPS,
    OPTIM_NUMBERS
};

#endif
