/* SPDX-License-Identifier: Apache-2.0
 * The CPU's loops around a body. The operation's file defines POINTWISE_BODY, the name of the
 * header with the body, and includes this one once; it has then the static functions pointwise_f32
 * and pointwise_f64 for its table. The body's header is included for each of the two types and, by
 * the kernel, in CUDA; it has BODY_OPERANDS, BODY_VARIANTS           how many, as macros BODY_READ,
 * BODY_WRITTEN                bit k: operand k POINTWISE int pointwise_used(int variant)     the
 * first operands, that the variant has POINTWISE void pointwise_body(int variant, real *v, const
 * real *n) The body replaces the results in v; n: the numbers of the run. It may use `real` and
 * sqrt_of, exp_of, abs_of, ... of kernels/math.cuh, which C has below. */
#include "ops/pointwise/pointwise.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#define sqrt_of(v)     _Generic((v), float : sqrtf, double : sqrt)(v)
#define exp_of(v)      _Generic((v), float : expf, double : exp)(v)
#define expm1_of(v)    _Generic((v), float : expm1f, double : expm1)(v)
#define log_of(v)      _Generic((v), float : logf, double : log)(v)
#define log1p_of(v)    _Generic((v), float : log1pf, double : log1p)(v)
#define tanh_of(v)     _Generic((v), float : tanhf, double : tanh)(v)
#define erf_of(v)      _Generic((v), float : erff, double : erf)(v)
#define abs_of(v)      _Generic((v), float : fabsf, double : fabs)(v)
#define hypot_of(a, b) _Generic((a), float : hypotf, double : hypot)(a, b)
#define POINTWISE      __attribute__((always_inline, unused)) static inline

#define real            float
#define pointwise_used  pointwise_used_f32
#define pointwise_body  pointwise_body_f32
#define pointwise_loop  pointwise_loop_f32
#define pointwise_block pointwise_f32
#include POINTWISE_BODY
#include "ops/pointwise/loop.h"
#undef real
#undef pointwise_used
#undef pointwise_body
#undef pointwise_loop
#undef pointwise_block
#define real            double
#define pointwise_used  pointwise_used_f64
#define pointwise_body  pointwise_body_f64
#define pointwise_loop  pointwise_loop_f64
#define pointwise_block pointwise_f64
#include POINTWISE_BODY
#include "ops/pointwise/loop.h"
#undef real
