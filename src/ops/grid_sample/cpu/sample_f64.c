/* SPDX-License-Identifier: Apache-2.0
 * grid_sample of f64. */
#include <math.h>

#define F32          0
#define LOOPS        mica_grid_sample_loops_f64
#define add_of(a, b) ((a) + (b))
#define mul_of(a, b) ((a) * (b))
#define floor_of     floor
#define rint_of      rint
#define fmod_of      fmod
#define abs_of       fabs
typedef double real;
#include "ops/grid_sample/cpu/sample_loops.h"
