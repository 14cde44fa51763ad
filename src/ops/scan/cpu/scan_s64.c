/* SPDX-License-Identifier: Apache-2.0
 * Integers, whose sums wrap around. */
#define real      int64_t
#define held      uint64_t
#define NUMBERS   s64
#define LOWEST    INT64_MIN
#define IS_NAN(v) ((void)(v), 0)
#include "ops/scan/cpu/scan_loops.h"

const mica_scan_loops mica_scan_loops_s64 = {clear, simple_chunk, simple_merge};
