/* SPDX-License-Identifier: Apache-2.0
 * roi_align of f64. */
#include <math.h>

#define F32          0
#define LOOPS        mica_roi_align_loops_f64
#define add_of(a, b) ((a) + (b))
#define mul_of(a, b) ((a) * (b))
#define div_of(a, b) ((a) / (b))
#define floor_of     floor
#define ceil_of      ceil
#define round_of     round
#define abs_of       fabs
typedef double real;
#include "ops/roi_align/cpu/roi_align_loops.h"
