/* SPDX-License-Identifier: Apache-2.0
 * The loops of rope and kv_append on the CPU, in f32. */
#include "ops/rope/cpu/rope_cpu.h"
#include "ops/shared/cpu/bf16.h"
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "ops/rope/rope_angle_args.h"

typedef float real;
#define CLONES      MICA_CLONES
#define REAL_TYPE   MICA_F32
#define NARROW      true
#define ANGLES      f32
#define SINE_COSINE rope_quadrant_f32
#define READ        mica_to_f32
#define WRITE       mica_from_f32
#define ANGLES_OF   rope_cpu_angles_f32
#define TURN_ROW    rope_cpu_rotate_f32
#define COPY_ROW    rope_cpu_copy_f32
#include "ops/rope/cpu/rope_cpu_loops.h"
