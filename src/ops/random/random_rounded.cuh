/* SPDX-License-Identifier: Apache-2.0
 * random_body.h in kernels: each product and sum is rounded by itself, as on the host. */
#pragma once

#define RANDOM_ROUNDED
#define RANDOM __device__ __forceinline__
#define RANDOM_CALL RANDOM
RANDOM float mul32(float a, float b) { return __fmul_rn(a, b); }
RANDOM float add32(float a, float b) { return __fadd_rn(a, b); }
RANDOM float root32(float a) { return __fsqrt_rn(a); }
RANDOM double mul64(double a, double b) { return __dmul_rn(a, b); }
RANDOM double add64(double a, double b) { return __dadd_rn(a, b); }
RANDOM double root64(double a) { return __dsqrt_rn(a); }
#include "ops/random/random_body.h"
