/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps, any strides. */
#include "ops/pointwise/pointwise.cuh"
#include "ops/optim/optim_body.h"

extern "C" __global__ void __launch_bounds__(BLOCK) optim(const mica_pointwise_args a)
{
    pointwise(a);
}
