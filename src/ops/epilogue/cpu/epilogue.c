/* SPDX-License-Identifier: Apache-2.0
 * The epilogue on the CPU. */
#include "ops/epilogue/cpu/epilogue.h"
#include "ops/epilogue/activation.h"
#include "ops/epilogue/cpu/activation_runs.h"
#include "ops/convert/cpu/convert.h"
#include "ops/convert/integer.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

void mica_epilogue_scale(const mica_tensor *t, const void *data, int64_t at, int64_t stride,
                         int count, double *v)
{
    MICA_ALIGNED double line[MICA_EPILOGUE_RUN];
    mica_to_f64(t->dtype, data, at, stride, line, count);
    for (int j = 0; j < count; j++) v[j] *= line[j];
}

void mica_epilogue_add(const mica_tensor *t, const void *data, int64_t at, int64_t stride,
                       int count, double *v)
{
    MICA_ALIGNED double line[MICA_EPILOGUE_RUN];
    mica_to_f64(t->dtype, data, at, stride, line, count);
    for (int j = 0; j < count; j++) v[j] += line[j];
}

void mica_epilogue_activate(mica_act act, double a, double b, bool narrow, int count, double *v)
{
    if (act == MICA_ACT_RELU) {
        for (int j = 0; j < count; j++) v[j] = v[j] < 0 ? 0 : v[j];
        return;
    }
    if (!narrow) {
        mica_act_values_f64(act, v, v, count, a, b);
        return;
    }
    MICA_ALIGNED float line[MICA_EPILOGUE_RUN] = {0};
    for (int j = 0; j < count; j++) line[j] = (float)v[j];
    mica_act_values_f32(act, line, line, count, (float)a, (float)b);
    for (int j = 0; j < count; j++) v[j] = (double)line[j];
}

void mica_amax_keep(mica_amax *amax, int count, const double *v)
{
    uint64_t most = 0;
    for (int j = 0; j < count; j++) {
        uint64_t bits;
        double magnitude = fabs(v[j]);
        memcpy(&bits, &magnitude, sizeof bits);
        most = bits > most ? bits : most;
    }
    uint64_t old = atomic_load_explicit(amax, memory_order_relaxed);
    while (old < most && !atomic_compare_exchange_weak(amax, &old, most)) continue;
}

void mica_amax_store(const mica_amax *amax, mica_dtype dtype, void *data)
{
    uint64_t bits = atomic_load(amax);
    double most;
    memcpy(&most, &bits, sizeof most);
    mica_from_f64(dtype, data, 0, 1, &most, 1);
}

void mica_epilogue_quantise(mica_dtype y, const float *scale, int count, double *v)
{
    if (scale)
        for (int j = 0; j < count; j++) v[j] *= (double)*scale;
    for (int j = 0; j < count && y == MICA_E5M2; j++) v[j] = mica_saturate_e5m2(y, v[j]);
}
