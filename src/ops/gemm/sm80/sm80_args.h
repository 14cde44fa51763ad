/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of gemm's engine sm80 receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SM80_SM80_ARGS_H
#define MICA_OPS_GEMM_SM80_SM80_ARGS_H

#include "ops/gemm/gemm_args.h"

typedef struct gemm_sm80_args {
    gemm_args g;
    int a_aligned, b_aligned, c_aligned; /* pointers allow the accesses that the strides allow */
    int residual_aligned;                /* for one access to what is stored at once */
    const char *a_low, *a_high, *b_low, *b_high; /* the ends of the operands' memory */
} gemm_sm80_args;

#endif
