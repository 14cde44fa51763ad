/* SPDX-License-Identifier: Apache-2.0
 * Expressions of element functions. The prologue defines what expression.cuh wants, and EXPRESSION, which
 * replaces the results in v. */
#include "ops/pointwise/pointwise.cuh"
#include "ops/pointwise/expression.cuh"

POINTWISE void pointwise_body(int, real *v, const real *n) { EXPRESSION }

extern "C" __global__ void __launch_bounds__(BLOCK) expression(const mica_pointwise_args a) { pointwise(a); }
