/* SPDX-License-Identifier: Apache-2.0
 * Loops over f64. */
#include "ops/reduce/cpu/reduce_states.h"

#include <math.h>

#define real        double
#define acc         double
#define held        double
#define SUMS        f64
#define HELD        f64
#define ABSOLUTE(v) fabs(v)
#define OPPOSITE(v) (-(v))
#define LOWEST      ((double)-INFINITY)
#define IS_NAN(v)   ((v) != (v))
#define NO_NUMBER   ((double)NAN)
#define add_values  mica_reduce_add_f64
#include "ops/reduce/cpu/reduce_loops.h"
