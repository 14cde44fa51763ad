/* SPDX-License-Identifier: Apache-2.0
 * Expressions of element functions. The prologue defines FUNCTIONS, those of functions.def that are used,
 * FUNCTIONS_S64, those that are used of s64, if there are any, and EXPRESSION, which replaces the results in v. */
#include "ops/pointwise/pointwise.cuh"
#include "ops/pointwise/expression.cuh"

/* s64 are carried as the bits of doubles. */
#ifdef FUNCTIONS_S64
namespace of_s64 {
typedef long long real;
#include "ops/pointwise/functions_whole_body.h"
FUNCTIONS_S64
} // namespace of_s64
#endif

POINTWISE void pointwise_body(int, real *v, const real *n) { EXPRESSION }

extern "C" __global__ void __launch_bounds__(BLOCK) expression(const mica_pointwise_args a) { pointwise(a); }
