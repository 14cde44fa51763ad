/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32 and f64 on the CPU, a few units in the last place from exact. */
#ifndef MICA_OPS_EPILOGUE_CPU_ACTIVATION_RUNS_H
#define MICA_OPS_EPILOGUE_CPU_ACTIVATION_RUNS_H

#include "mica/epilogue.h"

/* out may be v. */
void mica_act_values_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);
void mica_act_slopes_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);
void mica_act_values_f64(mica_act act, const double *v, double *out, int64_t n, double a, double b);
void mica_act_slopes_f64(mica_act act, const double *v, double *out, int64_t n, double a, double b);

#endif
