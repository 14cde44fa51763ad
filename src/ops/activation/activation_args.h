/* SPDX-License-Identifier: Apache-2.0
 * What the activation kernel receives; host and device share this file. */
#ifndef MICA_OPS_ACTIVATION_ACTIVATION_ARGS_H
#define MICA_OPS_ACTIVATION_ACTIVATION_ARGS_H

#include "kernels/layout.h"

typedef struct mica_activation_args {
    const void *x, *dy;
    void *out;                  /* y or dx */
    mica_layout layout;         /* of x, out, dy, counted in vectors */
    long long gate_x, gate_out; /* elements to the second half */
    int whole;                  /* all pointers are aligned for one access of a vector */
    int scaled;                 /* alpha is not 1 or beta not 0 */
    double alpha, beta, act_a, act_b;
} mica_activation_args;

#endif
