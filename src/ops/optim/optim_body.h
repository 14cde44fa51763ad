/* SPDX-License-Identifier: Apache-2.0
 * One element of an optimiser step, for the CPU and the kernel: ops/pointwise/blocks.h. */
#include "ops/optim/optim_args.h"

#define BODY_OPERANDS 5
#define BODY_VARIANTS 3
#define BODY_READ     (1 << OPTIM_STEPPED | 1 << OPTIM_GRAD | 1 << OPTIM_M | 1 << OPTIM_V)
#define BODY_WRITTEN  (1 << OPTIM_STEPPED | 1 << OPTIM_M | 1 << OPTIM_V)

POINTWISE int pointwise_used(int variant)
{
    return variant == OPTIM_PLAIN ? OPTIM_M : variant == OPTIM_MOMENTUM ? OPTIM_V : OPTIM_V + 1;
}

POINTWISE void pointwise_body(int variant, real *v, const real *n)
{
    real p = v[OPTIM_STEPPED], g = n[OPTIM_GRAD_SCALE] * v[OPTIM_GRAD] + n[OPTIM_DECAY] * p;
    real direction = g;
    if (variant != OPTIM_PLAIN) {
        /* What lies in m before the first step of sgd may be NaN. */
        real old = n[OPTIM_KEEP_M] != 0 ? n[OPTIM_KEEP_M] * v[OPTIM_M] : 0;
        v[OPTIM_M] = old + n[OPTIM_TAKE_G] * g;
        direction = n[OPTIM_AHEAD_G] * g + n[OPTIM_AHEAD_M] * v[OPTIM_M];
    }
    if (variant == OPTIM_ADAM) {
        v[OPTIM_V] =
            n[OPTIM_KEEP_V] * v[OPTIM_V] + n[OPTIM_TAKE_G2] * g * g; /* g * g may be infinite */
        direction = v[OPTIM_M] / (sqrt_of(v[OPTIM_V]) * n[OPTIM_ROOT_SCALE] + n[OPTIM_EPS]);
    }
    v[OPTIM_STEPPED] = n[OPTIM_KEEP_P] * p - n[OPTIM_RATE] * direction;
}
