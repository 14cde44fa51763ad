/* SPDX-License-Identifier: Apache-2.0
 * The CPU engines in float: x of f32, f16, bf16. */
#include "ops/norm/cpu/norm_cpu.h"
#include "ops/shared/cpu/activation_f32.h"
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

typedef float real;
#define CLONES MICA_CLONES
static const mica_dtype real_type = MICA_F32;
enum { NARROW = true }; /* rows of bf16 are read as they are */

static void load_run(mica_dtype type, const void *data, int64_t offset, int64_t stride, float *out,
                     int64_t n)
{
    if (type != MICA_F64) {
        mica_to_f32(type, data, offset, stride, out, n);
        return;
    }
    const double *p = (const double *)data + offset;
    for (int64_t i = 0; i < n; i++) out[i] = (float)p[i * stride];
}

static void store_run(mica_dtype type, void *data, int64_t offset, int64_t stride, const float *in,
                      int64_t n)
{
    if (type != MICA_F64) {
        mica_from_f32(type, data, offset, stride, in, n);
        return;
    }
    double *p = (double *)data + offset;
    for (int64_t i = 0; i < n; i++) p[i * stride] = (double)in[i];
}

static void activate(const mica_norm_desc *d, const float *v, float *out, int64_t n)
{
    mica_act_values_f32(d->act, v, out, n, (float)d->act_a, (float)d->act_b);
}

static void slopes(const mica_norm_desc *d, const float *v, float *out, int64_t n)
{
    mica_act_slopes_f32(d->act, v, out, n, (float)d->act_a, (float)d->act_b);
}

#include "ops/norm/cpu/norm_cpu_loops.h"

void norm_cpu_run_f32(const norm_cpu_state *s, void *const *args, void *workspace, double beta)
{
    run_all(s, args, workspace, beta);
}
