/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32 values on the CPU, vectorised by the compiler where the function
 * allows; `out` may be `v`. */
#ifndef MICA_OPS_SHARED_ACTIVATION_ROWS_H
#define MICA_OPS_SHARED_ACTIVATION_ROWS_H

#include "mica/epilogue.h"

void mica_act_values_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);
void mica_act_slopes_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);

#endif
