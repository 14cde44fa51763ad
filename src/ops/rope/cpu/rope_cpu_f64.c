/* SPDX-License-Identifier: Apache-2.0
 * The loops of rope and kv_append on the CPU, in f64. */
#include "ops/rope/cpu/rope_cpu.h"
#include "ops/shared/cpu/bf16.h"
#include "ops/shared/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "ops/rope/rope_angle_args.h"

typedef double real;
#define CLONES      MICA_MEMORY_CLONES /* few want f64 */
#define REAL_TYPE   MICA_F64
#define NARROW      false
#define ANGLES      f64
#define SINE_COSINE rope_quadrant_f64
#define READ        mica_to_f64
#define WRITE       mica_from_f64
#define ANGLES_OF   rope_cpu_angles_f64
#define TURN_ROW    rope_cpu_rotate_f64
#define COPY_ROW    rope_cpu_copy_f64
#include "ops/rope/cpu/rope_cpu_loops.h"
