/* SPDX-License-Identifier: Apache-2.0
 * Loops over integers, whose sums wrap around. The opposite of one is its complement, which always
 * exists. */
#include "ops/reduce/cpu/reduce_states.h"

#include <math.h>

#define real        int64_t
#define acc         uint64_t
#define held        int64_t
#define SUMS        u64
#define HELD        s64
#define ABSOLUTE(v) ((v) < 0 ? (int64_t)(0 - (uint64_t)(v)) : (v))
#define OPPOSITE(v) (~(v))
#define LOWEST      INT64_MIN
#define IS_NAN(v)   ((void)(v), 0)
#define NO_NUMBER   0
#define add_values  mica_reduce_add_s64
#include "ops/reduce/cpu/reduce_loops.h"
