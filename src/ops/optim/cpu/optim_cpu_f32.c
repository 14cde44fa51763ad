/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine in float: every type but f64. */
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>

typedef float real;
static const mica_dtype real_type = MICA_F32;

static inline float root(float v)
{
    return sqrtf(v);
}

static void load_run(mica_dtype type, const void *data, int64_t offset, int64_t stride, float *out,
                     int64_t n)
{
    mica_to_f32(type, data, offset, stride, out, n);
}

static void store_run(mica_dtype type, void *data, int64_t offset, int64_t stride, const float *in,
                      int64_t n)
{
    mica_from_f32(type, data, offset, stride, in, n);
}

#include "ops/optim/cpu/optim_cpu_loops.h"

void optim_cpu_step_f32(const optim_cpu_state *s, const optim_piece *piece, void *const *args,
                        const mica_optim_numbers *numbers)
{
    step_piece(s, piece, args, numbers);
}
