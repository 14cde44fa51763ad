/* SPDX-License-Identifier: Apache-2.0
 * Activations in double precision: value and slope. The lists come from
 * include/mica/epilogue.h, what they are from ops/pointwise/functions.def. */
#ifndef MICA_OPS_EPILOGUE_ACTIVATION_H
#define MICA_OPS_EPILOGUE_ACTIVATION_H

#include "mica/epilogue.h"
#include "base/text.h"

/* By value of mica_act, NULL-terminated: spellings for field tables. */
extern const char *const mica_act_spellings[];

/* Parameters left zero become the activation's defaults. */
void mica_act_defaults(mica_act act, double *a, double *b);
double mica_act_value(mica_act act, double v, double a, double b);
/* Derivative; at a kink that of the left branch; at an infinity the limit; at NaN NaN. */
double mica_act_slope(mica_act act, double v, double a, double b);
/* What errors of both are relative to: sums of absolute values of their terms, times 1 + |ln s|
 * where an s is a rounded argument's exponential. */
double mica_act_value_size(mica_act act, double v, double a, double b);
double mica_act_slope_size(mica_act act, double v, double a, double b);
/* Whether values of small integers are exact in any precision, if the parameters are integers. */
bool mica_act_is_exact(mica_act act);
/* "enum { ACT_IDENTITY = 0, ... };" and ACTIVATIONS, which has `act` alone, for kernels that
 * include kernels/activation.cuh */
void mica_prologue_activation(mica_text *prologue, mica_act act);

#endif
