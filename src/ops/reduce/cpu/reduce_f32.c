/* SPDX-License-Identifier: Apache-2.0
 * Loops over f32, added up in f64. */
#include "ops/reduce/cpu/reduce_states.h"

#include <math.h>

#define real        float
#define acc         double
#define held        double
#define SUMS        f64
#define HELD        f64
#define ABSOLUTE(v) fabsf(v)
#define OPPOSITE(v) (-(v))
#define LOWEST      (-INFINITY)
#define IS_NAN(v)   ((v) != (v))
#define NO_NUMBER   NAN
#define add_values  mica_reduce_add_f32
#include "ops/reduce/cpu/reduce_loops.h"
