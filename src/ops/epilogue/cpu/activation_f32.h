/* SPDX-License-Identifier: Apache-2.0
 * Activations of runs of f32 on the CPU, a few units in the last place from exact. */
#ifndef MICA_OPS_EPILOGUE_CPU_ACTIVATION_F32_H
#define MICA_OPS_EPILOGUE_CPU_ACTIVATION_F32_H

#include "mica/epilogue.h"

/* out may be v. */
void mica_act_values_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);
void mica_act_slopes_f32(mica_act act, const float *v, float *out, int64_t n, float a, float b);

#endif
