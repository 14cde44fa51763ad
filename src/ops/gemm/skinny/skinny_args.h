/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of the engine skinny receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SKINNY_SKINNY_ARGS_H
#define MICA_OPS_GEMM_SKINNY_SKINNY_ARGS_H

#include "ops/gemm/gemm_args.h"

/* The wide operand has many lines (columns of b; rows of a where SWAPPED), the other one few. */
typedef struct gemm_skinny_args {
    gemm_args gemm;
    long long wide, few;
    long long wide_line, wide_k, few_line, few_k; /* strides in elements */
    int whole;                                    /* vectors of both operands are aligned */
    const char *wide_low, *wide_high, *few_low, *few_high; /* the ends of the operands' memory */
} gemm_skinny_args;

#endif
