/* SPDX-License-Identifier: Apache-2.0
 * roi_align of f32, f16 and bf16. */
#include <math.h>

#define F32          1
#define LOOPS        mica_roi_align_loops_f32
#define add_of(a, b) ((a) + (b))
#define mul_of(a, b) ((a) * (b))
#define div_of(a, b) ((a) / (b))
#define floor_of     floorf
#define ceil_of      ceilf
#define round_of     roundf
#define abs_of       fabsf
typedef float real;
#include "ops/roi_align/cpu/roi_align_loops.h"
