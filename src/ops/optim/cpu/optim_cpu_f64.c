/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine in double: f64 somewhere among the tensors. */
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>

typedef double real;
static const mica_dtype real_type = MICA_F64;

static inline double root(double v)
{
    return sqrt(v);
}

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

#include "ops/optim/cpu/optim_cpu_loops.h"

void optim_cpu_step_f64(const optim_cpu_state *s, const optim_piece *piece, void *const *args,
                        const mica_optim_numbers *numbers)
{
    step_piece(s, piece, args, numbers);
}
