/* SPDX-License-Identifier: Apache-2.0
 * Activations and their gradients, gated or not. Constant: ACT. */
#include "kernels/activation.cuh"
#include "ops/activation/activation_args.h"
#include "ops/pointwise/pointwise.cuh"

POINTWISE void pointwise_body(int variant, real *v, const real *n)
{
    const real x = v[ACTIVATION_X], a = n[ACTIVATION_A], b = n[ACTIVATION_B];
    if (!(variant & ACTIVATION_BACKWARD)) {
        real y = activate<ACT>(x, a, b);
        v[ACTIVATION_OUT] = variant & ACTIVATION_GATED ? y * v[ACTIVATION_GATE] : y;
        return;
    }
    const real dy = v[ACTIVATION_DY], through = variant & ACTIVATION_GATED ? dy * v[ACTIVATION_GATE] : dy;
    v[ACTIVATION_OUT] = through * activate_slope<ACT>(x, a, b);
    if (variant & ACTIVATION_GATED) v[ACTIVATION_OUT_GATE] = dy * activate<ACT>(x, a, b);
}

extern "C" __global__ void __launch_bounds__(BLOCK) activation(const mica_pointwise_args a) { pointwise(a); }
