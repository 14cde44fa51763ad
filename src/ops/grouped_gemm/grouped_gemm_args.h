/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of grouped_gemm receive; host and device share this file. */
#ifndef MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_ARGS_H
#define MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_ARGS_H

#include "ops/gemm/gemm_args.h"

/* Elements from group to group, and from row to row (term to term) where groups are runs of them.
 */
typedef struct grouped_step {
    long long group, start;
} grouped_step;

typedef struct grouped_args {
    gemm_args gemm; /* of one group with all rows and terms */
    const void *groups;
    long long groups_stride;
    long long count, limit; /* groups; most rows or terms */
    grouped_step a, b, c, r, scale_a, scale_b, bias, scale, shift;
} grouped_args;

#endif
