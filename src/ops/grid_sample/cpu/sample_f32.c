/* SPDX-License-Identifier: Apache-2.0
 * grid_sample of f32, f16 and bf16. */
#include <math.h>

#define F32          1
#define LOOPS        mica_grid_sample_loops_f32
#define add_of(a, b) ((a) + (b))
#define mul_of(a, b) ((a) * (b))
#define floor_of     floorf
#define rint_of      rintf
#define fmod_of      fmodf
#define abs_of       fabsf
typedef float real;
#include "ops/grid_sample/cpu/sample_loops.h"
