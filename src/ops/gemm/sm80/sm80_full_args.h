/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of sm80_full.cu receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SM80_SM80_EXTRA_ARGS_H
#define MICA_OPS_GEMM_SM80_SM80_EXTRA_ARGS_H

#include "ops/gemm/cuda/gemm_full_args.h"

/* With a gate shape.n is that of the product; b_n is from column to column of it, or, where pairs
 * are halves, from gate to gate. */
typedef struct gemm_sm80_full_args {
    gemm_full_args x;
    int a_aligned, b_aligned, c_aligned; /* pointers allow the accesses that the strides allow */
} gemm_sm80_full_args;

#endif
