/* SPDX-License-Identifier: Apache-2.0
 * Operands and numbers of an activation; host and device share this file. */
#ifndef MICA_OPS_ACTIVATION_ARGS_H
#define MICA_OPS_ACTIVATION_ARGS_H

/* With gating x and the result are their first halves, and the gates the second ones. */
enum { ACTIVATION_X, ACTIVATION_GATE, ACTIVATION_DY, ACTIVATION_OUT, ACTIVATION_OUT_GATE };
/* Variants: both, one or none. */
enum { ACTIVATION_GATED = 1, ACTIVATION_BACKWARD = 2 };
enum { ACTIVATION_A, ACTIVATION_B, ACTIVATION_NUMBERS }; /* the function's parameters */

#endif
