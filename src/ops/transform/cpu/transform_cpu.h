/* SPDX-License-Identifier: Apache-2.0
 * Blocks of elements of 1, 2, 4 or 8 bytes whose bits the CPU engine puts into another order. */
#ifndef MICA_OPS_TRANSFORM_CPU_TRANSFORM_CPU_H
#define MICA_OPS_TRANSFORM_CPU_TRANSFORM_CPU_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSFORM_CPU_LINE = 512 }; /* elements from one line of a thin block to the next */

/* `rows` runs of x, x_step bytes apart and each `cols` long, become columns of y, whose runs are
 * y_step bytes apart. */
void transform_cpu_transpose(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t rows,
                             int64_t cols, int bytes);
/* n neighbouring groups of k elements become k lines of n (parts), or the reverse. */
void transform_cpu_regroup(bool parts, const char *from, char *to, int64_t n, int64_t k,
                           int64_t bytes);

#endif
