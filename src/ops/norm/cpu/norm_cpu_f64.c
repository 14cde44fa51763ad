/* SPDX-License-Identifier: Apache-2.0
 * The CPU engines in double: x of f64. */
#include "ops/norm/cpu/norm_cpu.h"
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

typedef double real;
#define CLONES MICA_MEMORY_CLONES /* few want f64 */
static const mica_dtype real_type = MICA_F64;
enum { NARROW = false };

static void load_run(mica_dtype type, const void *data, int64_t offset, int64_t stride, double *out,
                     int64_t n)
{
    mica_to_f64(type, data, offset, stride, out, n);
}

static void store_run(mica_dtype type, void *data, int64_t offset, int64_t stride, const double *in,
                      int64_t n)
{
    mica_from_f64(type, data, offset, stride, in, n);
}

static void activate(const mica_norm_desc *d, const double *v, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = mica_act_value(d->act, v[i], d->act_a, d->act_b);
}

static void slopes(const mica_norm_desc *d, const double *v, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = mica_act_slope(d->act, v[i], d->act_a, d->act_b);
}

#include "ops/norm/cpu/norm_cpu_loops.h"

void norm_cpu_run_f64(const norm_cpu_state *s, void *const *args, void *workspace, double beta)
{
    run_all(s, args, workspace, beta);
}
